"""The rules of the tree, as tests: who may import whom, file names, plain ASCII, no pickles."""

import ast
import dataclasses
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from worldmodel.models.config import WorldModelConfig
from worldmodel.pipelines.causal import CausalState
from worldmodel.pipelines.session import VideoState
from worldmodel.pipelines.whole_clip import Sampler
from worldmodel.types import Actions

ROOT = Path(__file__).parents[1]
PACKAGES = ("worldmodel", "robotwin_adapters", "training", "eval", "examples")
# The installed packages from the ground up, then the scripts. A module imports its own layer or lower ones.
LAYERS = (
    (
        *("worldmodel.types", "worldmodel.config", "worldmodel.files", "worldmodel.shipped"),
        *("worldmodel.checked", "worldmodel.tensors", "worldmodel.plain_text", "worldmodel.cli_errors"),
        *("worldmodel.hub", "worldmodel.device", "worldmodel.signals"),
    ),
    ("worldmodel.diffusion", "worldmodel.mcl", "worldmodel.report", "worldmodel.evaluation.metrics"),
    ("worldmodel.data",),
    ("robotwin_adapters",),
    ("worldmodel.desk", "worldmodel.models", "worldmodel.checkpoint"),
    ("worldmodel.objectives",),
    ("worldmodel.pipelines",),
    ("worldmodel.diagnostics",),
    ("worldmodel.estimate",),
    ("worldmodel.training",),
    ("worldmodel.locator",),
    ("worldmodel.evaluation",),
    ("worldmodel.estimate.run_shape", "worldmodel.quickstart"),
    ("worldmodel.environments",),
    ("worldmodel.serving",),
    ("worldmodel.md_vae",),
    ("worldmodel.mddiff",),
    ("worldmodel.context_module",),
    ("worldmodel.cli", "worldmodel"),
    ("training", "eval", "studies", "bench", "examples"),
)
RESEARCH_HOMES = ("worldmodel.md_vae", "worldmodel.mddiff", "worldmodel.context_module")
# The world model's own code, and its sizes at most: modules, lines, lines of a file. They only go down.
CORE = ("models", "objectives", "mcl", "pipelines")
# The picture head stands beside the compositor (450 lines in four modules) until one of them goes.
CORE_MODULES, CORE_LINES, FILE_LINES, CONFIG_FIELDS = 40, 6_622, 350, 21
# It draws by hand poses, and leaves with its modules.
POSES_FOR_THE_COMPOSITOR = ("worldmodel.models.pose_track",)
MODEL_LINES = 200  # of models/model.py, the world model at one glance
BAD_NAMES = {"utils.py", "helpers.py", "common.py", "misc.py"}
TOP_LEVEL = {
    *PACKAGES,
    *("configs", "tests", "docs", "examples", ".ci"),
    *(
        "pyproject.toml",
        "constraints.txt",
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "LICENSE",
        "Makefile",
        ".gitignore",
    ),
    *("mkdocs.yml", "CITATION.cff"),
}


def tracked_files() -> list[str]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listing.returncode:
        pytest.skip("not a git checkout")
    return [name for name in listing.stdout.splitlines() if (ROOT / name).exists()]


def python_files(*packages: str) -> Iterator[Path]:
    for package in packages:
        yield from sorted((ROOT / package).rglob("*.py"))


def imported_roots(path: Path) -> Iterator[tuple[str, int]]:
    for name, line in imported_names(path):
        yield name.split(".")[0], line


def imported_names(path: Path) -> Iterator[tuple[str, int]]:
    """Dotted names: the module, and where `from package import module` is written, the module in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield (full if is_module(full) else node.module), node.lineno


def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module: str) -> int:
    """Number of the layer whose longest prefix fits."""
    fits = [
        (len(prefix), number)
        for number, layer in enumerate(LAYERS)
        for prefix in layer
        if module == prefix or module.startswith(prefix + ".")
    ]
    return max(fits)[1]


def test_imports_point_downwards() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in python_files(*PACKAGES)
        for name, line in imported_names(path)
        if name.split(".")[0] in {*PACKAGES, "studies", "bench"}
        and layer_of(name) > layer_of(module_name(path))
    ]
    assert not wrong, "\n".join(wrong)


def test_only_commands_and_studies_know_research_packages() -> None:
    home = {*RESEARCH_HOMES}
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in python_files("worldmodel", "robotwin_adapters")
        for name, line in imported_names(path)
        if ".".join(name.split(".")[:2]) in home
        and not module_name(path).startswith((*home, "worldmodel.cli"))
        and module_name(path) != "worldmodel"
    ]
    assert not wrong, "\n".join(wrong)


def test_public_names_load_no_research_package() -> None:
    program = (
        "import sys, worldmodel; worldmodel.WorldModel; worldmodel.RolloutPipeline; "
        f"print([name for name in sys.modules if name.startswith({RESEARCH_HOMES})])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_core_stays_small() -> None:
    files = [
        path
        for part in CORE
        for path in python_files(f"worldmodel/{part}")
        if path.name != "__init__.py" and path.parent.name != "published"  # embedders of published models
    ]
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert len(files) <= CORE_MODULES
    assert lines["worldmodel/models/model.py"] <= MODEL_LINES
    assert sum(lines.values()) <= CORE_LINES
    assert max(lines.values()) <= FILE_LINES, {
        name: count for name, count in lines.items() if count > FILE_LINES
    }


def test_one_way_to_copy_samples_and_one_border_to_the_cpu() -> None:
    calls = [
        (node.func.attr, path.name)
        for path in python_files("worldmodel/pipelines")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    assert [file for name, file in calls if name == "repeat_interleave"] == ["session.py"]
    assert {file for name, file in calls if name == "cpu"} == {"session.py"}


def test_what_a_video_holds_is_frozen() -> None:
    def held(annotation: Any) -> Iterator[type]:
        for part in get_args(annotation):
            yield from held(part)
        if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
            yield annotation
            for part in get_type_hints(annotation).values():
                yield from held(part)

    kinds = {*held(VideoState), *held(Sampler)}
    assert {VideoState, CausalState, Actions, Sampler} <= kinds
    assert not [kind for kind in kinds if not kind.__dataclass_params__.frozen]  # type: ignore[attr-defined]


def test_the_config_of_the_world_model_stays_small() -> None:
    assert len(dataclasses.fields(WorldModelConfig)) <= CONFIG_FIELDS


def test_only_action_paths_look_into_extras() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in python_files("worldmodel", "robotwin_adapters", "training", "examples")
        if not module_name(path).startswith(("worldmodel.models.actions.", *POSES_FOR_THE_COMPOSITOR))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Subscript)
        and ast.unparse(node.value).endswith("extras")
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, str)
    ]
    assert not wrong, wrong


def test_every_setting_of_a_world_model_is_set_in_a_config_or_explained() -> None:
    configs = [path.read_text() for path in (ROOT / "configs/wan").glob("*.yaml")]
    pages = [path.read_text() for path in (ROOT / "docs").glob("*.md")]
    missing = [
        field.name
        for field in dataclasses.fields(WorldModelConfig)
        if not any(re.search(rf"^  {field.name}:", text, re.M) for text in configs)
        and not any(re.search(rf"^\| `(model\.)?{field.name}\b", text, re.M) for text in pages)
    ]
    assert not missing, missing


def test_leaf_packages_import_only_the_ground() -> None:
    allowed = {*LAYERS[0]}
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for leaf in ("diffusion", "mcl", "report", "evaluation.metrics")
        for path in python_files(f"worldmodel/{leaf.replace('.', '/')}")
        for name, line in imported_names(path)
        if name.startswith("worldmodel.")
        and not name.startswith(f"worldmodel.{leaf}")
        and name not in allowed
    ]
    assert not wrong, "\n".join(wrong)


def test_only_the_top_of_the_library_knows_robot_formats() -> None:
    # "": the public names
    top = (
        "",
        "training",
        "evaluation",
        "locator",
        "estimate",
        "environments",
        "serving",
        "quickstart",
        "cli",
    )
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in python_files("worldmodel")
        for name, line in imported_names(path)
        if name.startswith("robotwin_adapters")
        and (module_name(path) + ".").split(".")[1] not in top
        and path.name != "render_rooms.py"  # a tool that casts pictures with the tabletop's renderer
    ]
    assert not wrong, "\n".join(wrong)


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = {
        module_name(path): {name for name, _ in imported_names(path) if is_module(name)}
        for path in python_files("worldmodel", "robotwin_adapters")
    }
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join((*trail[trail.index(module) :], module))
        if module in done:
            return
        for name in graph.get(module, ()):
            visit(name, (*trail, module))
        done.add(module)

    for module in graph:
        visit(module, ())


def test_no_room_is_crowded() -> None:
    crowded = {
        str(folder.relative_to(ROOT)): count
        for package in PACKAGES
        for folder in (ROOT / package, *(ROOT / package).rglob("*/"))
        if (count := len(list(folder.glob("*.py")))) > 21  # 20 modules and __init__.py
    }
    assert not crowded, crowded


def test_eval_is_never_imported_as_a_name() -> None:
    # `import eval.x` would rebind the builtin `eval` in the importing module.
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in python_files(*PACKAGES, "tests")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "eval" for alias in node.names)
    ]
    assert not wrong, wrong


def test_only_config_knows_omegaconf() -> None:
    users = [
        path.relative_to(ROOT)
        for path in python_files(*PACKAGES)
        if any(root == "omegaconf" for root, _ in imported_roots(path))
    ]
    assert users == [Path("worldmodel/config.py")]


def test_file_names_say_something() -> None:
    bad = [str(path.relative_to(ROOT)) for path in python_files(*PACKAGES) if path.name in BAD_NAMES]
    assert not bad, bad


def test_top_level_is_fixed() -> None:
    found = {name.split("/")[0] for name in tracked_files()}
    assert found <= TOP_LEVEL, found - TOP_LEVEL


def test_sources_are_ascii() -> None:
    bad = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in python_files(*PACKAGES, "tests")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if not line.isascii()
    ]
    assert not bad, bad


def test_nothing_unpickles() -> None:
    bad = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in python_files(*PACKAGES)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and (
            (node.func.value.id in {"pickle", "joblib"} and node.func.attr in {"load", "loads"})
            or (node.func.value.id == "torch" and node.func.attr == "load")
        )
        and not any(keyword.arg == "weights_only" for keyword in node.keywords)
    ]
    assert not bad, bad


def test_every_command_has_one_way_out() -> None:
    mains = [
        (path, node)
        for path in python_files("worldmodel", "eval", "training")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == "main"
    ]
    assert len(mains) > 25
    # `worldmodel` itself guards the sub-command that it runs.
    wrong = [
        str(path.relative_to(ROOT))
        for path, node in mains
        if not any(isinstance(mark, ast.Name) and mark.id == "one_way_out" for mark in node.decorator_list)
        and module_name(path) != "worldmodel.cli"
    ]
    assert not wrong, wrong
