"""What we read of a parquet footer is what pyarrow reads, and damage is refused before pyarrow sees it."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robotwin_adapters.lerobot.footer import unpacked_bytes

COLUMNS = {
    "numbers": [1.0, 2.0, 3.0],
    "texts": ["a", None, "c"],
    "lists": [[1], [], [2, 3]],
    "nested": [[[1.0], [2.0, 3.0]], None, [[]]],
    "images": [{"bytes": b"x", "path": "a.png"}, None, {"bytes": None, "path": ""}],
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table(COLUMNS), path, row_group_size=2, store_schema=False)
    return path


def as_pyarrow_counts(path: Path) -> int:
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    return sum(max(8 * column.num_values, column.total_uncompressed_size) for column in columns)


def test_sizes_are_those_that_pyarrow_reads(file: Path) -> None:
    assert unpacked_bytes(str(file), (0, 0)) == as_pyarrow_counts(file) > 0


def outcome(path: Path, number: int) -> str:
    try:
        return str(unpacked_bytes(str(path), (number, 1)))
    except ValueError as error:
        return str(error)


def test_any_byte_of_a_footer_may_break(file: Path) -> None:
    """Each file is read, or refused by its name; another exception fails."""
    data = file.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    refused = 0
    for place in range(len(data) - 8 - length, len(data) - 8, 5):
        file.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        found = outcome(file, place)
        assert found.isdigit() or str(file) in found, place
        refused += not found.isdigit()
    assert refused > length / 5 / 4


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" * 3, b"PAR1\xff\xff\xff\x7fPAR1"])
def test_what_has_no_footer_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"table\.parquet: cannot be read as parquet"):
        unpacked_bytes(str(path), (0, 0))
