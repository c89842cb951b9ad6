"""Config files and overrides, and the promise that every config field has a comment and a reader."""

import ast
import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from worldmodel.config import config_to_yaml, describe_config, load_config, save_config
from worldmodel.evaluation.sensitivity.run import SensitivityConfig
from worldmodel.training.loop.distributed import MachineConfig
from worldmodel.training.loop.fit import FitConfig
from worldmodel.training.world_model import TrainConfig

ROOT = Path(__file__).parents[1]
PACKAGES = ("worldmodel", "robotwin_adapters", "training", "eval")


@dataclass(frozen=True)
class InnerConfig:
    rate: float = 1e-3  # per step
    kind: Literal["a", "b"] = "a"  # which one
    sizes: tuple[int, ...] = (1, 2)  # pixels
    factors: dict[str, float] = field(default_factory=dict)  # name -> factor


@dataclass(frozen=True)
class OuterConfig:
    steps: int = 10  # optimizer steps
    name: str | None = "run"  # of the run
    inner: InnerConfig = field(default_factory=InnerConfig)
    extra: InnerConfig | None = None  # a second one; none: off

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"steps must be >= 0, got {self.steps}")


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return str(path)


def test_defaults_then_file_then_overrides(tmp_path: Path) -> None:
    path = write(tmp_path, "steps: 20\ninner: {rate: 3e-4, sizes: [4, 5, 6]}\n")
    config = load_config(OuterConfig, path, ["inner.rate=0.5", "inner.factors={x_*: 2}"])
    assert config == OuterConfig(20, "run", InnerConfig(0.5, "a", (4, 5, 6), {"x_*": 2.0}))
    assert isinstance(config.inner, InnerConfig)
    assert load_config(OuterConfig, path).inner.rate == 3e-4
    assert load_config(OuterConfig, path, ["name="]).name == ""
    assert load_config(OuterConfig, path, ["name=null"]).name is None


def test_words_that_yaml_reads_as_booleans_stay_words_where_a_word_is_wanted() -> None:
    assert load_config(OuterConfig, None, ["name=no"]).name == "no"
    assert load_config(MachineConfig, None, ["mixed_precision=no"]).mixed_precision == "no"
    for text, value in (("no", False), ("off", False), ("yes", True), ("true", True)):
        assert load_config(FitConfig, None, [f"compile={text}"]).compile is value


def test_null_and_booleans_are_words_in_a_list_of_words() -> None:
    @dataclass(frozen=True)
    class Words:
        words: tuple[str, ...] = ()
        flags: tuple[bool, ...] = ()

    for text, words in (
        ("[null,zero]", ("null", "zero")),
        ("[zero, null]", ("zero", "null")),
        ("[no,on,null]", ("no", "on", "null")),
        ("['null',nullable]", ("null", "nullable")),
        ("[a no,x]", ("a no", "x")),
    ):
        assert load_config(Words, None, [f"words={text}"]).words == words
    assert load_config(Words, None, ["flags=[no,yes,true]"]).flags == (False, True, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stpes: 3", "stpes"),
        ("inner: {rate: fast}", "fast"),
        ("inner: {kind: c}", "kind"),
        ("steps: -1", "steps must be >= 0, got -1"),
    ],
)
def test_typos_and_wrong_values_are_refused_by_name(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        load_config(OuterConfig, write(tmp_path, text))


def test_a_missing_file_and_a_bare_word_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no config file at"):
        load_config(OuterConfig, str(tmp_path / "none.yaml"))
    with pytest.raises(ValueError, match="an override is key=value, got 'fast'"):
        load_config(OuterConfig, None, ["fast"])


def test_a_saved_config_reads_back_equal(tmp_path: Path) -> None:
    config = OuterConfig(3, None, InnerConfig(2.5e-5, "b", (), {"a.*": 5.0}))
    save_config(config, tmp_path / "saved.yaml")
    assert load_config(OuterConfig, str(tmp_path / "saved.yaml")) == config
    assert load_config(OuterConfig, write(tmp_path, config_to_yaml(config))) == config


def test_help_lists_every_field_with_its_comment() -> None:
    lines = list(describe_config(OuterConfig))
    assert lines[0] == "  steps=10    optimizer steps"
    assert "  inner.rate=0.001    per step" in lines
    assert lines[6:8] == ["  extra=None    a second one; none: off", "  extra.rate=0.001    per step"]
    assert len(lines) == 11


@dataclass(frozen=True)
class ConfigClass:
    path: Path
    node: ast.ClassDef

    def fields(self) -> list[str]:
        return [
            n.target.id
            for n in self.node.body
            if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
        ]

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.node.name}"


def sources() -> Iterator[tuple[Path, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path, ast.parse(path.read_text())


def config_classes() -> list[ConfigClass]:
    return [
        ConfigClass(path, node)
        for path, tree in sources()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name.endswith("Config") and node.decorator_list
    ]


def names_read() -> set[str]:
    """Attribute names and string constants, without those that config classes check in `__post_init__`."""
    found: set[str] = set()
    for _, tree in sources():
        own = {
            id(n)
            for c in tree.body
            if isinstance(c, ast.ClassDef) and c.name.endswith("Config")
            for part in c.body
            if not isinstance(part, ast.FunctionDef) or part.name == "__post_init__"
            for n in ast.walk(part)
        }
        for node in ast.walk(tree):
            if id(node) in own:
                continue
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                found.add(node.value)
    return found


def test_every_config_field_is_read_somewhere() -> None:
    read = names_read()
    unread = [
        f"{config} {name}"
        for config in config_classes()
        for name in config.fields()
        if name not in read and config.node.name != "ActionConfig"  # `paths` reads all of its fields
    ]
    assert not unread, unread


def test_every_config_class_is_frozen_and_every_default_has_a_comment() -> None:
    for config in config_classes():
        module = importlib.import_module(".".join(config.path.relative_to(ROOT).with_suffix("").parts))
        schema = getattr(module, config.node.name)
        assert schema.__dataclass_params__.frozen, config
        optional = [line for line in describe_config(schema) if "_MISSING_TYPE" not in line]
        bare = [line for line in optional if "    " not in line.strip()]
        assert not bare, f"{config}: no comment beside {bare}"


PRESETS = sorted(
    path for folder in ("debug", "desk", "wan") for path in (ROOT / "configs" / folder).glob("*.yaml")
)


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_presets_load(path: Path) -> None:
    from studies.table2.cells import Table2Config

    from worldmodel.training.autoencoder import AutoencoderConfig
    from worldmodel.training.world_model import TrainConfig

    schemas = {"autoencoder": AutoencoderConfig, "table2": Table2Config}
    config = load_config(schemas.get(path.stem.removeprefix("streaming_"), TrainConfig), str(path))
    assert config.output.startswith("outputs/")


def test_text_that_is_no_yaml_is_a_value_error_that_names_its_place(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the command line"):
        load_config(OuterConfig, None, ["name=[a=[]]"])
    (tmp_path / "bad.yaml").write_text("steps: [1")
    with pytest.raises(ValueError, match=r"bad\.yaml"):
        load_config(OuterConfig, str(tmp_path / "bad.yaml"))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("name: ${oc.env:WORLDMODEL_SECRET}\n", "name"),
        ("inner: {factors: {'${oc.env:WORLDMODEL_SECRET}': 1}}\n", "the key inner.factors"),
        ("inner: {sizes: [1, '${oc.env:WORLDMODEL_SECRET}']}\n", r"inner.sizes\[1\]"),
        ("name: a-${steps}\n", "name"),
    ],
)
def test_a_config_from_elsewhere_cannot_read_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, place: str
) -> None:
    monkeypatch.setenv("WORLDMODEL_SECRET", "7")
    with pytest.raises(ValueError, match=f"config.yaml: {place}.* plain values"):
        load_config(OuterConfig, write(tmp_path, text))
    with pytest.raises(ValueError, match="plain values"):
        load_config(OuterConfig, None, ["name=${oc.env:WORLDMODEL_SECRET}"])


@pytest.mark.parametrize("given", ["data.paths=one,two", "data.paths=[one,two]", "data.paths=[one, two]"])
def test_lists_need_no_brackets(given: str) -> None:
    """In zsh, brackets are a pattern."""
    assert list(load_config(TrainConfig, None, [given, "model.vae=any"]).data.paths) == ["one", "two"]


def test_a_list_of_one_and_a_list_of_numbers_need_no_brackets() -> None:
    assert list(load_config(TrainConfig, None, ["data.paths=myrobot", "model.vae=any"]).data.paths) == [
        "myrobot"
    ]
    config = load_config(SensitivityConfig, None, ["scales=0.5,1"])
    assert list(config.scales) == [0.5, 1.0]
