"""Fuzzing that is guided by coverage, for readers written in Python: inputs that reach new lines are kept.

pip install atheris
python -m tests.faults.guided NAME --runs 20000 --seconds 120 --corpus FOLDER

A reader may refuse its input with a ValueError. Anything else, more than 10 s or more than 2 GB ends the run
with an error; libFuzzer then names the file that holds the input.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

WATCHED = ["robotwin_adapters", "worldmodel"]  # whose lines count
MAPPING = b"fps: 10.0\naction_names: [a, b]\nembodiment: arm\nvideo: 'films/{id}/{camera}.mp4'\n"
CONFIG = b"regime: acg\nhistory: 1\nidm: {hidden: 16}\nmcl: null\n"
FRAMES = json.dumps({"num_frames": 17, "height": 64, "width": 64, "fps": 12.5, "layout": None}).encode()
HEADER = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
TENSORS = len(HEADER).to_bytes(8, "little") + HEADER + b"\0" * 8
JPEG = bytes.fromhex("ffd8ffe000104a46494600010100000100010000ffc0001108000800080301220002110103110100ffd9")
EXAMPLE = bytes.fromhex(
    "0a3e0a1c0a0c73746570732f726577617264120c120a0a080000803f000000000a120a0773746570732f6e12071a050a0301ac02"
    "0a0a0a017412050a030a0178"
)
PICKLE = b"\x80\x04}\x94(\x8c\x01a\x94]\x94(K\x01G@\x04\x00\x00\x00\x00\x00\x00Ne\x8c\x01b\x94\x8c\x01c\x94u."
SEEDS = {
    "example": EXAMPLE,
    "records": bytes.fromhex("020000000000000078270b3461621cb0f0f4"),
    "pickle": PICKLE,
    "jpeg": JPEG,
    "mapping": MAPPING,
    "json": b'{"a": [[1, 2], [3, 4]], "text": "left"}',
    "jsonl": b'{"a": {"b": 1}}\n{"a": {"b": 2}}\n',
    "csv": b"time,x\n0,1\n1,2\n",
    "contract": FRAMES,
    "config": CONFIG,
    "safetensors": TENSORS,
    "record_lines": b'{"settings": {"a": 1}}\n{"key": "a", "record": {"b": 1}}\n',
}


def readers(folder: Path) -> dict[str, Callable[[bytes], Any]]:
    """Every reader as a function of bytes; imported here, where atheris watches."""
    from robotwin_adapters.annotations import read_annotation
    from robotwin_adapters.arrays.tfrecord import find_records, parse_example
    from robotwin_adapters.mapping import read_mapping
    from robotwin_adapters.robotwin.jpeg import read_header
    from robotwin_adapters.robotwin.plain_pickle import load_plain_pickle
    from robotwin_adapters.storage import errors_name
    from worldmodel.checked import build, parse_json
    from worldmodel.config import load_config
    from worldmodel.evaluation.jsonl_store import read_records
    from worldmodel.models.config import InputSpec, WorldModelConfig
    from worldmodel.tensors import read_headers

    def written(data: bytes, suffix: str) -> Path:
        path = folder / f"input{suffix}"
        path.write_bytes(data)
        return path

    def contract(data: bytes) -> Any:
        return build(InputSpec, parse_json(data.decode("utf-8", "replace"), "input"), "input")

    def pickle(data: bytes) -> Any:
        with errors_name("input"):  # as every caller does
            return load_plain_pickle(data)

    return {
        "example": parse_example,
        "records": lambda data: list(find_records(str(written(data, ".tfrecord")))),
        "pickle": pickle,
        "jpeg": read_header,
        "mapping": lambda data: read_mapping(folder, written(data, ".yaml")),
        "json": lambda data: read_annotation(written(data, ".json")),
        "jsonl": lambda data: read_annotation(written(data, ".jsonl")),
        "csv": lambda data: read_annotation(written(data, ".csv")),
        "contract": contract,
        "config": lambda data: load_config(WorldModelConfig, str(written(data, ".yaml"))),
        "safetensors": lambda data: read_headers([written(data, ".safetensors")]),
        "record_lines": lambda data: read_records(written(data, ".jsonl")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=SEEDS)
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--seconds", type=int, default=0, help="stop after this long; 0: go on")
    parser.add_argument("--corpus", type=Path, required=True, help="folder of inputs that reach new lines")
    arguments = parser.parse_args()
    import atheris  # not a requirement of the project

    corpus = arguments.corpus / arguments.name
    corpus.mkdir(parents=True, exist_ok=True)
    (corpus / "seed").write_bytes(SEEDS[arguments.name])
    with atheris.instrument_imports(include=WATCHED):
        read = readers(Path(tempfile.mkdtemp(prefix="guided_")))[arguments.name]

    def once(data: bytes) -> None:
        with suppress(ValueError):
            read(data)

    limits = ["-timeout=10", "-rss_limit_mb=2048", "-max_len=4096", "-seed=1", f"-runs={arguments.runs}"]
    limits += [f"-max_total_time={arguments.seconds}"]
    faults = f"-artifact_prefix={corpus}_"
    atheris.Setup([sys.argv[0], *limits, faults, str(corpus)], once)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
