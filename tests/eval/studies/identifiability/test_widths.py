from pathlib import Path

import numpy as np
import pytest
from studies.identifiability.cells import Cell, load_cells
from studies.identifiability.widths import chosen_widths, study_of, write_choice, write_tables

from worldmodel.md_vae.train import study_cells

CONFIGS = Path("configs/identifiability")
RESULTS = Path("docs/results/identifiability/decoder_width")


def cell(name: str, width: float, elbo: list[float], dim: int = 5, *, learns: bool = False) -> Cell:
    content = {"identity": {"model": {"decoder_std": width, "learns_std": learns}}, "cell": name}
    # The score falls where the bound rises: a choice by MCC would show.
    scores = {"40": {"elbo": elbo, "mcc": [-float(value) for value in elbo]}}
    return Cell(name, "orthogonal", dim, 8, scores, content)


def test_the_width_is_chosen_by_the_bound_alone() -> None:
    cells = [
        cell("ivae_s0.1", 0.1, [40.0, 42.0]),
        cell("ivae_s0.2", 0.2, [41.0, 40.0]),
        cell("ivae_s0.3", 0.3, [99.0, np.nan]),  # diverged on a seed
        cell("ivae_learned", 0.1, [80.0, 80.0], learns=True),  # an arm of its own
        cell("ivae_s0.5", 0.5, [10.0, 10.0], 10),
    ]
    assert chosen_widths(cells) == {("ivae", 5): 0.1, ("ivae", 10): 0.5}
    with pytest.raises(ValueError, match="no cells to choose"):
        write_choice([], Path("never"))


def test_the_study_at_the_chosen_widths_uses_fresh_seeds(tmp_path: Path) -> None:
    search = study_cells(CONFIGS / "decoder_width.yaml", Path("out"))
    assert len(search) == 3 * 6 * 3
    assert {(one.first_seed, one.num_seeds) for one in search} == {(50, 6)}
    for preset in ("concat", "ivae", "beta_vae"):
        (tmp_path / f"{preset}.yaml").write_text((CONFIGS / f"{preset}.yaml").read_text())
    widths = {("concat", 5): 0.1, ("ivae", 5): 0.15, ("beta_vae", 5): 0.2}
    (tmp_path / "chosen.yaml").write_text(study_of(widths))
    cells = {one.cell: one for one in study_cells(tmp_path / "chosen.yaml", Path("out"))}
    assert len(cells) == 6 + 16 + 6
    assert cells["orthogonal_d5_u8_ivae_chosen"].model.decoder_std == 0.15
    assert cells["orthogonal_d5_u8_ivae_at0.3"].model.decoder_std == 0.3
    for one in cells.values():
        assert (one.first_seed, one.num_seeds, one.optimization.epochs) == (100, 12, 200)
        assert (one.optimization.lr, one.optimization.schedule) == (1e-3, "constant")


def test_the_published_tables_and_the_choice_are_those_of_the_cells(tmp_path: Path) -> None:
    cells = load_cells(RESULTS)
    write_tables(cells, tmp_path / "tables.md")
    assert (tmp_path / "tables.md").read_text() == (RESULTS / "tables.md").read_text()
    write_choice(cells, tmp_path / "chosen.yaml")
    assert (tmp_path / "chosen.yaml").read_text() == (CONFIGS / "chosen_width.yaml").read_text()
