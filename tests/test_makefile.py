import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA = {"target/episode0.hdf5", "latents/episode0.safetensors"}
MADE = {"run/log.jsonl", "clips.jsonl", "report.html", "videos/clip000.mp4"}


def forget(folder: Path) -> set[str]:
    """What `make demo` finds of an earlier one."""
    subprocess.run(["make", "-s", "demo-forget"], cwd=folder, check=True)
    demo = folder / "outputs/demo"
    return {path.relative_to(demo).as_posix() for path in demo.rglob("*") if path.is_file()} - {"made_from"}


def write(folder: Path, names: set[str]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_a_demo_goes_on_unless_the_shipped_weights_or_its_config_changed(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    weights, config = "worldmodel/weights/desk/scene.safetensors", "configs/desk/demo.yaml"
    write(tmp_path, {weights, config, "worldmodel/weights/desk/README.md", "outputs/other"})
    write(tmp_path / "outputs/demo", DATA | MADE)
    assert forget(tmp_path) == DATA  # of a version that did not say what it was made from
    for changed, left in (
        ("worldmodel/weights/desk/README.md", DATA | MADE),
        (weights, DATA),
        (config, DATA),
    ):
        write(tmp_path / "outputs/demo", MADE)
        assert forget(tmp_path) == DATA | MADE
        (tmp_path / changed).write_text("other")
        assert forget(tmp_path) == left, changed
    assert (tmp_path / "outputs/other").exists()
