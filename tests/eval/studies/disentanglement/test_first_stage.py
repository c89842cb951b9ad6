import json
from pathlib import Path

import numpy as np
import pytest
import torch
from studies.disentanglement import first_stage
from studies.disentanglement.first_stage import (
    SCORES_FILE,
    ceiling_section,
    is_first_stage,
    score_first_stage,
)

from worldmodel.mddiff.data.array_factors import ArrayFactors
from worldmodel.mddiff.evaluation.scores import EvaluationConfig
from worldmodel.mddiff.models.first_stage import VqConfig, build_vq

TINY = VqConfig(
    channels=4, multipliers=(1, 1), num_res_blocks=1, num_codes=8, mid_attention=False, norm_groups=2
)


def test_a_first_stage_is_scored_and_stands_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    vq = build_vq(TINY)
    vq.quantize.embedding.weight.data[1:] = 1e3  # only the first code is ever nearest
    torch.nn.init.zeros_(vq.decoder.conv_out.weight)
    torch.nn.init.zeros_(vq.decoder.conv_out.bias)  # paints gray 0.5
    model = tmp_path / "vqvae/seed0/model"
    vq.save_pretrained(model)
    assert not is_first_stage(model)
    (model / "contract.json").write_text('{"format": 1, "model": "VQModel"}')
    assert is_first_stage(model)
    dark = ArrayFactors("dark", ("a",), (6,), np.zeros((6, 8, 8), np.uint8))
    monkeypatch.setattr(first_stage, "open_factor_data", lambda _: dark)
    out = tmp_path / f"vqvae/seed0/{SCORES_FILE}"
    result = score_first_stage(model, EvaluationConfig(batch=4), out)
    assert result["psnr"]["mean"] == pytest.approx(10 * np.log10(4), abs=1e-4)  # error 0.5 everywhere
    assert (result["codes_used"], result["num_codes"]) == (1, 8)
    assert json.loads(out.read_text()) == result
    section = ceiling_section(tmp_path, [])
    assert section is not None
    assert section.blocks[0].rows == (("first stage (ceiling): vqvae", "6.02", "1 of 8"),)
    assert "trained longer" in section.blocks[0].note
    assert ceiling_section(tmp_path / "nothing", []) is None
