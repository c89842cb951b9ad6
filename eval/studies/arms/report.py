"""Table and videos of the arm study, from cells.jsonl and the models."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor
from torch.nn.functional import pad

from studies.arms.cells import ArmStudyConfig, Cell, model_folder
from studies.arms.scores import TestClips, arm_pixels, predict
from studies.cells_file import read_cells
from studies.context.cells import RowConfig
from worldmodel.evaluation.held_out import HeldOutClip
from worldmodel.files import write_text
from worldmodel.models.model import WorldModel
from worldmodel.report.intervals import gap_closed, mean_estimate
from worldmodel.types import to_uint8

Records = Mapping[str, Mapping[str, Any]]
FLOOR, CEILING = "plain", "both"  # rows between which the gap is
ALONE = ("alone/left", "alone/right")
NUM_EPISODES, ENLARGED, HEADING, MS_PER_FRAME = 3, 2, 14, 120  # of the video; heading in pixels
NUM_COLORS = 64  # of the video


def write_report(study: ArmStudyConfig) -> list[Path]:
    """RESULTS/tables.md, and arms.gif of the models that are there."""
    results = Path(study.results)
    records = read_cells(results)
    written = [results / "tables.md"]
    write_text(written[0], table(study, records) + "\n")
    seed = study.seeds[0]
    folders = {row.name: model_folder(study, Cell(row, seed)) for row in study.rows}
    models = {name: folder for name, folder in folders.items() if folder.exists()}
    if models:
        written.append(results / "arms.gif")
        write_gif(study, models, written[-1])
    return written


def table(study: ArmStudyConfig, records: Records) -> str:
    """A line for each row and way of predicting, with t intervals over seeds."""
    header = ["trained", "predicted", "both arms", "left arm", "right arm", "one arm alone", "gap closed"]
    header += ["Type D", "contrast", "seeds"]
    lines = [header, ["---"] * len(header)]
    for name in ("static", "ceiling"):
        values = [_text(study, records, study.rows[0], f"{name}/{where}") for where in PLACES]
        lines.append(["-", "first frame" if name == "static" else "autoencoder", *values, *["-"] * 5])
    for row in study.rows:
        for way in ("direct", "added"):
            lines.append(_row(study, records, row, way))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


PLACES = ("moving", "left", "right")


def _row(study: ArmStudyConfig, records: Records, row: RowConfig, way: str) -> list[str]:
    values = [_text(study, records, row, f"{way}/{where}") for where in PLACES]
    one_arm = [seed_values(study, records, row.name, name) for name in ALONE]
    seeds = one_arm[0].keys() & one_arm[1].keys()
    means = [(one_arm[0][seed] + one_arm[1][seed]) / 2 for seed in seeds]
    is_direct = way == "direct"
    effects = [_text(study, records, row, name, 3) for name in ("type_d", "contrast")]
    return [
        *(row.name, way, *values),
        mean_estimate(means).text(2) if is_direct else "-",
        _gap(study, records, row.name, way),
        *(effects if is_direct else ["-", "-"]),
        str(len(means)),
    ]


def _gap(study: ArmStudyConfig, records: Records, row: str, way: str) -> str:
    """Share of the way from the plain model to the one that saw both arms, over seeds."""
    key = f"{way}/moving"
    columns = [
        seed_values(study, records, FLOOR, "direct/moving"),
        seed_values(study, records, row, key),
        seed_values(study, records, CEILING, "direct/moving"),
    ]
    seeds = sorted(set.intersection(*(set(column) for column in columns)))
    floor, made, ceiling = ([column[seed] for seed in seeds] for column in columns)
    return gap_closed(floor, made, ceiling, higher_is_better=True).percent() if seeds else "-"


def _text(study: ArmStudyConfig, records: Records, row: RowConfig, name: str, digits: int = 2) -> str:
    return mean_estimate(list(seed_values(study, records, row.name, name).values())).text(digits)


def seed_values(study: ArmStudyConfig, records: Records, row: str, name: str) -> dict[int, float]:
    """Seed -> number, where there is one."""
    found = {seed: records.get(f"{row}/seed{seed}", {}).get(name) for seed in study.seeds}
    return {seed: float(value) for seed, value in found.items() if value is not None}


@torch.no_grad()
def write_gif(study: ArmStudyConfig, folders: Mapping[str, Path], path: Path) -> None:
    """Truth and the direct prediction of each row beside each other, an episode in each line."""
    columns: dict[str, list[Tensor]] = {}
    for name, folder in folders.items():
        model = WorldModel.from_pretrained(folder)
        episodes = _most_moving(TestClips(vars(study.test), study.episodes).open(model))
        columns.setdefault("truth", [truth["both"].frames for truth in episodes])
        columns[name] = [
            torch.cat([truth["both"].frames[:1], predict(model, truth, seed)["both"]])
            for seed, truth in enumerate(episodes)
        ]
    frames = [_sheet(columns, number) for number in range(len(columns["truth"][0]))]
    frames += [frames[-1]] * 4
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=MS_PER_FRAME, loop=0)


def _most_moving(episodes: list[dict[str, HeldOutClip]]) -> list[dict[str, HeldOutClip]]:
    """Those in which the arm that is seen less moves most pixels."""

    def seen(truth: dict[str, HeldOutClip]) -> int:
        masks = arm_pixels(truth)
        return min(int(masks[arm].sum()) for arm in ("left", "right"))

    return sorted(episodes, key=seen, reverse=True)[:NUM_EPISODES]


def _sheet(columns: Mapping[str, Sequence[Tensor]], number: int) -> Image.Image:
    """One frame of all videos, under the names of the columns."""
    # A white line to the right of and below each picture.
    framed = [
        [pad(video[number], (0, 1, 0, 1), value=1.0) for video in videos] for videos in columns.values()
    ]
    sides = [torch.cat(videos, 1) for videos in framed]
    picture = to_uint8(torch.cat(sides, 2)).permute(1, 2, 0).numpy()
    picture = np.repeat(np.repeat(picture, ENLARGED, 0), ENLARGED, 1)
    sheet = Image.new("RGB", (picture.shape[1], picture.shape[0] + HEADING), "white")
    sheet.paste(Image.fromarray(picture), (0, HEADING))
    draw, width = ImageDraw.Draw(sheet), picture.shape[1] // len(columns)
    for place, name in enumerate(columns):
        draw.text((place * width + 4, 1), name, fill="black")
    return sheet.quantize(NUM_COLORS)
