import collections
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from robotwin_adapters.robotwin.plain_pickle import PickledArray, load_plain_pickle


def to_numpy(value: object) -> np.ndarray:
    assert isinstance(value, PickledArray)
    return value.to_numpy()


ARRAYS = [
    np.arange(12, dtype=np.float64).reshape(3, 4),
    np.asfortranarray(np.arange(12, dtype=np.int16).reshape(3, 4)),
    np.arange(6, dtype=">f4"),
    np.array([True, False]),
    np.zeros((2, 0, 3), np.uint8),
    np.arange(24, dtype=np.uint8).reshape(2, 3, 4)[:, ::2],
    np.float32(1.5),
    np.int64(-3),
]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype.str}{array.shape}")
@pytest.mark.parametrize("core", [b"numpy._core", b"numpy.core"])
def test_arrays_come_back_from_numpy_1_and_2(protocol: int, array: np.ndarray, core: bytes) -> None:
    if core == b"numpy.core" and protocol > 3:
        # Strings carry their length since protocol 4, so the older module name needs its own length.
        data = pickle.dumps({"x": array}, protocol)
        for module in (b"multiarray", b"numeric"):
            new, old = b"numpy._core." + module, b"numpy.core." + module
            data = data.replace(b"\x8c" + bytes([len(new)]) + new, b"\x8c" + bytes([len(old)]) + old)
        start = data.find(b"\x95")
        if start >= 0:
            data = data[: start + 1] + struct.pack("<Q", len(data) - start - 9) + data[start + 9 :]
    else:
        data = pickle.dumps({"x": array}, protocol).replace(b"numpy._core", core)
    loaded = load_plain_pickle(data)
    assert isinstance(loaded, dict)
    again = to_numpy(loaded["x"])
    assert (again.dtype, again.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(again, array)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_containers_come_back(protocol: int) -> None:
    value = {
        "a": [1, 2.5, None, True],
        "b": ("text", b"bytes"),
        "c": {"d": {}},
        "e": -(2**40),
        "f": (1, 2, 3, 4),
    }
    assert load_plain_pickle(pickle.dumps(value, protocol)) == value


class Evil:
    def __init__(self, call: object, *arguments: object) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple:
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Evil(os.system, "false"), "posix.system"),
        (Evil(eval, "1"), r"(builtins|__builtin__).eval"),
        (Evil(getattr, "a", "b"), r"(builtins|__builtin__).getattr"),
        (collections.OrderedDict(a=1), "collections.OrderedDict"),
        (Path("x"), r"pathlib(\._local)?\.PosixPath"),
        (Evil(np.load, "x"), r"numpy.*load"),
    ],
)
def test_other_globals_are_refused_by_name(value: object, named: str, protocol: int) -> None:
    with pytest.raises(ValueError, match=f"asks for {named}"):
        load_plain_pickle(pickle.dumps({"x": value}, protocol))


def test_nothing_runs(tmp_path: Path) -> None:
    target = tmp_path / "made"
    with pytest.raises(ValueError, match="not allowed"):
        load_plain_pickle(pickle.dumps(Evil(os.mkdir, str(target))))
    assert not target.exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x80\x04}r\xff\xff\xff\x7f.", "announces"),  # a memo slot two billion ahead
        (b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\x00\x00}.", "announces"),  # a frame of terabytes
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\x00\x00\x00", "expected"),  # bytes without end
        (b"\x80\x02c__builtin__\neval\n.", "eval"),
        (b"\x80\x02(i__builtin__\neval\n.", "INST"),
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"\x80\x02Pid\n.", "PERSID"),
        (b"\x80\x04cnumpy\ndtype\n}b.", "only name"),  # state for something that is no object
        (b"", "pickle"),
        (b"not a pickle", "pickle|opcode"),
    ],
)
def test_hostile_programs_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_plain_pickle(data)


@pytest.mark.parametrize(
    "array",
    [np.array([{}, []], object), np.array(["a"]), np.array([1 + 2j]), np.array(["2020-01-01"], "M8[D]")],
    ids=["object", "text", "complex", "date"],
)
def test_only_plain_numbers_become_arrays(array: np.ndarray) -> None:
    loaded = load_plain_pickle(pickle.dumps([array]))
    assert isinstance(loaded, list)
    with pytest.raises(ValueError, match="plain numbers"):
        to_numpy(loaded[0])


def test_array_states_that_do_not_agree_are_refused() -> None:
    data = pickle.dumps(np.arange(4, dtype=np.float64), 4)
    for wrong in (data.replace(b"K\x04\x85", b"K\x05\x85"), data.replace(b"f8", b"f4")):
        assert wrong != data
        with pytest.raises(ValueError, match=r"reshape|buffer"):
            to_numpy(load_plain_pickle(wrong))


def nested(depth: int = 60) -> bytes:
    """Opcodes of a tuple that holds the one below it twice: small to write, without end to look at."""
    return b"N" + b"".join(b"q%c" % i + b"h%c" % i + b"\x86" for i in range(depth))


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04}" + nested() + b"K\x01s.",
        b"\x80\x04}(" + nested() + b"K\x01u.",
        b"\x80\x04(" + nested() + b"K\x01d.",
    ],
    ids=["SETITEM", "SETITEMS", "DICT"],
)
def test_keys_that_cannot_be_hashed_in_time_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="keys of a dictionary"):
        load_plain_pickle(data)


@pytest.mark.timeout(20)
def test_codes_and_shapes_without_end_are_named_in_short() -> None:
    dtype = b"cnumpy\ndtype\n" + nested() + b"\x85R"
    array = b"cnumpy._core.numeric\n_frombuffer\n(C\x01x" + dtype + b"K\x01\x85X\x01\x00\x00\x00Ct" + b"R."
    with pytest.raises(ValueError, match="numpy type"):
        to_numpy(load_plain_pickle(b"\x80\x04" + array))
    number = b"cnumpy\ndtype\nX\x02\x00\x00\x00u1\x85R"
    shape = b"cnumpy._core.numeric\n_frombuffer\n(C\x01x" + number + nested() + b"X\x01\x00\x00\x00CtR."
    with pytest.raises(ValueError, match="an array of shape"):
        to_numpy(load_plain_pickle(b"\x80\x04" + shape))


def test_a_stack_that_runs_empty_is_no_pickle() -> None:
    for program in (b"\x80\x04s.", b"\x80\x04u.", b"\x80\x04h\x05.", b"\x80\x04q\x00."):
        with pytest.raises(ValueError, match="not a readable pickle"):
            load_plain_pickle(program)
