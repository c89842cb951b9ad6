from pathlib import Path

import numpy as np
from bench.disentanglement import main


def test_both_sides_agree_and_ours_is_faster(tmp_path: Path, capsys) -> None:
    codes = np.random.default_rng(0).normal(size=(46_080, 4)).astype(np.float32)
    np.savez(tmp_path / "codes.npz", VAE=codes)
    # The script itself asserts that both sides give the same scores.
    main([f"codes={tmp_path / 'codes.npz'}", "rounds=1", "dci_train=0"])
    ratio = float(capsys.readouterr().out.split("ratio ")[1].split()[0])
    assert ratio > 3
