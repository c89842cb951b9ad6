"""The effect of MCL, seed by seed: rows with MCL minus the same further steps without it."""

from collections.abc import Sequence

import numpy as np

from studies.disentanglement.tables import COLUMNS, ScoredModel
from worldmodel.report.intervals import Estimate, mean_estimate
from worldmodel.report.page import Section, Table, Text

CONTROL = "mddiff_longer"  # the same start, steps and data, lambda_MCL = 0
MCL_ROWS = "mcl_"  # prefix of their names
MEASURES = {"DCI": "DCI disentanglement", "FactorVAE": "the FactorVAE score", "MIG": "MIG", "PSNR": "PSNR"}


def paired_difference(model: ScoredModel, control: ScoredModel, title: str) -> Estimate:
    """Mean of model - control over the seeds that both have."""
    theirs = dict(zip((folder.name for folder in control.folders), control.values(title), strict=True))
    ours = zip((folder.name for folder in model.folders), model.values(title), strict=True)
    return mean_estimate(np.array([value - theirs[seed] for seed, value in ours if seed in theirs], float))


def in_words(difference: Estimate, measure: str, digits: int) -> str:
    """A sentence on the effect, as far as the interval supports it."""
    if not difference.count:
        return f"{measure} was not computed."
    if difference.count == 1:
        return f"One seed cannot show a difference in {measure} ({difference.text(digits)})."
    if difference.low > 0:
        return f"It raises {measure} ({difference.text(digits)})."
    if difference.high < 0:
        return f"It lowers {measure} ({difference.text(digits)})."
    return f"No difference in {measure} is shown ({difference.text(digits)})."


def effect_section(models: Sequence[ScoredModel]) -> Section | None:
    """Table and sentences on the last weights, which involve no selection.

    None without the necessary rows.
    """
    last = {model.name: model for model in models if model.point == "last"}
    tuned = [model for name, model in last.items() if name.startswith(MCL_ROWS)]
    if CONTROL not in last or not tuned:
        return None
    control = last[CONTROL]
    rows, sentences = [], []
    for model in tuned:
        differences = {title: paired_difference(model, control, title) for title in MEASURES}
        shown = {title: one.text(COLUMNS[title][2]) for title, one in differences.items()}
        rows.append((model.title, str(differences["FactorVAE"].count), *shown.values()))
        words = [in_words(differences[title], name, COLUMNS[title][2]) for title, name in MEASURES.items()]
        sentences.append(Text(f"{model.title}: {' '.join(words)}"))
    note = (
        f"Per seed: the row's last weights less those of {control.title} (same start, steps and data, "
        "without MCL). Mean with its 95 % t interval, not corrected for the number of comparisons."
    )
    table = Table(("with MCL", "seeds", *MEASURES), tuple(rows), note=note)
    return Section(f"What MCL changes: rows with MCL less {control.title}", (table, *sentences))
