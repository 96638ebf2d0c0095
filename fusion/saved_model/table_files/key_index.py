"""The file of an index of keys: what `EmbeddingKeyIndex` and `AddEmbeddingKeys` make in memory.

It is written for keys that are all known, in memory of the same size whatever their number is:
they are sorted into ranges of buckets, and the buckets of a range are written at once. Most of what
an index has room for are holes in the file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fusion.ops.tables.cpu_kernels.layout import (
    BUCKET_BYTES,
    KEYS,
    LOAD_TENTHS,
    STRIPES,
    KeyIndex,
    index_bytes,
)
from fusion.saved_model.errors import ModelError, reason_of

#: Of keys that are in memory at a time.
BLOCK = 1 << 18

#: A key and the number of its row, as they are sorted.
_ENTRY = np.dtype([("key", "<i8"), ("row", "<i4")])

#: A bucket; rows are numbered from 1, 0 is none.
_BUCKET = np.dtype([("keys", "<i8", KEYS), ("rows", "<i4", KEYS), ("next", "<i4")])

#: How often the key of each row was seen, and the last step.
_RECORD = np.dtype([("count", "<i4"), ("step", "<i4")])

_MAX_STEP = 2**31 - 1


@dataclass(frozen=True)
class SavedKeys:
    """Keys as a checkpoint has them.

    Attributes:
        keys: int64 [n].
        counts: int32 [n], how often each was seen.
        steps: int64 [n], when it was seen last; -1 for keys without a row.
    """

    keys: SavedVector
    counts: SavedVector
    steps: SavedVector

    def blocks(self) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
        """Yields keys that have a row and the records of these rows, in the order of the rows."""
        for keys, counts, steps in zip(
            self.keys.blocks(), self.counts.blocks(), self.steps.blocks(), strict=True
        ):
            has_row = steps >= 0
            records = np.empty(np.count_nonzero(has_row), _RECORD)
            records["count"] = counts[has_row]
            records["step"] = np.minimum(steps[has_row], _MAX_STEP)
            yield keys[has_row], records


@dataclass(frozen=True)
class SavedVector:
    """A vector in a file.

    Attributes:
        file, offset, count: where its elements are, and how many there are.
        dtype: of these.
    """

    file: Path
    offset: int
    count: int
    dtype: str

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Yields its elements, at most `BLOCK` at a time.

        Raises:
            ModelError: the file cannot be read, or ends too early.
        """
        try:
            source = open(self.file, "rb")  # noqa: SIM115
        except OSError as error:
            raise ModelError(f"{self.file}: cannot be read: {reason_of(error)}") from error
        with source:
            source.seek(self.offset)
            for first in range(0, self.count, BLOCK):
                size = min(BLOCK, self.count - first)
                block = np.fromfile(source, self.dtype, size)
                if len(block) < size:
                    raise ModelError(f"{self.file}: truncated or damaged (it ends too early)")
                yield block


def count_rows(saved: SavedKeys) -> int:
    """Returns how many of the keys have a row.

    Raises:
        ModelError: they cannot be read.
    """
    return sum(int(np.count_nonzero(steps >= 0)) for steps in saved.steps.blocks())


def write_key_index(saved: SavedKeys, rows: int, head: NDArray[np.int64], out: BinaryIO) -> None:
    """Writes the file of an index in which the k-th key that has a row has row k.

    Args:
        saved: the keys.
        rows: how many of them have one, at least 1.
        head: that of an empty index of so many rows.
        out: an empty file.

    Raises:
        ModelError: the keys cannot be read.
        OSError: the file cannot be written.
    """
    head = head.copy()
    buckets = max(STRIPES, -(-10 * rows // (LOAD_TENTHS * KEYS)))
    step = _write_records(saved, int(head[KeyIndex.records]), out)
    more = 0
    with tempfile.TemporaryFile(dir=Path(out.name).parent) as scratch:
        for first, count, entries in _ranges(saved, rows, buckets, scratch):
            in_range, chained = _buckets(entries, first, count, buckets, more)
            _write(out, int(head[KeyIndex.buckets]) + BUCKET_BYTES * first, in_range)
            _write(out, int(head[KeyIndex.more]) + BUCKET_BYTES * more, chained)
            more += len(chained)
    head[KeyIndex.bucket_count], head[KeyIndex.more_count] = buckets, more
    head[KeyIndex.key_count] = head[KeyIndex.row_count] = rows
    head[KeyIndex.clock] = step
    _write(out, 0, head)
    out.truncate(index_bytes(rows))


def _write(out: BinaryIO, offset: int, values: NDArray[Any]) -> None:
    out.seek(offset)
    out.write(values.tobytes())


def _write_records(saved: SavedKeys, offset: int, out: BinaryIO) -> int:
    """Writes what is known of the keys of rows; returns the last step."""
    step = 0
    for _, records in saved.blocks():
        _write(out, offset, records)
        offset += records.nbytes
        step = max(step, int(records["step"].max(initial=0)))
    return step


def bucket_numbers(keys: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Returns which of so many buckets keys belong to: see `ops.tables.cpu_kernels.buckets`."""
    value = keys.view(np.uint64)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        value = (value ^ value >> np.uint64(33)) * np.uint64(factor)
    value ^= value >> np.uint64(33)
    whole = STRIPES << ((count // STRIPES).bit_length() - 1)
    number = (value & np.uint64(2 * whole - 1)).astype(np.int64)
    return np.where(number < count, number, number - whole)


def _ranges(
    saved: SavedKeys, rows: int, buckets: int, scratch: BinaryIO
) -> Iterator[tuple[int, int, NDArray[Any]]]:
    """Yields ranges of buckets, the number of the first and how many, and the keys in these."""
    size = -(-buckets // -(-rows // BLOCK))
    counts = np.zeros(-(-buckets // size), np.int64)
    for keys, _ in saved.blocks():
        counts += np.bincount(bucket_numbers(keys, buckets) // size, minlength=len(counts))
    ends = np.cumsum(counts)
    place, row = ends - counts, 1
    for keys, _ in saved.blocks():
        entries = np.empty(len(keys), _ENTRY)
        entries["key"], entries["row"] = keys, np.arange(row, row + len(keys))
        row += len(keys)
        number = bucket_numbers(keys, buckets) // size
        entries = entries[np.argsort(number, kind="stable")]
        sizes = np.bincount(number, minlength=len(counts))
        for k, part in enumerate(np.split(entries, np.cumsum(sizes)[:-1])):
            _write(scratch, _ENTRY.itemsize * int(place[k]), part)
        place += sizes
    for first, end, inside in zip(range(0, buckets, size), ends, counts, strict=True):
        scratch.seek(_ENTRY.itemsize * int(end - inside))
        entries = np.frombuffer(scratch.read(_ENTRY.itemsize * int(inside)), _ENTRY)
        yield first, min(size, buckets - first), entries


def _buckets(
    entries: NDArray[Any], first: int, count: int, buckets: int, more: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns a range of buckets, and those that continue their chains.

    Args:
        entries: the keys in them.
        first, count: the number of the first one, and how many there are in the range.
        buckets: how many there are in all.
        more: how many buckets there are that continue others.
    """
    number = bucket_numbers(entries["key"], buckets) - first
    order = np.argsort(number, kind="stable")
    entries, number = entries[order], number[order]
    sizes = np.bincount(number, minlength=count)
    place = np.arange(len(entries)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    # Of each bucket the chain that continues it, whose buckets are consecutive.
    links = np.maximum(-(-sizes // KEYS) - 1, 0)
    begin = np.cumsum(links) - links
    in_range, chained = np.zeros(count, _BUCKET), np.zeros(int(links.sum()), _BUCKET)
    link, inside = place // KEYS - 1, place % KEYS
    for into, chosen, at in (
        (in_range, link < 0, number),
        (chained, link >= 0, begin[number] + link),
    ):
        into["keys"][at[chosen], inside[chosen]] = entries["key"][chosen]
        into["rows"][at[chosen], inside[chosen]] = entries["row"][chosen]
    in_range["next"] = np.where(links > 0, more + begin + 1, 0)
    chained["next"] = more + 2 + np.arange(len(chained))
    last = (begin + links - 1)[links > 0]
    chained["next"][last] = 0
    return in_range, chained
