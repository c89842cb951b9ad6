import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from worldmodel.checked import (
    build,
    check_ranges,
    check_settings,
    read_bytes,
    read_json,
    read_text,
    shorten,
)
from worldmodel.config import load_config
from worldmodel.context_module.data.open_contexts import ContextDataConfig
from worldmodel.evaluation.rollouts.run import RolloutsConfig
from worldmodel.evaluation.sensitivity.run import SensitivityConfig
from worldmodel.evaluation.submit import SubmitConfig
from worldmodel.locator.train import LocatorRunConfig
from worldmodel.mddiff.data.factors import FactorDataConfig
from worldmodel.mddiff.evaluation.scores import EvaluationConfig
from worldmodel.mddiff.training.concept_run import ConceptTrainConfig
from worldmodel.models.backbone import WanConfig
from worldmodel.training.loop.fit import FitConfig
from worldmodel.training.validation import ValidationConfig


@dataclass(frozen=True)
class Camera:
    """A description as it could come with a data set."""

    fps: float  # per second
    size: tuple[int, int]  # pixels
    names: tuple[str, ...] = ()  # of cameras
    kind: Literal["color", "depth"] = "color"  # of pictures
    depth: int | None = None  # bits
    flipped: bool = False  # upside down

    def __post_init__(self) -> None:
        check_ranges(self, fps=(1e-3, 1e4), size=(1, 4096))


GOOD = {"fps": 25, "size": [4, 6], "names": ["head"]}


def test_a_good_object_becomes_the_dataclass() -> None:
    assert build(Camera, GOOD, "c.json") == Camera(25.0, (4, 6), ("head",))
    assert build(Camera, {**GOOD, "depth": 8, "kind": "depth"}, "c.json").depth == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fps": "25"}, "c.json: fps is '25', expected a finite number"),
        ({"fps": True}, "c.json: fps is True, expected a finite number"),
        ({"fps": float("nan")}, "fps is nan, expected a finite number"),
        ({"fps": 10**400}, "expected a finite number"),
        ({"fps": 0}, r"c.json: fps must lie in 0.001 .. 10000, got 0.0"),
        ({"fps": 1e300}, "fps must lie in"),
        ({"size": [4]}, "c.json: size is \\[4\\], expected a list of 2"),
        ({"size": [4, 1.5]}, "expected a list of 2"),
        ({"size": [4, -1]}, "size must lie in 1 .. 4096"),
        ({"size": "46"}, "expected a list of 2"),
        ({"names": [None]}, "names is \\[None\\], expected a list, each entry a text"),
        ({"names": ["x" * 20_000]}, "expected a list, each entry a text"),
        ({"kind": "infrared"}, "kind is 'infrared', expected color or depth"),
        ({"kind": []}, "expected color or depth"),
        ({"depth": 8.5}, "depth is 8.5, expected a whole number or null"),
        ({"flipped": 1}, "flipped is 1, expected true or false"),
        ({"shutter": 1}, "unknown 'shutter', expected some of fps, size"),
        ({"fps": None}, "expected a finite number"),
    ],
)
def test_a_wrong_field_is_named(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(Camera, {**GOOD, **change}, "c.json")


@pytest.mark.parametrize("values", [None, [], "text", 3, {1: 2}])
def test_what_is_no_object_is_refused(values: object) -> None:
    with pytest.raises(ValueError, match=r"c.json: expected an object"):
        build(Camera, values, "c.json")


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ValueError, match=r"c.json: size is missing"):
        build(Camera, {"fps": 25}, "c.json")


def test_only_regular_files_of_a_plausible_size_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "link.json").symlink_to("/dev/zero")
    (tmp_path / "large.json").write_bytes(b"1" * 100)
    for name, message in (
        ("fifo.json", "expected a regular file"),
        ("link.json", "expected a regular file"),
        (".", "regular file|cannot be read"),
        ("none.json", "cannot be read"),
        ("large.json", "at most 99 bytes"),
    ):
        with pytest.raises(ValueError, match=message):
            read_bytes(tmp_path / name, 99)
    (tmp_path / "latin.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not text in UTF-8"):
        read_text(tmp_path / "latin.txt")


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "[1]", "nul", "1" * 5000, '{"a": 1}{'])
def test_what_is_no_json_object_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"a\.json: "):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a [1, 1]\nb: [*a, *a]\n", "without aliases"),
        ("names: " + "[" * 50 + "]" * 50, "at most 32 levels"),
        ("names: [" + "x, " * 30_000 + "]", "20000 entries"),
        ("fps: .inf\nsize: [1, 1]", r"fps must lie in|fps is inf"),
        ("fps: .nan\nsize: [1, 1]", r"fps must lie in|fps is nan"),
        ("fps: 2020-99-99", r"c\.yaml"),
        ("!!python/object/apply:os.system ['true']", r"c\.yaml"),
        ("- 1\n- 2", r"c\.yaml"),
        ("just words", r"c\.yaml"),
        ("12", r"c\.yaml: expected named settings"),
        ("\tfps: 1", r"c\.yaml"),
        ("? [a, b]\n: 1", r"c\.yaml"),
        ("fps: [1, 2]", r"c\.yaml"),
    ],
)
def test_yaml_that_is_no_config_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_config(Camera, str(path))


def test_a_number_that_is_not_finite_is_found_at_any_depth() -> None:
    with pytest.raises(ValueError, match=r"here: b\[1\] is nan"):
        check_settings({"a": 1.0, "b": (1.0, float("nan"))}, "here")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("depth=-1", "depth is -1, expected 0 .. 9223372036854775807"),
        ("depth=9223372036854775808", "depth is 9223372036854775808, expected 0 .."),
        ("names=[[a]]", r"names is \(\['a'\],\), expected a list, each entry a text"),
        ("names=[{a: 1}]", "names is .*, expected a list, each entry a text"),
    ],
)
def test_settings_that_can_mean_nothing_are_refused_in_every_config(override: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"the command line: {message}"):
        load_config(Camera, None, ["fps=25", "size=[4, 6]", override])


def test_an_output_without_a_name_is_not_the_current_folder() -> None:
    with pytest.raises(ValueError, match=r"output is empty; write \. for the current folder"):
        load_config(RolloutsConfig, None, ["output="])
    assert load_config(RolloutsConfig, None, ["output=."]).output == "."


@pytest.mark.parametrize(
    ("schema", "override", "message"),
    [
        (FitConfig, "global_batch=0", "global_batch must be >= 1, got 0"),
        (FitConfig, "seed=-1", "seed is -1, expected 0 .."),
        (FitConfig, "validate_every=-1", "validate_every is -1"),
        (WanConfig, "head_dim=7", "head_dim must be even"),
        (ValidationConfig, "num_inference_steps=0", "num_inference_steps must lie in 1 .. 1000"),
        (RolloutsConfig, "max_batch=0", "max_batch must lie in 1 .."),
        (RolloutsConfig, "held_out.clips_per_episode=0", "clips_per_episode must lie in 1 .."),
        (RolloutsConfig, "held_out.episodes=-1", "held_out.episodes is -1"),
        (SensitivityConfig, "num_inference_steps=1000000000", "num_inference_steps must lie in"),
        (SubmitConfig, "generations=0", "generations must lie in 1 .."),
        (SubmitConfig, "width=1000000", "width must lie in 0 .. 16384"),
        (LocatorRunConfig, "frames_per_episode=0", "frames_per_episode must lie in 1 .."),
        (EvaluationConfig, "batch=0", "batch must lie in 1 .."),
        (FactorDataConfig, "size=0", "size must lie in 1 .. 4096"),
        (ContextDataConfig, "num_pictures=0", "num_pictures must lie in 1 .."),
        (ConceptTrainConfig, "num_initial_images=0", "num_initial_images must lie in 1 .."),
        (ConceptTrainConfig, "validation.scores.batch=0", "batch must lie in 1 .."),
        (ConceptTrainConfig, "validation.num_inference_steps=0", "num_inference_steps must lie in 1 .."),
    ],
)
def test_counts_of_a_command_are_checked_before_it_works(schema: type, override: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_config(schema, None, [override])


def test_long_values_are_cut_in_messages() -> None:
    assert len(shorten("x" * 1000)) == 80
    assert "too long" in shorten(10**5000)
