from pathlib import Path

import numpy as np
import pytest
from studies.disentanglement.first_stage import ceiling_section
from studies.disentanglement.report import picture_section
from studies.disentanglement.tables import ScoredModel

from tests.support.tiny_mddiff import some_images, tiny_mddiff
from worldmodel.mddiff.data.array_factors import ArrayFactors
from worldmodel.mddiff.evaluation.models import SampledPictures, open_concept_model
from worldmodel.mddiff.evaluation.scores import EvaluationConfig, picture_scores


@pytest.mark.filterwarnings("ignore:.*few")
def test_a_diffusion_model_is_shown_with_its_attention_and_its_own_ceiling(tmp_path: Path) -> None:
    pictures = np.ascontiguousarray(some_images(60).permute(0, 2, 3, 1).numpy())
    data = ArrayFactors("blocks", ("a", "b"), (6, 10), pictures)
    tiny = tiny_mddiff()
    tiny.encoder.layers[-1].weight.data *= 100  # its codes must vary to be shown
    tiny.eval().save_pretrained(tmp_path / "mddiff/seed3/model")
    model = open_concept_model(tmp_path / "mddiff/seed3/model", ddim_steps=2)
    assert isinstance(model, SampledPictures)
    scores = picture_scores(model, data, EvaluationConfig(num_reconstructed=20, batch=8))
    assert scores["first_stage_psnr"]["count"] == 20

    result = {"scores": {"factor_vae": {"value": 0.25}}, "evaluation": {"ica": False}, "pictures": scores}
    scored = ScoredModel("mddiff", "last", (result,), (tmp_path / "mddiff/seed3",))
    section = picture_section([scored], data, tmp_path / "figures", ddim_steps=2, seed=0)
    text, figures = section.blocks
    assert "seed 3, last weights" in text.text
    assert "(0.250)" in text.text
    path, caption = figures.items[-1]
    assert path.name == "mddiff_attention.png"
    assert path.exists()
    assert "times an even share" in caption
    ceiling = ceiling_section(tmp_path, [scored])
    assert ceiling is not None
    assert ceiling.blocks[0].rows == (("mddiff", f"{scores['first_stage_psnr']['mean']:.2f}", ""),)
