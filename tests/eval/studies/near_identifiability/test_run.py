from pathlib import Path

import numpy as np
import pytest
import torch
from studies.cells_file import read_cells
from studies.near_identifiability.cells import StudyConfig, decoder, encode, synthetic_cells, train
from studies.near_identifiability.run import main


def test_a_study_writes_cells_tables_and_figures_and_resumes(tmp_path: Path, capsys) -> None:
    images = np.random.default_rng(0).integers(0, 2, (120, 64, 64), dtype=np.uint8)
    classes = np.stack(np.unravel_index(np.arange(120), (4, 5, 6)), axis=1)
    np.savez(tmp_path / "grid.npz", imgs=images, latents_classes=classes)
    out = tmp_path / "out"
    arguments = [str(out), f"dsprites={tmp_path / 'grid.npz'}", "dsprites_dims=[3]", "sources=[uniform]"]
    arguments += [
        "bends=[0.3]",
        "steps=20",
        "dsprites_steps=3",
        "num_rows=600",
        "seeds=2",
        "width=16",
        "restarts=2",
    ]
    main(arguments)
    names = ["cells.jsonl", "statistical.png", "structural.png", "tables.md"]
    assert sorted(path.name for path in out.iterdir()) == names
    cells = read_cells(out)
    assert list(cells) == ["uniform_bend_0.3", "dsprites_d_3"]
    assert len(cells["uniform_bend_0.3"]["statistical"]) == 1
    assert len(cells["uniform_bend_0.3"]["structural"]) == 2
    assert "| uniform bend 0.3 |" in (out / "tables.md").read_text()
    whole = (out / "cells.jsonl").read_bytes()
    (out / "cells.jsonl").write_bytes(whole[:-7])  # as if it had been killed in the last cell
    capsys.readouterr()
    main(arguments)
    assert capsys.readouterr().out.startswith("dsprites d 3:")
    again = read_cells(out)
    assert again["dsprites_d_3"]["relative_error"] == cells["dsprites_d_3"]["relative_error"]
    assert again["uniform_bend_0.3"] == cells["uniform_bend_0.3"]


def test_the_generator_bends_as_much_as_it_says() -> None:
    config = StudyConfig(sources=("uniform",), bends=(0.0, 0.3), num_rows=600)
    straight, bent = synthetic_cells(config)
    assert straight.facts["generator_ratio_95"] == pytest.approx(1.0)
    assert 1.05 < bent.facts["generator_ratio_median"] < 1.3 / 0.7
    np.testing.assert_allclose(straight.factors.std(0), 1.0, atol=0.1)


def test_seeds_are_trained_apart_and_the_decoder_is_theirs() -> None:
    config = StudyConfig(sources=("laplace",), bends=(0.3,), num_rows=500, seeds=2, width=16, steps=200)
    (cell,) = synthetic_cells(config)
    model, error = train(cell, config)
    runs = encode(model, cell.rows)
    assert not np.allclose(runs[0], runs[1])
    with torch.no_grad():
        whole = model(cell.rows[:50].expand(2, -1, -1))
        for seed in range(2):
            z = torch.from_numpy(runs[seed][:50]).float()
            torch.testing.assert_close(decoder(model, seed)(z), whole[seed], atol=1e-5, rtol=1e-4)
    assert (error < 1.0).all()
