"""Sharded tensors on disk: each process writes and reads its own part, as safetensors, by torch's DCP.

NAME/shard-00001-model-00001-of-00001.safetensors, ...   a file of each process, with the places of its parts
"""

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.api import CheckpointException


def write_shards(folder: Path, tensors: Mapping[str, Tensor], group: ProcessGroup) -> None:
    """Write this process's part; all of the group must call it, and if one fails, all raise an OSError."""
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        dcp.save(dict(tensors), storage_writer=writer, process_group=group)
    except CheckpointException as error:  # no Exception: it would end a thread without a word
        rank, (reason, _) = next(iter(error.failures.items()))
        raise OSError(f"process {rank}: {reason}") from error


def shard_shapes(folder: Path) -> dict[str, Tensor]:
    """Name -> shape and type of each whole tensor, without its values."""
    found = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    return {
        name: torch.empty(part.size, dtype=part.properties.dtype, device="meta")  # type: ignore[union-attr]
        for name, part in found.items()
    }


def read_shards(folder: Path, targets: Mapping[str, Tensor]) -> None:
    """Fill tensors from a checkpoint; a sharded tensor reads only its part, however many processes wrote."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # each process reads on its own
        into = {name: target.detach() for name, target in targets.items()}
        dcp.load(into, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
