"""Reads from a training log whether the contrast of a model trained with MCL was learned."""

import json
import math
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from worldmodel.mcl.info_nce import is_learned
from worldmodel.report.figures import INK, PALETTE, save_figure, styled
from worldmodel.report.page import Figures, Section, Text, Verdict

LAST_SHARE = 0.2  # final share of the run that is averaged
COLUMNS = ("mcl", "mcl_accuracy", "mcl_chance", "mcl_chance_high", "mcl_direct", "mcl_generator_share")


def contrast_records(model: Path) -> list[dict[str, float]]:
    """What the run of this model folder logged of its contrast, step by step; may be empty.

    `mcl_generator` comes from the training step where that measures it, else from the last validation.
    """
    log = model.parent / "log.jsonl"
    if not log.is_file():
        return []
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    measured = [line["mcl_generator"] for line in lines if "mcl_generator" in line]
    records = [
        {key: line[key] for key in ("step", *COLUMNS, "mcl_generator") if key in line}
        for line in lines
        if line.get("kind") == "train" and "mcl_chance" in line
    ]
    if records and measured:
        records[-1].setdefault("mcl_generator", measured[-1])
    return records


def contrast_section(records: list[dict[str, float]], path: Path) -> list[Section]:
    """Report section with a verdict and a curve of the contrast; empty for a run without MCL."""
    if not records:
        return []
    _draw(path, records)
    caption = "Share of rows that find their own action among those of the batch, step by step."
    blocks: tuple[Any, ...] = (contrast_verdict(records), Figures(((path, caption),)))
    note = (
        "A row is a generated latent frame. A critic that sees the actions can solve the contrast without "
        "the network. Only what the network itself does with the actions counts."
    )
    return [Section("Does the network learn the contrast?", (*blocks, Text(note)))]


def contrast_verdict(records: list[dict[str, float]]) -> Verdict:
    """Learned by the generator or not, with the numbers of each path."""
    last = records[-max(1, round(LAST_SHARE * len(records))) :]
    found = {key: _mean(last, key) for key in (*COLUMNS, "mcl_generator")}
    by_generator, chance = found["mcl_generator"], found["mcl_chance"]
    reasons = [
        f"At the end of the run {found['mcl_accuracy']:.0%} of the rows find their own action, by chance "
        f"{chance:.1%} would. The loss ends at {found['mcl']:.2f}."
    ]
    if not math.isnan(found["mcl_direct"]):
        reasons.append(
            f"With the network's output held constant {found['mcl_direct']:.0%} do. The network makes "
            f"{found['mcl_generator_share']:.0%} of the feature."
        )
    if math.isnan(by_generator):
        reasons.append("Without validation it was not measured what the network alone reaches.")
        return Verdict("Whether the network learned the contrast was not measured.", tuple(reasons), False)
    reasons.append(f"By the network alone, with the mean action shown to the critic, {by_generator:.0%} do.")
    learned = is_learned(by_generator, chance, found["mcl_chance_high"])
    if learned and by_generator < found["mcl_accuracy"] / 2:
        return Verdict("The contrast is mostly solved without the network.", tuple(reasons), False)
    word = "is learned by the network" if learned else "is not learned by the network: it stays near chance"
    return Verdict(f"The contrast {word}.", tuple(reasons), learned)


def _mean(records: list[dict[str, float]], key: str) -> float:
    values = [record[key] for record in records if key in record]
    return sum(values) / len(values) if values else math.nan


@styled
def _draw(path: Path, records: list[dict[str, float]]) -> None:
    figure = Figure(figsize=(5.2, 2.8))
    axis = figure.subplots()
    steps = [record["step"] for record in records]
    axis.plot(steps, [record["mcl_accuracy"] for record in records], color=PALETTE[0], label="accuracy")
    axis.plot(steps, [record["mcl_chance"] for record in records], color=INK, linestyle=":", label="chance")
    axis.set(xlabel="step", ylabel="share of rows", ylim=(0, 1))
    axis.legend()
    save_figure(figure, path)
