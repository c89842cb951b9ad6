import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.support.debug_run import CONFIG
from worldmodel.config import load_config
from worldmodel.models.model import WorldModel
from worldmodel.training.export import published_paths, ship
from worldmodel.training.world_model import TrainConfig, train


@pytest.fixture(scope="module")
def two_stages(one_process: Path, overrides: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that started from another one beside it."""
    home = tmp_path_factory.mktemp("stages") / "home"
    shutil.copytree(one_process, home / "first")
    second = [f"start_from={home / 'first/model'}", f"output={home / 'second'}"]
    second += ["fit.steps=3", "fit.seed=5", "model.mcl.mode=detached", "validation.num_rollouts=0"]
    assert train(load_config(TrainConfig, CONFIG, [*overrides, *second]), False)
    return home / "second"


def test_a_shipped_model_tells_all_its_stages_and_no_path_of_this_machine(
    two_stages: Path, tmp_path: Path
) -> None:
    ship(two_stages, tmp_path / "shipped", config=CONFIG, renamed={"second": "tuned"})
    story = (tmp_path / "shipped/README.md").read_text().partition("## Training")[2]
    rows = re.findall(r"^\| (first|tuned) \| (.*?) \| synthetic \| (\d+) \| (\d+) \|", story, re.MULTILINE)
    assert rows == [("first", "random weights", "2", "0"), ("tuned", "outputs/home/first/model", "3", "5")]
    commands = [shlex.split(line) for line in story.splitlines() if line.startswith("worldmodel train ")]
    told = [load_config(TrainConfig, words[2], words[3:]) for words in commands]
    assert told[-1] == load_config(TrainConfig, str(tmp_path / "shipped/training.yaml"))
    assert [config.fit.steps for config in told] == [2, 3]
    assert told[-1].output == "outputs/home/tuned"
    texts = [path for path in (tmp_path / "shipped").rglob("*") if path.suffix in (".md", ".json", ".yaml")]
    assert len(texts) >= 6
    machine = str(two_stages.parents[2])  # the commands name this test's config, which lies elsewhere
    assert not [path for path in texts if machine in path.read_text()]
    assert WorldModel.from_pretrained(tmp_path / "shipped").config.mcl is not None


def test_curves_and_story_of_a_run_are_not_those_of_its_last_stage_alone(
    two_stages: Path, tmp_path: Path
) -> None:
    ship(two_stages, tmp_path / "both")
    alone = tmp_path / "home/second"
    shutil.copytree(two_stages, alone)
    config = alone / "config.yaml"
    config.write_text(config.read_text().replace(str(two_stages.parent), str(alone.parent)))
    ship(alone, tmp_path / "alone")
    both, story = ((tmp_path / name / "README.md").read_text() for name in ("both", "alone"))
    assert "| first |" in both
    assert "| first |" not in story
    assert "| second | outputs/home/first/model |" in story
    assert (tmp_path / "both/curves.png").read_bytes() != (tmp_path / "alone/curves.png").read_bytes()


def test_absolute_paths_are_shown_from_outputs_or_by_their_last_name(tmp_path: Path) -> None:
    published = published_paths(tmp_path / "desk/long", {"long": "acg2"})
    assert published(f"{tmp_path}/desk/long/model") == "outputs/desk/acg2/model"
    assert published("/data/my episodes") == "my episodes"
    for text in ("outputs/long", "owner/name", "", "finite_difference"):
        assert published(text) == text
