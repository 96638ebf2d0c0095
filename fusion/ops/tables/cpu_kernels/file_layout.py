"""An index of keys in a file, which says in which row of another file each key's row is.

    head        what the index is of, see `FileHead`
    segments    int64 [2**segment_bits + 1]: the first slot of each segment, and the end of the last
    slots       a hash table for each segment, see `FileSlot`; they begin with a line of the cache

The highest bits of a key's hash are its segment. So an index of any number of keys is built segment
by segment, in the memory of one. This module needs no Numba.
"""

from __future__ import annotations

from fusion.runtime.layout import Address, Fields, Flag, Int64, Layout, Words, fields

#: "FUSIONKI", little endian.
MAGIC, VERSION = int.from_bytes(b"FUSIONKI", "little"), 1

_LINE_BYTES = 64


class FileHead(Layout):
    """The first words of the file."""

    magic: Int64
    version: Int64
    key_count: Int64
    is_range: Flag  # keys are 0, 1, 2 and so on: there are no slots
    segment_bits: Int64
    slot_count: Int64
    modified: Int64  # the time of the last change of the file of keys, ns
    inode: Int64  # the number of that file
    checksum: Int64  # CRC-32 of its content
    head_checksum: Int64  # CRC-32 of the fields above and of the segments
    segments: Fields = fields(0)


class FileSlot(Layout):
    """A slot of a hash table with linear probing."""

    key: Int64
    row: Int64  # counted from 1; 0 if the slot is empty


class FileLookup(Layout):
    """What is looked up."""

    index: FileHead  # the file in memory
    slots: Address
    keys: Words  # int64 [count]
    count: Int64
    table_keys: Words  # int64 [key_count], those of the rows
    table: Address  # [key_count, row_bytes]
    row_bytes: Int64
    out: Address  # out: [count, row_bytes], rows of keys that the index has
    found: Address  # out: bool [count], whether it has a key
    is_damaged: Flag  # out: whether a slot has the row of another key, or of none


class FileSpread(Layout):
    """Keys that are counted by segment, or copied to where those of a segment are side by side."""

    segment_bits: Int64
    keys: Words  # int64 [count]
    count: Int64
    first_row: Int64  # that of the first of these keys
    sizes: Words  # int64 [2**segment_bits]; out: how many keys each segment has more
    slots: Address  # out: slots [count]
    ends: Words  # int64 [2**segment_bits]; in: where each segment starts in `slots`; out: its end


class FileFill(Layout):
    """Slots that are brought into the order of a hash table."""

    given: Address  # slots [count]
    count: Int64
    slots: Address  # out: [slot_count], zeros before
    slot_count: Int64
    repeated: Int64  # out: which of the slots has a key that was there before; -1: none


def slots_for(keys: int) -> int:
    """The slots of a segment with so many keys: two thirds of them are in use."""
    return keys + keys // 2 + 1 if keys else 0


def slots_offset(segment_bits: int) -> int:
    """Where slots begin, in bytes from the start of the file."""
    size = 8 * (FileHead.SIZE + (1 << segment_bits) + 1)
    return -(-size // _LINE_BYTES) * _LINE_BYTES
