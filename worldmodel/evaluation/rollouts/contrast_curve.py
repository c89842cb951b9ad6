"""Reads from a training log whether the contrast of a model trained with MCL was learned."""

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from worldmodel.report.figures import INK, PALETTE, save_figure, styled
from worldmodel.report.page import Figures, Section, Text, Verdict

LAST_SHARE = 0.2  # final share of the run that is averaged
LEARNED = 3.0  # times chance: an accuracy below counts as not learned


def contrast_records(model: Path) -> list[dict[str, float]]:
    """Step, loss, accuracy and chance level of the contrast from the run of this model folder.

    May be empty.
    """
    log = model.parent / "log.jsonl"
    if not log.is_file():
        return []
    records = [json.loads(line) for line in log.read_text().splitlines()]
    return [
        {key: record[key] for key in ("step", "mcl", "mcl_accuracy", "mcl_chance")}
        for record in records
        if record.get("kind") == "train" and "mcl_chance" in record
    ]


def contrast_section(records: list[dict[str, float]], path: Path) -> list[Section]:
    """Report section with a verdict and a curve of the contrast; empty for a run without MCL."""
    if not records:
        return []
    _draw(path, records)
    caption = "Share of rows that find their own action among those of the batch, step by step."
    blocks: tuple[Any, ...] = (contrast_verdict(records), Figures(((path, caption),)))
    note = "A row is a generated latent frame: how its latent changes the picture must tell its actions."
    return [Section("Is the contrast learned?", (*blocks, Text(note)))]


def contrast_verdict(records: list[dict[str, float]]) -> Verdict:
    """Learned or at chance level, with the numbers."""
    last = records[-max(1, round(LAST_SHARE * len(records))) :]
    accuracy, chance, loss = (
        sum(record[key] for record in last) / len(last) for key in ("mcl_accuracy", "mcl_chance", "mcl")
    )
    is_learned = accuracy > LEARNED * chance
    word = "is learned" if is_learned else "is not learned: it stays near chance"
    reason = (
        f"At the end of the run {accuracy:.0%} of the rows find their own action, by chance {chance:.1%} "
        f"would. The loss ends at {loss:.2f}."
    )
    return Verdict(f"The contrast {word}.", (reason,), is_learned)


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
