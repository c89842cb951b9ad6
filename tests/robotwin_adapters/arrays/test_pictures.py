"""Pictures from outside are opened in a few formats only: some start another program."""

import ast
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import EpsImagePlugin, Image

from robotwin_adapters.arrays.pictures import decode_picture
from robotwin_adapters.lerobot.rows import ParquetImages
from worldmodel.context_module.data.folders import read_picture

ROOT = Path(__file__).parents[3]
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n{} loop\n%%EOF\n"


def test_a_program_in_a_picture_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *given, **named: started.append(given))
    file = tmp_path / "data" / "chunk-000" / "file.parquet"
    file.parent.mkdir(parents=True)
    pq.write_table(pa.table({"episode_index": [0], "eye": [{"bytes": EPS, "path": None}]}), file)
    picture = tmp_path / "eye.png"
    picture.write_bytes(EPS)
    with pytest.raises(ValueError, match="cannot be decoded"):
        decode_picture("eye", EPS)
    with pytest.raises(ValueError, match="cannot be decoded"):
        ParquetImages(str(file), "eye", 0, 1, (8, 8)).read([0])
    with pytest.raises(ValueError, match="no readable picture"):
        read_picture(picture)
    assert not started


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP"])
def test_usual_formats_are_read(kind: str) -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), 100, np.uint8)).save(buffer, kind)
    assert np.abs(decode_picture("eye", buffer.getvalue()).astype(int) - 100).max() < 3


@pytest.mark.parametrize("package", ["worldmodel", "robotwin_adapters"])
def test_no_picture_is_opened_without_a_list_of_formats(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            if ast.unparse(call.func) in ("Image.open", "PIL.Image.open"):
                assert "formats" in {word.arg for word in call.keywords}, f"{path}:{call.lineno}"
