"""The upper bound on picture quality: reconstructions of the first stage, without diffusion."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers.models.autoencoders.vq_model import VQModel

from studies.disentanglement.tables import ScoredModel
from worldmodel.checkpoint.folder import CONTRACT_FILE
from worldmodel.evaluation.metrics.video import psnr
from worldmodel.files import write_text
from worldmodel.hub import load_part
from worldmodel.mddiff.data.factors import open_factor_data
from worldmodel.mddiff.evaluation.scores import EvaluationConfig, picture_indices
from worldmodel.mddiff.models.first_stage import DecoderConditionConfig, FirstStage
from worldmodel.report.intervals import mean_estimate
from worldmodel.report.page import Section, Table
from worldmodel.types import to_unit_range

SCORES_FILE = "scores_first_stage.json"


def is_first_stage(model: Path) -> bool:
    """Whether a model folder holds a VQ-VAE."""
    contract = model / CONTRACT_FILE
    return contract.exists() and json.loads(contract.read_text()).get("model") == "VQModel"


@torch.no_grad()
def score_first_stage(model: Path, config: EvaluationConfig, out: Path) -> dict[str, Any]:
    """PSNR of its reconstructions and the number of used codes, on the pictures of the scores."""
    vq = load_part(VQModel, model).eval()
    stage = FirstStage(vq, DecoderConditionConfig(where="none"), 0)
    dataset = open_factor_data(config.data)
    images = dataset.images(picture_indices(dataset, config))
    values, used = [], set()
    for part in images.split(config.batch):
        codes, _, (_, _, chosen) = vq.quantize(stage.encode(part.float() / 127.5 - 1))
        made = stage.decode(codes, torch.zeros(len(part), 0)) / 2 + 0.5
        values.append(psnr(made.clamp(0, 1), to_unit_range(part)))
        used |= set(chosen.flatten().tolist())
    result = {
        "psnr": mean_estimate(torch.cat(values).double().numpy()).to_dict(),
        "codes_used": len(used),
        "num_codes": vq.quantize.n_e,
    }
    write_text(out, json.dumps(result, indent=1) + "\n")
    return result


def ceiling_section(runs: Path, models: Sequence[ScoredModel]) -> Section | None:
    """First stages, and each diffusion model's decoder on quantized true latents; None if there are none."""
    rows = []
    for name in sorted({file.parent.parent.name for file in runs.glob(f"*/seed*/{SCORES_FILE}")}):
        scores = [json.loads(file.read_text()) for file in sorted(runs.glob(f"{name}/seed*/{SCORES_FILE}"))]
        mean = mean_estimate([score["psnr"]["mean"] for score in scores]).text(2)
        used = np.mean([score["codes_used"] for score in scores])
        rows.append((f"first stage (ceiling): {name}", mean, f"{used:.0f} of {scores[0]['num_codes']}"))
    for model in (model for model in models if model.point == "last"):
        found = [result["pictures"].get("first_stage_psnr") for result in model.results]
        if all(entry is not None for entry in found):
            rows.append((model.title, mean_estimate([entry["mean"] for entry in found]).text(2), ""))
    note = (
        "PSNR of true latents, quantized and decoded: what decoding from concepts cannot exceed. EncDiff has "
        "the decoder of the first stage. MDDiff trains it further in stage 1 and again in stage 2. So its "
        "pictures have the advantage of a decoder that was trained longer."
    )
    table = Table(("decoder", "PSNR", "codes used"), tuple(rows), note=note)
    return Section("First stage (ceiling)", (table,)) if rows else None
