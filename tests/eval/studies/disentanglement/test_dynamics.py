import json
from pathlib import Path

from studies.disentanglement.dynamics import Curve, draw_dynamics, validation_curve


def test_dynamics_come_from_the_log_and_count_pictures(tmp_path: Path) -> None:
    records = [
        {"step": 1, "kind": "train", "loss": 1.0},
        {"step": 2, "kind": "validation", "factor_vae": 0.5, "mig": 0.1},
        {"step": 4, "kind": "validation", "factor_vae": 0.75, "mig": 0.2},
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert validation_curve(tmp_path, "factor_vae") == ([2, 4], [0.5, 0.75])
    first = Curve("mddiff", "mddiff", tmp_path, 10, 0)
    later = Curve("mcl_exact", "mddiff", tmp_path, 10, 40)
    assert later.points("mig") == ([60, 80], [0.1, 0.2])
    missing = Curve("vae", "vae", tmp_path / "missing", 10, 0)
    draw_dynamics(tmp_path / "d.png", [first, later, missing], ("factor_vae", "mig"))
    assert (tmp_path / "d.png").stat().st_size > 1000
