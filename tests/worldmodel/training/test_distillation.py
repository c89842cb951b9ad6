from pathlib import Path

from tests.support.debug_run import CONFIG, losses
from worldmodel.models.model import WorldModel
from worldmodel.training.world_model import load_train_config, train

CAUSAL = ["model.causal=true", "model.objective.forcing=prefix", "model.objective.idm_weight=0"]
QUICK = ["validation.num_clips=0", "fit.checkpoint_every=100", "fit.best_metric=", "fit.steps=2"]


def test_the_debug_preset_trains_a_teacher_and_then_its_student(overrides: list[str], tmp_path: Path) -> None:
    common = [*overrides, *QUICK, "first_batch=0"]
    assert train(load_train_config(CONFIG, [*common, *CAUSAL, f"output={tmp_path / 'teacher'}"]), False)
    stage = [f"start_from={tmp_path / 'teacher/model'}", "model.objective.student_steps=2"]
    assert train(load_train_config(CONFIG, [*common, *stage, f"output={tmp_path / 'student'}"]), False)
    assert len(losses(tmp_path / "student")) == 2
    student = WorldModel.from_pretrained(tmp_path / "student/model")
    assert student.config.objective.student_steps == 2
    assert student.config.causal
