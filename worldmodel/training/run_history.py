"""The training history of a shipped model, read from its run and the runs that it started from."""

import dataclasses
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from matplotlib.figure import Figure

from worldmodel.config import load_config
from worldmodel.report.figures import INK, PALETTE, plain, save_figure, styled
from worldmodel.report.page import Table, markdown_table
from worldmodel.training.world_model import TrainConfig

CURVES = {"reconstruction": "latent error", "rollout_psnr": "PSNR of rollouts, dB"}
KINDS: dict[str, dict[str, Any]] = {
    "train": {"color": PALETTE[0], "alpha": 0.35},
    "validation": {"color": PALETTE[1], "marker": "o", "markersize": 3},
}

T = TypeVar("T")


@dataclass(frozen=True)
class Stage:
    """One run: its config as published, its log, and the seeds of its episodes by data path."""

    name: str
    config: TrainConfig
    records: Sequence[Mapping[str, Any]]
    seeds: Mapping[str, str]

    @property
    def num_steps(self) -> int:
        """Optimizer steps in the log."""
        return max((int(record["step"]) for record in self.records), default=0)

    def last(self, key: str) -> float | None:
        """The value of `key` at the last validation."""
        rows = [row for row in self.records if row["kind"] == "validation" and key in row]
        return rows[-1][key] if rows else None


def read_stages(run: Path, published: Callable[[str], str]) -> list[Stage]:
    """The run and its predecessors, oldest first; `published` maps paths to their public form."""
    stages: list[Stage] = []
    runs = [run.resolve()]
    while (runs[-1] / "config.yaml").is_file() and runs[-1] not in runs[:-1]:
        config = load_config(TrainConfig, str(runs[-1] / "config.yaml"))
        records = [json.loads(line) for line in (runs[-1] / "log.jsonl").read_text().splitlines()]
        seeds = {published(path): episode_seeds(Path(path)) for path in config.data.paths}
        name = Path(published(str(runs[-1]))).name
        stages.insert(0, Stage(name, with_texts(config, published), records, seeds))
        if not config.start_from:
            break
        runs.append(Path(config.start_from).resolve().parent)
    return stages


def with_texts(value: T, change: Callable[[str], str]) -> T:
    """Apply a function to every string in a config or JSON value."""
    if isinstance(value, str):
        return change(value)  # type: ignore[return-value]
    if isinstance(value, dict):
        return {key: with_texts(item, change) for key, item in value.items()}  # type: ignore[return-value]
    if isinstance(value, list | tuple):
        return type(value)(with_texts(item, change) for item in value)  # type: ignore[return-value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **with_texts(fields, change))
    return value


def episode_seeds(data: Path) -> str:
    """A description of the seeds that a collected dataset records; empty if there are none."""
    cells = [sorted(map(int, path.read_text().split())) for path in sorted(data.rglob("seed.txt"))]
    if not cells:
        return ""
    low, high = min(cell[0] for cell in cells), max(cell[-1] for cell in cells)
    return f"{sum(map(len, cells))} episodes in {len(cells)} folders, seeds {low} to {high}"


def overrides(base: Any, wanted: Any, prefix: str = "") -> list[str]:
    """The `key=value` overrides that turn one config into the other."""
    words = []
    for field in dataclasses.fields(wanted):
        old, new = getattr(base, field.name, None), getattr(wanted, field.name)
        if dataclasses.is_dataclass(new) and old != new:
            words += overrides(old, new, f"{prefix}{field.name}.")
        elif base is None or old != new:
            words.append(f"{prefix}{field.name}={_as_word(new)}")
    return words


def _as_word(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_as_word, value))}]"
    return value if isinstance(value, str) else json.dumps(value)


def training_section(stages: Sequence[Stage], base: str | None) -> str:
    """Markdown: each stage with its data, steps, seed and last validation, and with `base` its command."""
    rows = []
    for stage in stages:
        start = stage.config.start_from or "random weights"
        data = "; ".join(f"{path} ({seeds})" if seeds else path for path, seeds in stage.seeds.items())
        scores = ("" if value is None else f"{value:.3f}" for value in map(stage.last, CURVES))
        numbers = (str(stage.num_steps), str(stage.config.fit.seed), *scores)
        rows.append((stage.name, start, data or "synthetic", *numbers))
    header = ("stage", "start", "data", "steps", "seed", *CURVES.values())
    lines = ["## Training", "", markdown_table(Table(header, tuple(rows)))]
    if base is not None:
        lines += ["", "```bash"]
        for stage in stages:
            words = overrides(load_config(TrainConfig, base), stage.config)
            quoted = (shlex.quote(word) if set(word) & set(" \"'{}*") else word for word in words)
            lines.append(" ".join(["worldmodel train", base, *quoted]))
        lines.append("```")
    lines += [
        "",
        "The errors are those of the last validation of each stage, on held-out clips of its own data.",
        "`training.yaml` is the resolved config of the last stage; weights are stored in half precision.",
        "",
        "![curves](curves.png)",
    ]
    return "\n".join(lines) + "\n"


@styled
def draw_stages(stages: Sequence[Stage], picture: Path) -> None:
    """Plot training and validation numbers against the steps of all stages."""
    figure = Figure(figsize=(9, 3), layout="constrained")
    axes = figure.subplots(1, len(CURVES), squeeze=False)[0]
    for axis, (key, title) in zip(axes, CURVES.items(), strict=True):
        first = 0
        for stage in stages:
            for kind, style in KINDS.items():
                rows = [row for row in stage.records if row["kind"] == kind and key in row]
                label = kind if rows and kind not in axis.get_legend_handles_labels()[1] else None
                axis.plot(
                    [first + row["step"] for row in rows], [row[key] for row in rows], label=label, **style
                )
            axis.axvline(first, color=INK, linewidth=0.8, linestyle=":")
            name = f" {plain(stage.name)}"
            axis.text(first, 1, name, transform=axis.get_xaxis_transform(), va="top", fontsize=8)
            first += stage.num_steps
        axis.set(title=title, xlabel="step")
        if axis.get_legend_handles_labels()[1]:
            axis.legend()
    save_figure(figure, picture)
