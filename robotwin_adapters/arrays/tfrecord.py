"""TFRecord files and the tf.train.Example messages in them, without TensorFlow.

A record is its length (8 bytes), a checksum of the length (4), the data, a checksum of the data (4). The
checksums are CRC-32C, rotated and shifted by a constant; all data are verified before use. An Example maps
names to lists of bytes, of float32 or of int64, in protobuf's wire format.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import google_crc32c
import numpy as np
from numpy import ndarray

HEAD_BYTES, TAIL_BYTES = 12, 4
MAX_RECORD_BYTES = 2 << 30  # protobuf's own limit
MASK_SHIFT = 0xA282EAD8
VARINT, FIXED64, LENGTH_DELIMITED, FIXED32 = 0, 1, 2, 5  # protobuf's wire types
BYTES_LIST, FLOAT_LIST, INT64_LIST = 1, 2, 3  # fields of a Feature
Feature = list[bytes] | ndarray


@dataclass(frozen=True)
class Span:
    """Offset, length and checksum of one record's data."""

    offset: int
    length: int


def masked_crc(data: bytes) -> int:
    """The checksum in TFRecord's masked form."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + MASK_SHIFT) & 0xFFFFFFFF


def find_records(path: str) -> Iterator[Span]:
    """The positions of all records in a file; only their headers are read."""
    with open(path, "rb") as file:
        size, offset = file.seek(0, 2), 0
        while offset < size:
            file.seek(offset)
            head = file.read(HEAD_BYTES)
            if len(head) < HEAD_BYTES:
                raise ValueError(f"{path}: cut off in the head of the record at byte {offset}")
            length, crc = struct.unpack("<QI", head)
            if masked_crc(head[:8]) != crc:
                raise ValueError(f"{path}: the length at byte {offset} does not match its checksum")
            start = offset + HEAD_BYTES
            if length > MAX_RECORD_BYTES or start + length + TAIL_BYTES > size:
                raise ValueError(f"{path}: the record at byte {offset} claims {length} bytes, cut off")
            yield Span(start, length)
            offset = start + length + TAIL_BYTES


def read_record(path: str, span: Span) -> bytes:
    """The data of one record, after verifying its checksum."""
    with open(path, "rb") as file:
        file.seek(span.offset)
        data = file.read(span.length + TAIL_BYTES)
    if len(data) != span.length + TAIL_BYTES:
        raise ValueError(f"{path}: cut off in the record at byte {span.offset}")
    if masked_crc(data[:-TAIL_BYTES]) != int.from_bytes(data[-TAIL_BYTES:], "little"):
        raise ValueError(f"{path}: the record at byte {span.offset} does not match its checksum")
    return data[:-TAIL_BYTES]


def parse_example(data: bytes) -> dict[str, Feature]:
    """Name -> list of bytes, float32 array or int64 array."""
    features: dict[str, Feature] = {}
    for _, message in _messages(memoryview(data), 1):
        for _, entry in _messages(message, 1):
            name, value = b"", memoryview(b"")
            for number, part in _messages(entry):
                name, value = (bytes(part), value) if number == 1 else (name, part)
            features[name.decode("utf-8")] = _feature(value)
    return features


def _feature(message: memoryview) -> Feature:
    for kind, content in _messages(message):
        if kind == BYTES_LIST:
            return [bytes(value) for _, value in _messages(content, 1)]
        if kind == FLOAT_LIST:
            return _floats(content)
        if kind == INT64_LIST:
            return _integers(content)
    return []


def _floats(content: memoryview) -> ndarray:
    parts = [np.frombuffer(value, "<f4") for _, value in _messages(content)]  # packed, or one by one
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def _integers(content: memoryview) -> ndarray:
    values: list[int] = []
    for _, value in _fields(content):
        if isinstance(value, int):
            values.append(value)
            continue
        at = 0
        while at < len(value):
            number, at = _varint(value, at)
            values.append(number)
    return np.array(values, np.uint64).astype(np.int64)


def _messages(data: memoryview, only: int | None = None) -> Iterator[tuple[int, memoryview]]:
    """The length-delimited fields: strings, messages and packed lists."""
    for number, value in _fields(data):
        if isinstance(value, memoryview) and only in (None, number):
            yield number, value


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """(field number, value) of a message; numbers of 4 and 8 bytes are returned as bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == LENGTH_DELIMITED:
            length, at = _varint(data, at)
        elif kind in (FIXED32, FIXED64):
            length = 4 if kind == FIXED32 else 8
        else:
            raise ValueError(f"not a protobuf message: wire type {kind}")
        if at + length > len(data):
            raise ValueError("not a protobuf message: a field ends after the message")
        yield key >> 3, data[at : at + length]
        at += length


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Decode a variable-length integer (7 bits per byte, lowest first); also returns where it ends."""
    value = 0
    for place in range(10):
        if at + place >= len(data):
            break
        byte = data[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at + place + 1
    raise ValueError("not a protobuf message: a number has no end")
