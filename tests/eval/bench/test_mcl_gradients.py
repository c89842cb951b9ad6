from bench.mcl_gradients import main

from worldmodel.models.backbone import WanConfig

TINY = WanConfig(num_layers=1, num_heads=2, head_dim=24, ffn_dim=96, text_dim=32, freq_dim=32)


def test_the_table_has_a_row_for_each_way_and_float32_agrees(monkeypatch, capsys):
    monkeypatch.setattr("bench.mcl_gradients.WIDE", TINY)
    assert main(["--models", "wide"]) == 0
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[0].strip() for row in rows] == [
        f"wide, {way}"
        for way in (
            "float32, one-sided 0.01",
            "float32, central 0.1",
            "bfloat16, central 0.1",
            "bfloat16, one-sided 0.1",
        )
    ]
    for row in rows:
        cosines = [float(cell.split(",")[0]) for cell in row[1:]]
        assert len(cosines) == 5
        assert min(cosines) > (0.99 if "float32" in row[0] else 0.8)


def test_the_desk_model_needs_data(capsys):
    assert main([]) == 2
    assert "DATA" in capsys.readouterr().err
