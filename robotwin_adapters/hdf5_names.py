"""Checks the name lists of HDF5 files before the HDF5 library reads them: it loops forever on a damaged one.

The names of a group are in a local heap, whose free blocks are a linked list. HDF5 follows the list without a
limit. This module follows it first, from the root group down, and refuses a list that points outside its heap
or contains a cycle. Only the classic group layout, h5py's default, has such lists.
"""

import mmap
import struct

Buffer = bytes | mmap.mmap
SIGNATURE = b"\x89HDF\r\n\x1a\n"
ROOT_ENTRY = 56  # byte of the root group's entry in superblocks of version 0; those of version 1 have 4 more
ENTRY = struct.Struct("<QQIIQQ")  # name, object header, cached kind, unused, B-tree, heap
IS_GROUP = 1  # cached kind of an entry that holds the addresses of a group's B-tree and heap
END = 1  # end marker of a list of free blocks
MAX_GROUPS = MAX_BLOCKS = 100_000


def check_names(data: Buffer) -> None:
    """Refuse a file with a cyclic name list; other damage is reported by HDF5 itself."""
    if data[:8] != SIGNATURE or len(data) < ROOT_ENTRY or data[8] > 1:
        return
    waiting, seen = [_entry(data, ROOT_ENTRY + 4 * data[8])], set[int]()
    while waiting and len(seen) < MAX_GROUPS:
        kind, tree, heap = waiting.pop()
        if kind == IS_GROUP and heap not in seen:
            seen.add(heap)
            _check_heap(data, heap)
            waiting += _members(data, tree)


def _entry(data: Buffer, at: int) -> tuple[int, int, int]:
    """Cached kind, B-tree and heap of the entry at this byte; zeros if it is not a group."""
    try:
        _, _, kind, _, tree, heap = ENTRY.unpack_from(data, at)
    except (struct.error, OverflowError):
        return 0, 0, 0
    return kind, tree, heap


def _check_heap(data: Buffer, heap: int) -> None:
    try:
        signature, size, free, start = struct.unpack_from("<8sQQQ", data, heap)
        if signature != b"HEAP\0\0\0\0":
            return
        # The size may be damaged as well, so a repeated block is the only reliable sign.
        blocks = set[int]()
        while free not in blocks and len(blocks) < MAX_BLOCKS:
            if free == END or free + 16 > size:
                return
            blocks.add(free)
            (free,) = struct.unpack_from("<Q", data, start + free)
    except (struct.error, OverflowError):
        return
    raise ValueError(f"the list of names at byte {heap} never ends")


def _members(data: Buffer, tree: int) -> list[tuple[int, int, int]]:
    """Entries of a group, collected from the nodes of its B-tree."""
    nodes, found, seen = [tree], list[tuple[int, int, int]](), set[int]()
    while nodes and len(seen) < MAX_GROUPS:
        at = nodes.pop()
        if at in seen:
            continue
        seen.add(at)
        try:
            signature, count = struct.unpack_from("<4s2xH", data, at)
            if signature == b"TREE":
                children = struct.unpack_from(f"<{2 * count}Q", data, at + 24)
                nodes += children[1::2]
            elif signature == b"SNOD":
                found += [_entry(data, at + 8 + ENTRY.size * number) for number in range(count)]
        except (struct.error, OverflowError):
            continue
    return found
