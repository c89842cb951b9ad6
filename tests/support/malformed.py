"""Requests that must be refused: fields of a good one broken in many ways, and bodies that are no JSON."""

import base64
import copy
import io
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

WRONG = [None, "", "text", -1, 1.5, True, [], {}, [[]], "1e999", 10**30, ["x"], {"a": 1}, [None], "\x00"]


def paths(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value, the inner ones too."""
    yield here
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*here, key))


def png(kind: str, size: tuple[int, int]) -> str:
    """Files that are not what is asked for."""
    buffer = io.BytesIO()
    picture = Image.fromarray(np.zeros((*size, 3), np.uint8))
    if kind == "jpeg":
        picture.save(buffer, "JPEG")
    elif kind == "animated":
        picture.save(buffer, "PNG", save_all=True, append_images=[picture.rotate(90)])
    elif kind == "cut":
        picture.save(buffer, "PNG")
        return base64.b64encode(buffer.getvalue()[:60]).decode()
    else:
        picture.convert(kind).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def malformed(good: dict[str, Any], count: int, seed: int = 0) -> Iterator[bytes]:
    """`count` bodies, none of which may be answered by 200."""
    rng = np.random.default_rng(seed)
    text = json.dumps(good)
    picture = good["samples"][0]["context"]["frames"][0]
    size = (picture["height"], picture["width"])
    yield from (b"", b"{", b"null", b"[]", b"\xff\xfe", text[:-1].encode(), b"[" * 5000, b'{"a":' * 500)
    for kind in ("jpeg", "animated", "cut", "L", "P", "RGBA", "1"):
        yield _with(good, ("samples", 0, "context", "frames", 0, "data"), png(kind, size))
    for number in ("NaN", "Infinity", "-Infinity", "1e400"):
        spoiled = json.loads(text)
        spoiled["samples"][0]["actions"][0][0] = "HERE"
        yield json.dumps(spoiled).replace('"HERE"', number).encode()
    ignored = {("samples", 0, "context", "states"), ("samples", 0, "context", "instruction")}
    places = [place for place in paths(good) if place and place not in ignored]
    made = 8 + 7 + 4
    while made < count:
        place = places[rng.integers(len(places))]
        wrong = WRONG[rng.integers(len(WRONG))]
        if _is_harmless(good, place, wrong):
            continue
        made += 1
        yield (
            _without(good, place)
            if rng.random() < 0.2 and isinstance(place[-1], str)
            else _with(good, place, wrong)
        )


def _is_harmless(good: dict[str, Any], place: tuple[Any, ...], wrong: Any) -> bool:
    """Other values that are as good: any text is a sample id, a number an action; such are left out."""
    if place[-1] == "sample_id" and isinstance(wrong, str):
        return True
    is_number = isinstance(wrong, int | float) and not isinstance(wrong, bool)
    if "actions" in place and isinstance(place[-1], int) and isinstance(place[-2], int):
        return is_number or wrong is True
    if place[-1] == "seed":
        return wrong is True
    return place[-1] == "actions" and wrong == [] and "context" in place


def _with(good: dict[str, Any], place: tuple[Any, ...], value: Any) -> bytes:
    spoiled = copy.deepcopy(good)
    inner = spoiled
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return json.dumps(spoiled).encode()


def _without(good: dict[str, Any], place: tuple[Any, ...]) -> bytes:
    spoiled = copy.deepcopy(good)
    inner = spoiled
    for key in place[:-1]:
        inner = inner[key]
    del inner[place[-1]]
    return json.dumps(spoiled).encode()
