"""Reads pickles without running the code they may contain.

A pickle is a program. Here it may build plain containers, and numpy arrays by the function names that numpy
pickles use. These names resolve to the small classes below, so numpy never receives unchecked state. The
program is checked before it runs: its opcodes, the sizes it declares, and that dictionary keys are plain.
Keys of nested tuples could share their parts so often that hashing never ends.
"""

import io
import pickle
import pickletools
import reprlib
from collections.abc import Callable

import numpy as np
from numpy import ndarray

NUMBER_CODES = {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"}
# Enough for containers, numbers, strings and arrays in protocols 2 to 5; no extensions, no persistent ids.
ALLOWED_OPCODES = {
    *(
        "PROTO",
        "FRAME",
        "STOP",
        "MARK",
        "MEMOIZE",
        "PUT",
        "BINPUT",
        "LONG_BINPUT",
        "GET",
        "BINGET",
        "LONG_BINGET",
    ),
    *("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *(
        "BINUNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE8",
        "BINBYTES",
        "SHORT_BINBYTES",
        "BINBYTES8",
        "BYTEARRAY8",
    ),
    *("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "DICT", "LIST"),
    *("SETITEM", "SETITEMS", "APPEND", "APPENDS", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"),
}

PLAIN = {"NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"}
PLAIN |= {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
PUTS, GETS = {"MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"}, {"GET", "BINGET", "LONG_BINGET"}
TAKES_TO_MARK = {"TUPLE", "LIST", "DICT", "APPENDS", "SETITEMS"}
# How many items an opcode pops from the stack, and whether its result is plain.
TAKES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "APPEND": 1, "SETITEM": 2}
TAKES |= {"STACK_GLOBAL": 2, "REDUCE": 2, "BUILD": 1}
MAKES = dict.fromkeys(PLAIN, True) | dict.fromkeys(
    ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "LIST", "DICT"), False
)
MAKES |= dict.fromkeys(("BYTEARRAY8", "GLOBAL", "STACK_GLOBAL", "REDUCE"), False)


class PickledDtype:
    """A pickled numpy dtype: a code like "f8", then a state with the byte order."""

    def __init__(self, code: object, *_: object) -> None:
        self.code, self.order = code, "|"

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) < 2 or state[1] not in ("<", ">", "|", "="):
            raise ValueError("a numpy type with an unknown state")
        self.order = state[1]

    def to_numpy(self) -> np.dtype:
        if not isinstance(self.code, str) or self.code not in NUMBER_CODES:
            raise ValueError(f"expected arrays of plain numbers, got numpy type {reprlib.repr(self.code)}")
        return np.dtype(self.order.replace("|", "") + self.code)


class PickledArray:
    """A pickled numpy array, converted only if shape, type and length agree."""

    def __init__(self, *state: object) -> None:
        self.state = state  # shape, dtype, is Fortran order, raw bytes

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise ValueError("a numpy array with an unknown state")
        self.state = state[1:]

    def to_numpy(self) -> ndarray:
        if len(self.state) != 4:
            raise ValueError("a numpy array without contents")
        shape, dtype, is_fortran, raw = self.state
        if not isinstance(dtype, PickledDtype) or not isinstance(raw, bytes | bytearray):
            raise ValueError("expected an array of plain numbers")
        if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(f"an array of shape {reprlib.repr(shape)}")
        return np.frombuffer(raw, dtype.to_numpy()).reshape(shape, order="F" if is_fortran else "C")


class _Word:
    """A callable that pickles may name; it accepts no state, so that one pickle cannot affect the next."""

    def __init__(self, make: Callable[..., object]) -> None:
        self._make = make

    def __call__(self, *arguments: object) -> object:
        return self._make(*arguments)

    def __setstate__(self, state: object) -> None:
        raise ValueError("the pickle changes what it may only name")


def _encode_latin1(text: object, encoding: object) -> bytes:
    if not isinstance(text, str) or encoding != "latin1":
        raise ValueError("expected text in latin1")
    return text.encode("latin1")


ALLOWED_GLOBALS = {
    ("numpy", "ndarray"): _Word(PickledArray),
    ("numpy", "dtype"): _Word(PickledDtype),
    # How protocol 2 spells bytes, and empty bytes.
    ("_codecs", "encode"): _Word(_encode_latin1),
    ("__builtin__", "bytes"): _Word(lambda: b""),
    **{
        (f"numpy.{core}.{module}", name): _Word(make)
        for core in ("core", "_core")  # numpy 1 and 2
        for module, name, make in (
            ("multiarray", "_reconstruct", lambda *_: PickledArray()),
            ("multiarray", "scalar", lambda dtype, raw: PickledArray((), dtype, False, raw)),
            (
                "numeric",
                "_frombuffer",
                lambda raw, dtype, shape, order: PickledArray(shape, dtype, order == "F", raw),
            ),
        )
    },
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> _Word:
        if (module, name) not in ALLOWED_GLOBALS:
            raise ValueError(f"the pickle asks for {module}.{name}, which is not allowed")
        return ALLOWED_GLOBALS[module, name]


class _Keys:
    """Simulates the pickle's stack, tracking only which items are plain."""

    def __init__(self) -> None:
        self.stack: list[bool | None] = []  # True: plain; None: a mark
        self.memo: dict[int, bool] = {}

    def follow(self, name: str, argument: int | str | None) -> None:
        """Apply one opcode; a dictionary key that is not plain is refused."""
        if name == "MARK":
            self.stack.append(None)
        elif name in PUTS:
            self.memo[len(self.memo) if argument is None else int(argument)] = bool(self.stack[-1])
        elif name in GETS:
            assert argument is not None
            self.stack.append(self.memo[int(argument)])
        elif name in TAKES_TO_MARK:
            self._check_keys(name, self._take_to_mark())
        elif name in TAKES:
            taken = [self.stack.pop() for _ in range(TAKES[name])]
            self._check_keys(name, taken[::-1])
        if name in MAKES:
            self.stack.append(MAKES[name])

    def _take_to_mark(self) -> list[bool | None]:
        if None not in self.stack:
            raise IndexError("a list, tuple or dictionary without a start")
        start = len(self.stack) - self.stack[::-1].index(None)
        taken, self.stack = self.stack[start:], self.stack[: start - 1]
        return taken

    def _check_keys(self, name: str, taken: list[bool | None]) -> None:
        if name in ("SETITEM", "SETITEMS", "DICT") and not all(taken[::2]):
            raise ValueError("expected text or numbers as keys of a dictionary, got a container")


def load_plain_pickle(data: bytes) -> object:
    """Load containers, numbers, strings and arrays; anything else is refused by name."""
    keys = _Keys()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if opcode.name not in ALLOWED_OPCODES:
                raise ValueError(f"the pickle uses {opcode.name}, which is not allowed")
            # An unpickler allocates the declared sizes, so they must be plausible.
            limit = {"PUT": count, "BINPUT": count, "LONG_BINPUT": count, "FRAME": len(data)}.get(opcode.name)
            if limit is not None and not 0 <= (argument or 0) <= limit:
                raise ValueError(f"the pickle announces {argument} where at most {limit} is possible")
            keys.follow(opcode.name, argument)
        return _PlainUnpickler(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, RecursionError, IndexError, KeyError) as error:
        raise ValueError(f"not a readable pickle: {error}") from error
