"""How many sampling steps are taken where none are asked for: as many as the model is said to be best at."""

import ast
from pathlib import Path

from worldmodel.models.model import WorldModel

ROOT = Path(__file__).parents[3]
OWN = ("models/config.py", "validation.py")  # the contract, and what training looks at


def test_the_model_says_its_number() -> None:
    model = WorldModel.from_pretrained("desk")
    assert model.contract.num_inference_steps == 1
    assert len(model.sigmas()) == 2
    assert len(model.sigmas(5)) == 6


def test_nobody_else_has_a_number_of_his_own() -> None:
    for path in (ROOT / "worldmodel").rglob("*.py"):
        found = list(_defaults(ast.parse(path.read_text())))
        assert path.as_posix().endswith(OWN) or set(found) <= {0}, f"{path}: {found}"


def _defaults(tree: ast.AST) -> list[object]:
    values: list[object] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "num_inference_steps":
            values.append(node.value and ast.literal_eval(node.value))
        if isinstance(node, ast.arguments):
            every = node.posonlyargs + node.args
            pairs = [*zip(every[::-1], node.defaults[::-1], strict=False)]
            pairs += [
                (name, value) for name, value in zip(node.kwonlyargs, node.kw_defaults, strict=True) if value
            ]
            values += [ast.literal_eval(value) for name, value in pairs if name.arg == "num_inference_steps"]
    return values
