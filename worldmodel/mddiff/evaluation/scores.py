"""Score a concept model on a dataset with ground-truth factors:

worldmodel score-concepts OUTPUT/model data.path=rooms out=OUTPUT/scores_last.json
worldmodel score-concepts OUTPUT/model data.path=FILE.npz ica=true out=scores.json

FactorVAE score, DCI and MIG at the reference counts, reconstruction, LPIPS and FID where weights are given.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from worldmodel.checked import check_ranges
from worldmodel.cli_errors import one_way_out
from worldmodel.config import config_parser, load_config
from worldmodel.device import Device, find_device
from worldmodel.diagnostics import check_alignment, dci, factor_vae_score, mig
from worldmodel.evaluation.metrics.generation import AlexNetDistance, frechet_distance, inception_features
from worldmodel.evaluation.metrics.video import mse, psnr, ssim
from worldmodel.files import write_text
from worldmodel.mddiff.data.factors import FactorDataConfig, open_factor_data
from worldmodel.mddiff.data.types import FactorDataset
from worldmodel.mddiff.evaluation.factor_alignment import check_pictures
from worldmodel.mddiff.evaluation.models import SampledPictures, open_concept_model, with_independent_codes
from worldmodel.mddiff.models.protocol import ConceptModel
from worldmodel.report.intervals import mean_estimate
from worldmodel.types import to_uint8, to_unit_range

NOT_COMPUTED = "not computed"  # reported where third-party weights are missing


@dataclass(frozen=True)
class EvaluationConfig:
    """What to measure; the defaults are the sample counts of published results."""

    out: str = ""  # JSON file for the result; empty: print only
    data: FactorDataConfig = field(default_factory=FactorDataConfig)
    ica: bool = False  # replace codes by their independent components first
    num_pictures: int = 0  # random images to encode; 0 = all, as published
    seed: int = 0  # seed of all sampling
    num_votes: int = 10_000  # training votes of the FactorVAE score; half as many are held out
    num_mig: int = 10_000  # points of MIG
    dci_train: int = 10_000  # training samples of DCI; 0 = no DCI
    dci_test: int = 5_000  # test samples of DCI
    jobs: int = 1  # factors of DCI fitted in parallel
    num_reconstructed: int = 1_000  # images for SSIM, PSNR, MSE and LPIPS
    num_fid: int = 10_000  # images for FID
    ddim_steps: int = 50  # sampling steps of diffusion models
    batch: int = 256  # images per batch
    device: Device = "auto"  # of the networks: auto (a GPU if there is one), cpu, cuda or mps
    lpips_alexnet: str = ""  # weights of AlexNet for LPIPS
    lpips_linear: str = ""  # weights of the linear layers of LPIPS
    fid_network: str = ""  # TorchScript Inception for FID

    def __post_init__(self) -> None:
        check_ranges(self, ddim_steps=(1, 1000), batch=(1, 1 << 20), jobs=(1, 1024))


def evaluate(model: ConceptModel, dataset: FactorDataset, config: EvaluationConfig) -> dict[str, Any]:
    """All scores of one model; refuses data whose images and factors are misaligned."""
    started = time.process_time()
    indices = chosen_indices(dataset, config)
    factors = dataset.factors(indices)
    ceiling = guard(dataset, indices, config)
    codes = gather(indices, config.batch, lambda part: encoded(model, dataset, part))
    notes: dict[str, Any] = {}
    if config.ica:
        independent = with_independent_codes(model, codes, seed=config.seed)
        model, codes = independent, independent.components(codes)
        notes["ica_components"] = independent.aligner.num_components_
        aligner = independent.aligner
        notes["ica_converged"] = bool(aligner.converged_[aligner.negentropy_.argmax()])  # of the selected run
    return {
        "data": dataset.name,
        "factor_sizes": list(dataset.factor_sizes),
        "num_pictures": len(indices),
        "scores": code_scores(codes, factors, config),
        "ceiling": ceiling,
        "pictures": picture_scores(model, dataset, config),
        "notes": notes,
        "cpu_seconds": time.process_time() - started,
    }


def chosen_indices(dataset: FactorDataset, config: EvaluationConfig) -> np.ndarray:
    """All images in order, or a random subset."""
    if not 0 < config.num_pictures < len(dataset):
        return np.arange(len(dataset))
    rng = np.random.default_rng(config.seed)
    return np.sort(rng.choice(len(dataset), config.num_pictures, replace=False)).astype(np.int64)


def gather(indices: np.ndarray, batch: int, take: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Apply `take` to indices batch by batch; codes and the alignment test share this code path."""
    return np.concatenate([take(indices[start : start + batch]) for start in range(0, len(indices), batch)])


def encoded(model: ConceptModel, dataset: FactorDataset, indices: np.ndarray) -> np.ndarray:
    """The codes of these images."""
    return model.encode(dataset.images(indices)).cpu().numpy()


def guard(dataset: FactorDataset, indices: np.ndarray, config: EvaluationConfig) -> dict[str, float]:
    """Scores of perfect codes on these images; ValueError if codes would be misaligned with the factors."""
    check_pictures(dataset, seed=config.seed)
    received = gather(indices, config.batch, dataset.factors)
    return check_alignment(received, dataset.factors(indices), seed=config.seed)


def code_scores(codes: np.ndarray, factors: np.ndarray, config: EvaluationConfig) -> dict[str, Any]:
    """Value and 95 % interval of each score."""
    vote = factor_vae_score(
        codes,
        factors,
        seed=config.seed,
        num_train=config.num_votes,
        num_eval=config.num_votes // 2,
        num_variance=config.num_votes,
    )
    gap = mig(codes, factors, seed=config.seed, num_train=config.num_mig)
    scores = {
        "factor_vae": {"value": vote.value, "interval": vote.interval, "num_active": vote.num_active},
        "mig": {"value": gap.value, "interval": gap.interval, "per_factor": gap.per_item.tolist()},
    }
    if not config.dci_train:
        return scores
    fitted = dci(
        codes,
        factors,
        seed=config.seed,
        num_train=config.dci_train,
        num_test=config.dci_test,
        jobs=config.jobs,
    )
    scores["dci"] = {
        "value": fitted.disentanglement,
        "interval": fitted.interval,
        "completeness": fitted.completeness,
        "informativeness": fitted.informativeness,
        "importance": fitted.importance.tolist(),
        "comparable": fitted.comparable,
    }
    return scores


def picture_indices(dataset: FactorDataset, config: EvaluationConfig) -> np.ndarray:
    """Random images to decode; those used for SSIM, PSNR and MSE come first."""
    rng = np.random.default_rng(config.seed)
    count = max(config.num_reconstructed, config.num_fid if config.fid_network else 0)
    return rng.choice(len(dataset), min(count, len(dataset)), replace=False).astype(np.int64)


def picture_scores(model: ConceptModel, dataset: FactorDataset, config: EvaluationConfig) -> dict[str, Any]:
    """Reconstruction quality after encoding and decoding, averaged over images."""
    real = dataset.images(picture_indices(dataset, config))
    made = torch.cat([model.decode(model.encode(part)).cpu() for part in real.split(config.batch)])
    shown, device = slice(0, config.num_reconstructed), find_device(config.device)
    pairs = list(
        zip(made[shown].split(config.batch), to_unit_range(real[shown]).split(config.batch), strict=True)
    )
    metrics: dict[str, Callable[..., torch.Tensor]] = {"ssim": ssim, "psnr": psnr, "mse": mse}
    scores: dict[str, Any] = {"lpips": NOT_COMPUTED, "fid": NOT_COMPUTED}
    if config.lpips_alexnet and config.lpips_linear:
        metrics["lpips"] = AlexNetDistance.load(config.lpips_alexnet, config.lpips_linear).to(device)
    for name, metric in metrics.items():
        values = torch.cat([metric(*pair) for pair in pairs])
        scores[name] = mean_estimate(values.double().numpy()).to_dict()
    if isinstance(model, SampledPictures):
        ceiling = [
            psnr(model.model.first_stage_images(part).cpu(), to_unit_range(part))
            for part in real[shown].split(config.batch)
        ]
        scores["first_stage_psnr"] = mean_estimate(torch.cat(ceiling).double().numpy()).to_dict()
    if config.fid_network:
        features = (
            inception_features(images, config.fid_network, device) for images in (to_uint8(made), real)
        )
        scores["fid"] = {"mean": frechet_distance(*features), "count": len(real)}
    return scores


def score_folder(folder: Path, config: EvaluationConfig) -> dict[str, Any]:
    """Open model and data, evaluate, and save the result with its provenance."""
    model = open_concept_model(folder, ddim_steps=config.ddim_steps, device=config.device)
    result = {"model": str(folder), "evaluation": asdict(config)}
    result |= evaluate(model, open_factor_data(config.data), config)
    if config.out:
        Path(config.out).parent.mkdir(parents=True, exist_ok=True)
        write_text(Path(config.out), json.dumps(result, indent=1) + "\n")
    return result


@one_way_out
def main(argv: list[str] | None = None) -> int:
    parser = config_parser(EvaluationConfig, __doc__)
    parser.add_argument("model", type=Path, metavar="MODEL", help="model folder")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_args(argv)
    result = score_folder(arguments.model, load_config(EvaluationConfig, None, arguments.overrides))
    for name, score in result["scores"].items():
        print(f"{name} {score['value']:.4f} [{score['interval'][0]:.4f}, {score['interval'][1]:.4f}]")
    for name, score in result["pictures"].items():
        print(name, score if isinstance(score, str) else f"{score['mean']:.4f}")
    return 0
