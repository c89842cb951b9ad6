"""Tables and pictures of a set from OUTPUT/clips.jsonl."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from worldmodel.evaluation.jsonl_store import read_records
from worldmodel.evaluation.metrics.clips import Paired, by_episode, holm, paired
from worldmodel.types import to_uint8

SHOWN_FRAMES = (4, 8, 12, 16)  # beside the given one
Records = Sequence[Mapping[str, Any]]


def read_split(file: Path, split: str) -> Records:
    """The clips of a split."""
    return [record for record in read_records(file).values() if record["split"] == split]


def column(records: Records, row: str, metric: str) -> list[float | None]:
    """A metric of a row, clip by clip."""
    return [record["rows"].get(row, {}).get(metric) for record in records]


def row_line(records: Records, row: str) -> dict[str, float]:
    """Whole and moving as means over clips, edges as the median."""
    known = {
        metric: [value for value in column(records, row, metric) if value is not None]
        for metric in ("whole", "moving", "edges")
    }
    return {
        "whole": float(np.mean(known["whole"])),
        "moving": float(np.mean(known["moving"])),
        "edges": float(np.median(known["edges"])),
        "clips": len(known["moving"]),
    }


def lead(records: Records, row: str, other: str, metric: str = "moving") -> Paired:
    """How far a row is ahead of another one, by episode."""
    uids = [record["uid"] for record in records]
    ours, theirs = (by_episode(uids, column(records, name, metric)) for name in (row, other))
    return paired(ours, theirs)


def control_leads(records: Records, model: str) -> tuple[dict[str, Paired], dict[str, bool]]:
    """True actions against every control of a model, and which leads hold together."""
    names = {name for record in records for name in record["rows"] if name.startswith(f"{model}/")}
    wrong = sorted(names - {f"{model}/true"})
    leads = {name.partition("/")[2]: lead(records, f"{model}/true", name) for name in wrong}
    return leads, holm({name: found.p for name, found in leads.items()})


def table(records: Records) -> str:
    """All rows, as Markdown."""
    names = dict.fromkeys(name for record in records for name in record["rows"])
    lines = ["| row | whole | moving | edges |", "|---|---|---|---|"]
    for name in names:
        one = row_line(records, name)
        lines.append(f"| {name} | {one['whole']:.2f} | {one['moving']:.2f} | {one['edges']:.2f} |")
    return "\n".join(lines)


def lead_text(found: Paired) -> str:
    """As it stands in a table."""
    return (
        f"{found.mean:+.2f} dB (standard error {found.standard_error:.2f}, "
        f"ahead in {found.ahead} of {found.episodes} episodes)"
    )


def write_sheet(
    file: Path, rows: Sequence[tuple[Float[Tensor, "3 H W"], Float[Tensor, "t 3 H W"]]], scale: int = 2
) -> None:
    """A row for each video: the given frame, then some of those behind it."""
    lines = [
        torch.cat([given, *(video[number - 1] for number in SHOWN_FRAMES)], 2).clamp(0, 1)
        for given, video in rows
    ]
    picture = to_uint8(torch.cat(lines, 1)).permute(1, 2, 0).numpy()
    image = Image.fromarray(picture)
    image.resize((scale * image.width, scale * image.height), Image.Resampling.NEAREST).save(file)
