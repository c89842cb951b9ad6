"""Encode the empty prompt once, so that training never loads the text encoder:

worldmodel encode-prompt Wan-AI/Wan2.1-T2V-1.3B-Diffusers outputs/wan/empty_prompt.safetensors
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from worldmodel.cli_errors import one_way_out
from worldmodel.files import write_tensors
from worldmodel.models.backbone import PROMPT_KEY, load_empty_prompt_embedding


@one_way_out
def main(argv: Sequence[str] | None = None) -> int:
    """Write the file that `model.prompt` names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pipeline", help="Wan pipeline: a folder or a hub id")
    parser.add_argument("file", type=Path, help="safetensors file to write")
    arguments = parser.parse_args(argv)
    embedding = load_empty_prompt_embedding(arguments.pipeline)
    write_tensors(arguments.file, {PROMPT_KEY: embedding})
    print(f"{arguments.file}: {tuple(embedding.shape)}")
    return 0
