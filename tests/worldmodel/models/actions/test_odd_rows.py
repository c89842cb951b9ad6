"""A path that nobody foresaw passes through the library: it is added to a copy as CONTRIBUTING.md says."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]
HERE = Path(__file__).parent


def library_with_the_path(folder: Path) -> None:
    """Its file, an import and a field of `ActionConfig`: nothing else differs from the library."""
    shutil.copytree(
        ROOT / "worldmodel", folder / "worldmodel", ignore=shutil.ignore_patterns("__pycache__", "weights")
    )
    (folder / "worldmodel/weights").symlink_to(ROOT / "worldmodel/weights")
    actions = folder / "worldmodel/models/actions"
    shutil.copy(HERE / "odd_rows.py", actions)
    text = (actions / "interface.py").read_text()
    field = "    start_state: StartStateConfig | None = None"
    line = next(line for line in text.splitlines() if line.startswith(field))
    text = text.replace(line, f"{line}\n    odd_rows: OddRowsConfig | None = None")
    import_line = "from worldmodel.models.actions.place_map import"
    text = text.replace(
        import_line, f"from worldmodel.models.actions.odd_rows import OddRowsConfig\n{import_line}"
    )
    (actions / "interface.py").write_text(text)


def test_a_path_of_odd_rows_beside_another_passes_untouched(tmp_path: Path) -> None:
    library_with_the_path(tmp_path)
    done = subprocess.run(
        [sys.executable, HERE / "odd_journey.py", tmp_path / "runs"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("untouched\n")
