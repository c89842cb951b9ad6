"""Checks the footer of a parquet file before pyarrow reads it: a damaged one can crash the process.

A footer is a struct in Thrift's compact protocol. It is checked for the column properties that pyarrow
trusts: the number of values, the unpacked size, encryption, and the lengths of histograms.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from worldmodel.checked import check_regular, lfs_hint

MAGIC = b"PAR1"
MAX_BYTES = 256 << 20  # of a footer; a hundred thousand columns take some 30 MB
MAX_DEPTH = 16  # of nested structs and lists
SHORT, NUMBER, BYTES, LIST, SET, STRUCT = 5, 6, 8, 9, 10, 12  # type codes of the protocol: i32, i64 and so on
VARINTS = frozenset((4, SHORT, NUMBER))
FIXED = {1: 0, 2: 0, 3: 1, 7: 8, 13: 16}  # type codes of fixed size: true, false, byte, double, uuid
BYTE_ARRAY = 6  # type code of strings
Reader = Callable[[], Any]


@dataclass(frozen=True)
class Leaf:
    """A column of the schema."""

    kind: int | None
    width: int  # bytes of a number, or of a string of fixed length
    repetition: int  # highest level, as is the next
    definition: int


@lru_cache(maxsize=64)
def unpacked_bytes(path: str, stamp: tuple[int, int]) -> int:
    """The unpacked size of all columns, as declared in the footer; ValueError for a damaged footer."""
    try:
        return _file(Compact(_footer(Path(path))))
    except (IndexError, ValueError) as error:
        reason = "the footer ends too early" if isinstance(error, IndexError) else error
        raise ValueError(lfs_hint(path) or f"{path}: cannot be read as parquet ({reason})") from error


def _footer(path: Path) -> bytes:
    with check_regular(path).open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - 8, 0))
        end = file.read(8)
        length = int.from_bytes(end[:4], "little")
        if size < 12 or end[4:] != MAGIC or not 0 < length <= min(size - 12, MAX_BYTES):
            raise ValueError("it has no footer: the file is cut, or of another kind")
        file.seek(size - 8 - length)
        return file.read(length)


class Compact:
    """Reads Thrift's compact protocol; IndexError at the end of the bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def varint(self) -> int:
        value = shift = 0
        while shift < 70:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise ValueError("a number of more than ten bytes")

    def number(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def struct(self, wanted: Mapping[int, tuple[int, Reader]], depth: int = 0) -> dict[int, Any]:
        """The wanted fields of a struct; those of another type are skipped, as usual for Thrift."""
        found: dict[int, Any] = {}
        number = 0
        while True:
            head = self.data[self.at]
            self.at += 1
            kind = head & 15
            if not kind:
                return found
            number = number + (head >> 4) if head >> 4 else self.number()
            if number in wanted and wanted[number][0] == kind:
                found[number] = wanted[number][1]()
            else:
                self.skip(kind, depth)

    def list_head(self) -> tuple[int, int]:
        """Number and type of the elements."""
        head = self.data[self.at]
        self.at += 1
        count = head >> 4 if head >> 4 < 15 else self.varint()
        if count > len(self.data) - self.at:
            raise ValueError(f"a list of {count}")
        return count, head & 15

    def structs(self, read: Reader) -> list[Any]:
        count, kind = self.list_head()
        if count and kind != STRUCT:
            raise ValueError(f"a list of kind {kind} where structs belong")
        return [read() for _ in range(count)]

    def counted(self, depth: int = 0) -> int:
        """Number of elements of a list, which is skipped."""
        count, kind = self.list_head()
        if kind in (1, 2):  # in lists they take a byte
            self.at += count
        else:
            for _ in range(count):
                self.skip(kind, depth + 1)
        return count

    def skip(self, kind: int, depth: int) -> None:
        if kind in VARINTS:
            while self.data[self.at] > 127:
                self.at += 1
            self.at += 1
        elif kind in FIXED:
            self.at += FIXED[kind]
        elif kind == BYTES:
            length = self.varint()
            self.at += length
        elif depth > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} deep")
        elif kind == STRUCT:
            self.struct({}, depth + 1)
        elif kind in (LIST, SET):
            self.counted(depth)
        else:
            raise ValueError(f"a value of kind {kind}")


def _file(footer: Compact) -> int:
    """Total bytes of all columns in all row groups."""
    number: Reader = footer.number
    element = partial(footer.struct, dict.fromkeys((1, 2, 3, 5), (SHORT, number)))
    sizes = {1: (NUMBER, number), 2: (LIST, footer.counted), 3: (LIST, footer.counted)}
    column: dict[int, tuple[int, Reader]] = {5: (NUMBER, number), 6: (NUMBER, number)}
    column |= {16: (STRUCT, partial(footer.struct, sizes))}
    chunk = {3: (STRUCT, partial(footer.struct, column)), 8: (STRUCT, partial(footer.struct, {}))}
    group = partial(footer.struct, {1: (LIST, partial(footer.structs, partial(footer.struct, chunk)))})
    found = footer.struct(
        {2: (LIST, partial(footer.structs, element)), 4: (LIST, partial(footer.structs, group))}
    )
    leaves = list(_leaves(found.get(2, [])))
    return sum(_group(entry.get(1, []), leaves) for entry in found.get(4, []))


def _leaves(elements: list[dict[int, int]]) -> Iterator[Leaf]:
    """The columns of the schema in order, each with its levels."""
    above = [(elements[0].get(5, 0), 0, 0)] if elements else []  # children to come, levels so far
    for element in elements[1:]:
        while above and above[-1][0] == 0:
            above.pop()
        if not above:
            raise ValueError("the schema has more entries than its tree")
        children, repetition, definition = above.pop()
        above.append((children - 1, repetition, definition))
        way = element.get(3, 0)  # required, optional, repeated
        repetition, definition = repetition + (way == 2), definition + (way in (1, 2))
        if element.get(5, 0) > 0:
            above.append((element[5], repetition, definition))
        elif 1 in element:
            yield Leaf(element[1], max(8, element.get(2, 0)), repetition, definition)


def _group(chunks: list[dict[int, Any]], leaves: list[Leaf]) -> int:
    if len(chunks) != len(leaves):
        raise ValueError(f"a group of rows has {len(chunks)} columns, the schema has {len(leaves)}")
    total = 0
    for number, (chunk, leaf) in enumerate(zip(chunks, leaves, strict=True)):
        column = chunk.get(3, {})
        if 8 in chunk:
            raise ValueError(f"column {number} is encrypted")
        sizes = column.get(16, {})
        for name, level in ((2, leaf.repetition), (3, leaf.definition)):
            if sizes.get(name, 0) not in (0, level + 1):
                raise ValueError(f"column {number} counts {sizes[name]} levels, expected {level + 1}")
        if 1 in sizes and leaf.kind != BYTE_ARRAY:
            raise ValueError(f"column {number} counts bytes of texts, and holds none")
        values, unpacked = column.get(5, 0), column.get(6, 0)
        if values < 0 or unpacked < 0:
            raise ValueError(f"column {number} has {values} values in {unpacked} bytes")
        total += max(leaf.width * values, unpacked)
    return total
