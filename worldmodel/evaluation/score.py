"""Score predicted videos against true ones, whoever made them:

worldmodel score PREDICTED TRUTH [key=value ...]         --help lists the keys

Both are folders of videos, .npz arrays or folders of pictures (`video_pairs.py`). Writes OUTPUT/report.html,
report.md, results.json, clips.json, curves.png and videos/ of the best and the worst.

protocol=irasim scores as the IRASim benchmark does: clips of 16 frames of which 15 count, gray and colored,
8 bit, scikit-image's window, both sides through an MP4 file.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import av
import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from worldmodel.checked import check_ranges, read_json
from worldmodel.cli_errors import one_way_out
from worldmodel.config import config_parser, load_config
from worldmodel.data.video import write_video
from worldmodel.device import Device, find_device
from worldmodel.evaluation.controls import static_video
from worldmodel.evaluation.metrics.generation import AlexNetDistance
from worldmodel.evaluation.metrics.video import plain_ssim, psnr, score_video
from worldmodel.evaluation.rollouts.page import (
    PREDICTED,
    horizon_blocks,
    quality_table,
    video_blocks,
)
from worldmodel.evaluation.rollouts.results import STATIC, TRUE, episode_scores, horizon, summarize
from worldmodel.evaluation.video_pairs import CLIP_FRAMES, Pair, find_pairs, missing_clips, read_frames
from worldmodel.files import check_apart, fingerprint, write_json
from worldmodel.hub import CONFIG, find_part, load_part
from worldmodel.models.vae import encode_frames, load_vae
from worldmodel.report.figures import draw_curves
from worldmodel.report.intervals import estimate_of, mean_estimate
from worldmodel.report.page import Page, Section, Table, Text, write_pages
from worldmodel.report.videos import side_by_side
from worldmodel.training.model_data import on_device
from worldmodel.types import num_video_frames, to_uint8, to_unit_range

OTHERS = {  # metric -> (title, digits)
    "ssim_7x7": ("SSIM, 7x7 window (scikit-image's default, WorldArena)", 4),
    "psnr_gray": ("PSNR dB, gray (IRASim, short)", 3),
    "ssim_gray": ("SSIM, gray, 7x7 window (IRASim, short)", 4),
    "psnr_color": ("PSNR dB, color, 8 bit (IRASim, long)", 3),
    "lpips": ("LPIPS 0.1, AlexNet", 4),
    "latent_l2": ("latent L2", 5),
}
GRAY = (9798, 19235, 3735)  # of 2^15: how OpenCV weights red, green and blue of 8 bit
# RT-1, short clips, as listed by AIBuildAI: PSNR and SSIM of gray frames.
PUBLISHED = (
    *(("LVDM", 25.04, 0.815), ("IRASim Video-Ada", 25.45, 0.823), ("IRASim Frame-Ada", 26.05, 0.833)),
    *(("FreeAction", 26.44, 0.840), ("AIBuildAI (Cosmos-Predict2.5 2B, fine-tuned)", 25.56, 0.845)),
)
Measure = Callable[[Float[Tensor, "t 3 H W"]], Float[Tensor, " n"]]


@dataclass(frozen=True)
class ScoreConfig:
    """What is compared, and by what."""

    output: str = "outputs/score"  # folder of the report
    pairs: str = ""  # CSV or JSON that pairs names (predicted, truth, episode); empty: equal names
    protocol: Literal["ours", "irasim"] = "ours"  # irasim: as its published numbers
    given: int = 1  # first frames that the predictor was shown: not scored
    num_frames: int = 0  # cut both sides to so many; 0: they must be equally long
    resize: bool = False  # bring predictions to the size of the truth
    lpips: str = ""  # folder with alexnet-owt-7be5be79.pth and alex.pth; empty: not measured
    latents: str = ""  # folder of an autoencoder (AutoencoderKL or Wan's) for latent L2; empty: not measured
    device: Device = "auto"  # of the networks: auto (a GPU if there is one), cpu, cuda or mps
    videos: int = 6  # in the report: half of them the best, half the worst

    def __post_init__(self) -> None:
        check_ranges(self, given=(1, 1000), num_frames=(0, 1_000_000), videos=(0, 1000))


class Scorer:
    """The metrics of a run, with the networks that some of them need."""

    def __init__(self, config: ScoreConfig) -> None:
        self.config, self.networks, device = config, {}, find_device(config.device)
        self.lpips = self.encode = None
        if config.lpips:
            self.lpips = AlexNetDistance.from_folder(config.lpips).to(device)
            self.networks["lpips"] = _called(Path(config.lpips))
        if config.latents:
            self.encode, name = _load_encoder(config.latents, device)
            self.networks["latent_l2"] = name

    def record(self, pair: Pair) -> tuple[dict[str, Any], dict[str, Float[Tensor, "t 3 H W"]]]:
        """All numbers of a pair, and its videos."""
        made, real = self._frames(pair)
        first = self.config.given
        rows = {
            STATIC: torch.cat([real[:first], static_video(real[first - 1], len(real) - first)]),
            TRUE: made,
        }
        record = {
            **{
                "uid": pair.episode,
                "name": pair.name,
                "source": str(pair.predicted),
                "start": pair.start or 0,
            },
            **{"embodiment": "", "task": pair.name, "num_given": first},
            "rows": {name: self.curves(video, real) for name, video in rows.items()},
        }
        return record, {"truth": real, TRUE: made}

    @torch.no_grad()
    def curves(
        self, made: Float[Tensor, "t 3 H W"], real: Float[Tensor, "t 3 H W"]
    ) -> dict[str, list[float | None]]:
        """Every metric of every scored frame."""
        first = self.config.given
        videos = made[first:], real[first:]
        found = {"ssim_7x7": plain_ssim(*videos)}
        if self.config.protocol == "irasim":
            gray = [to_gray(video) for video in videos]
            found |= {"psnr_gray": psnr(*gray), "ssim_gray": plain_ssim(*gray), "psnr_color": psnr(*videos)}
        if self.lpips is not None:
            found["lpips"] = self.lpips.curve(*videos)
        if self.encode is not None:
            found["latent_l2"] = (self.encode(made) - self.encode(real)).square().flatten(1).mean(1)[1:]
        return score_video(*videos, real[first - 1]) | {name: curve.tolist() for name, curve in found.items()}

    def _frames(self, pair: Pair) -> tuple[Float[Tensor, "t 3 H W"], Float[Tensor, "t 3 H W"]]:
        """Both videos, equally long and large."""
        count = self.config.num_frames or None
        made, real = read_frames(pair.predicted, 0, count), read_frames(pair.truth, pair.start or 0, count)
        if pair.start is not None and count is None:
            real = real[: len(made)]
        if len(made) != len(real) or len(made) <= self.config.given:
            raise ValueError(
                f"{pair.predicted} has {len(made)} frames, {pair.truth} {len(real)}; expected equally many, "
                f"more than given={self.config.given}: set num_frames=N to cut both"
            )
        if made.shape != real.shape and self.config.resize:
            made = F.interpolate(made, real.shape[-2:], mode="bilinear", antialias=True).clamp(0, 1)
        if made.shape != real.shape:
            sizes = [f"{video.shape[-2]}x{video.shape[-1]}" for video in (made, real)]
            raise ValueError(f"{pair.predicted} is {sizes[0]}, {pair.truth} {sizes[1]}: set resize=true")
        if self.config.protocol == "irasim":
            is_cut = (False, pair.start is not None)
            paths = (pair.predicted, pair.truth)
            made, real = (
                video if path.suffix == ".mp4" and not cut else through_mp4(video)
                for video, path, cut in zip((made, real), paths, is_cut, strict=True)
            )
        return made, real


def to_gray(frames: Float[Tensor, "t 3 H W"]) -> Float[Tensor, "t 3 H W"]:
    """Gray levels of 8 bit as OpenCV rounds them, in all three channels."""
    weights = torch.tensor(GRAY).view(3, 1, 1)
    gray = ((to_uint8(frames).int() * weights).sum(1, keepdim=True) + (1 << 14)) >> 15
    return gray.expand(-1, 3, -1, -1).double() / 255


def through_mp4(frames: Float[Tensor, "t 3 H W"]) -> Float[Tensor, "t 3 H W"]:
    """Frames after H.264 at constant rate factor 25, 4 frames a second: imageio's defaults."""
    pictures = to_uint8(frames).permute(0, 2, 3, 1).contiguous().numpy()
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream: Any = container.add_stream("libx264", rate=4, options={"crf": "25"})
        stream.height, stream.width, stream.pix_fmt = *pictures.shape[1:3], "yuv420p"
        for picture in pictures:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    file.seek(0)
    with av.open(file, "r") as container:
        decoded = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return to_unit_range(torch.from_numpy(np.stack(decoded)).permute(0, 3, 1, 2))


def _called(folder: Path) -> str:
    """Weights by their folder and content."""
    return f"{folder.name} ({fingerprint(folder, ('.pth', '.safetensors', '.json'))})"


def _load_encoder(source: str, device: torch.device) -> tuple[Measure, str]:
    """Latents frame by frame (AutoencoderKL) or by groups of four (Wan), and their name in tables."""
    folder = find_part(source, "vae")
    kind = read_json(folder / CONFIG).get("_class_name")
    name = f"{kind}, {_called(folder)}"
    if kind != "AutoencoderKL":
        vae = on_device(load_vae(str(folder)), device)

        def encode(frames: Float[Tensor, "t 3 H W"]) -> Tensor:
            given = frames[None, : _whole(len(frames))].to(device)
            return encode_frames(vae, given)[0].transpose(0, 1).cpu()

        return encode, name
    kind_of_pictures: Any = AutoencoderKL  # diffusers classes carry no types
    image_vae: Any = load_part(kind_of_pictures, folder).requires_grad_(False).eval().to(device)
    scale = image_vae.config["scaling_factor"]
    return (
        lambda frames: torch.cat(
            [image_vae.encode(2 * part.to(device) - 1).latent_dist.mode() * scale for part in frames.split(4)]
        ).cpu(),
        name,
    )


def _whole(count: int) -> int:
    """The frames that whole latent frames show."""
    return num_video_frames(1 + (count - 1) // 4)


def score(predicted: str, truth: str, config: ScoreConfig) -> int:
    """Score all pairs and write the report."""
    check_apart(config.output, predicted, truth)
    is_irasim = config.protocol == "irasim"
    if is_irasim:
        config = replace(config, given=1, num_frames=config.num_frames or CLIP_FRAMES)
    pairs = find_pairs(Path(predicted), Path(truth), config.pairs, cut_clips=is_irasim)
    scorer, output = Scorer(config), Path(config.output)
    records = [scorer.record(pair)[0] for pair in tqdm(pairs, desc="score", unit="video")]
    order = np.argsort([float(episode_scores([record], TRUE, "clip_psnr")[0]) for record in records])
    half = config.videos // 2
    shown = [int(i) for i in dict.fromkeys([*order[::-1][: config.videos - half], *order[:half]])]
    for number in shown:
        videos = scorer.record(pairs[number])[1]
        pictures = iter(side_by_side(videos["truth"], videos[TRUE]))
        write_video(output / "videos" / f"clip{number:03d}.mp4", pictures, 8)
    others = [name for name in OTHERS if name in records[0]["rows"][TRUE]]
    results = {
        "settings": {**asdict(config), "predicted": predicted, "truth": truth},
        "networks": scorer.networks,
        "missing_clips": missing_clips(pairs),
        "best_to_worst": [records[int(i)]["name"] for i in order[::-1]],
        "others": {
            row: {name: mean_estimate(episode_scores(records, row, name)).to_dict() for name in others}
            for row in (STATIC, TRUE)
        },
        **summarize(records),
    }
    write_json(output / "results.json", results)
    write_json(output / "clips.json", records, indent=None)
    page = _page(results, records, shown, output)
    write_pages(page, output)
    print(f"{len(records)} videos; report: {output / 'report.html'}")
    for table in page.sections[1].blocks:
        if isinstance(table, Table):
            print("\n".join(" | ".join(row) for row in (table.header, *table.rows)))
    return 0


def _page(results: dict[str, Any], records: list[dict[str, Any]], shown: Sequence[int], output: Path) -> Page:
    panels = {
        metric: {row: horizon(records, row, metric) for row in (STATIC, TRUE)}
        for metric in ("psnr", "moving_psnr", "ssim")
    }
    draw_curves(output / "curves.png", panels, records[0]["num_given"])
    lead = f"{results['episodes']} episodes, {results['clips']} videos: {results['settings']['predicted']}"
    if missing := results["missing_clips"]:
        lead += f". {len(missing)} clips of the list have no prediction, the first is {missing[0]}"
    rows = {STATIC: results["rows"][STATIC], PREDICTED: results["rows"][TRUE]}
    names = results["best_to_worst"]
    best = f"By the PSNR of a clip, {names[0]} is the best and {names[-1]} the worst; best first."
    sections = [
        Section("Best and worst", (Text(best), *video_blocks(records, shown, output)) if shown else ()),
        Section("Quality", (quality_table(rows), _others_table(results), *_published(results))),
        Section("Along the horizon", tuple(horizon_blocks(results, output, "predictions"))),
    ]
    return Page("Scores of predicted videos", lead, tuple(sections))


def _others_table(results: dict[str, Any]) -> Table:
    """The metrics that the rollout report has not, with their window or network."""
    values, networks = results["others"], results["networks"]
    rows = tuple(
        (
            ": ".join(filter(None, (OTHERS[name][0], networks.get(name)))),
            *(estimate_of(values[row][name]).text(OTHERS[name][1]) for row in (STATIC, TRUE)),
        )
        for name in values[TRUE]
    )
    return Table(("metric", "static frame", PREDICTED), rows, title="Other windows and networks")


def _published(results: dict[str, Any]) -> list[Table]:
    """What others list for the same protocol."""
    if results["settings"]["protocol"] != "irasim":
        return []
    rows = tuple((name, f"{level:.2f}", f"{likeness:.3f}") for name, level, likeness in PUBLISHED)
    note = (
        "As listed by AIBuildAI for RT-1 clips of 16 frames at 256x320; another data set is not comparable."
    )
    return [Table(("published", "PSNR dB, gray", "SSIM, gray"), rows, title="Beside it", note=note)]


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Parse and run."""
    parser = config_parser(ScoreConfig, __doc__)
    parser.add_argument("predicted", metavar="PREDICTED", help="folder of videos of any model")
    parser.add_argument("truth", metavar="TRUTH", help="folder of true videos")
    parser.add_argument("--protocol", choices=("ours", "irasim"), help="the same as protocol=NAME")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_intermixed_args(argv)
    given = [f"protocol={arguments.protocol}"] if arguments.protocol else []
    return score(
        arguments.predicted, arguments.truth, load_config(ScoreConfig, None, [*arguments.overrides, *given])
    )
