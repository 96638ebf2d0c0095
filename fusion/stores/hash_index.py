"""The index of a table in files: a file next to its keys, with the row of each.

It is made when it is missing or of other keys, in bounded memory: keys are counted by segment, then
written to the segments that they belong to, and each segment becomes a hash table
(`tables.cpu_kernels.file_layout` has the format). All of that happens to a file of another name,
which takes the index's name when it is on the disk. Of several processes that find no index one
makes it, and the others wait for a lock on that file; the lock of a process that was killed is
gone, and the next process starts over.
"""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fusion.ops.tables.cpu_kernels.file_layout import (
    MAGIC,
    VERSION,
    FileFill,
    FileHead,
    FileLookup,
    FileSlot,
    FileSpread,
    slots_for,
    slots_offset,
)
from fusion.runtime.native import objects
from fusion.runtime.native.compiler import Compilation
from fusion.stores.open_file import OpenFile

_logger = logging.getLogger("fusion")

NAME, _UNFINISHED = "key_index", "key_index.new"

#: Keys that are read at a time, and those of a segment at most if they are spread evenly.
_KEYS_AT_ONCE, _SEGMENT_KEYS = 1 << 20, 1 << 18

_SLOT_BYTES = 8 * FileSlot.SIZE

#: int64 [n].
Words: TypeAlias = NDArray[Any]


class KeyFile:
    """An open file of keys, int64, little endian.

    Attributes:
      count: how many keys it had when it was opened.
    """

    def __init__(self, path: Path) -> None:
        """Opens it.

        Raises:
          OSError: it cannot be opened.
          ValueError: it ends within a key.
        """
        self._file = OpenFile(path)
        self._status = self._file.status
        self.count, rest = divmod(self._status.st_size, 8)
        if rest:
            raise ValueError(f"{path}: has {self._status.st_size} bytes, which are not keys of 8")

    @property
    def path(self) -> str:
        """Where it is."""
        return self._file.name

    def mapped(self) -> Words:
        """All keys, in memory."""
        return self._file.mapped("<i8")

    def check_size(self) -> None:
        """Raises a `ValueError` if the file has another size than when it was opened."""
        self._file.check_size(8 * self.count)

    def read(self, first: int, count: int) -> Words:
        """Some of the keys.

        Raises:
          ValueError: the file has become shorter.
        """
        return np.frombuffer(self._file.read(8 * first, 8 * count), "<i8")

    def blocks(self) -> Iterator[tuple[int, Words]]:
        """The number of the first of some keys, and these."""
        for first in range(0, self.count, _KEYS_AT_ONCE):
            yield first, self.read(first, min(_KEYS_AT_ONCE, self.count - first))

    @property
    def identity(self) -> tuple[int, int, int]:
        """The number of keys, the time of the last change in ns, and the number of the file."""
        return self.count, self._status.st_mtime_ns, self._status.st_ino

    def checksum(self) -> int:
        """CRC-32 of the content."""
        checksum = 0
        for _, keys in self.blocks():
            checksum = zlib.crc32(keys.data, checksum)
        return checksum


class HashIndex:
    """An index in memory, mapped from its file."""

    def __init__(self, file: OpenFile, words: Words, keys: KeyFile) -> None:
        """Takes the index file, its content, and the file of its keys."""
        self._file, self._words = file, words
        self._keys, self._table_keys = keys, keys.mapped()
        offset = slots_offset(int(words[FileHead.segment_bits]))
        self._slots = words.ctypes.data + offset
        self._look_up = _kernel("look_up")

    def look_up(self, keys: Words, table: int, out: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Gathers rows; other threads of Python run meanwhile.

        Args:
          keys: [n].
          table: the address of the rows of all keys of the index.
          out: out: [n, D]; rows of keys that the index does not have stay as they are.

        Returns:
          bool [n]: which keys it has.

        Raises:
          ValueError: a file has become shorter, or the index is damaged.
        """
        # What is mapped beyond the end of a file kills the process that reads it.
        self._keys.check_size()
        self._file.check_size(self._words.nbytes)
        has_row = np.empty(len(keys), np.bool_)
        args = np.zeros(FileLookup.SIZE, np.int64)
        args[FileLookup.index] = self._words.ctypes.data
        args[FileLookup.slots] = self._slots
        args[FileLookup.keys] = keys.ctypes.data
        args[FileLookup.count] = len(keys)
        args[FileLookup.table_keys] = self._table_keys.ctypes.data
        args[FileLookup.table] = table
        args[FileLookup.row_bytes] = 4 * out.shape[1]
        args[FileLookup.out] = out.ctypes.data
        args[FileLookup.found] = has_row.ctypes.data
        self._look_up(args.ctypes.data)
        if args[FileLookup.is_damaged]:
            raise ValueError(f"{self._file.name}: is damaged, remove it")
        return has_row


def open_index(folder: Path, keys: KeyFile) -> HashIndex:
    """Opens the index of a table, which is made if it is missing, damaged or of other keys.

    Slots are not read, which takes as long as to make them; `HashIndex.look_up` checks those that
    it needs. Where the folder cannot be written, or its disk is full, the index is made in memory.

    Args:
      folder: where it is or will be.
      keys: those of the table.

    Raises:
      ValueError: two keys are equal, or keys have disappeared.
    """
    index = _opened(folder / NAME, keys)
    if index is not None:
        return index
    try:
        with _unfinished(folder) as file:
            index = _opened(folder / NAME, keys)  # another process has made it meanwhile
            if index is None:
                _build(keys, file)
                os.fsync(file.descriptor)
                os.replace(folder / _UNFINISHED, folder / NAME)
                file.name = os.fspath(folder / NAME)
                index = HashIndex(file, file.mapped("<i8"), keys)
        return index
    except OSError as error:
        _logger.warning("%s: no index can be kept, it is in memory (%s)", folder, error)
    file = OpenFile(NAME, os.memfd_create(NAME, os.MFD_CLOEXEC))
    _build(keys, file)
    return HashIndex(file, file.mapped("<i8"), keys)


@contextmanager
def _unfinished(folder: Path) -> Iterator[OpenFile]:
    """A file to be written that no other process writes; it is gone if it is not renamed."""
    path, file = folder / _UNFINISHED, None
    while file is None or not _is_at(file, path):
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        file = OpenFile(path, os.open(path, flags, 0o644))
        fcntl.flock(file.descriptor, fcntl.LOCK_EX)
    try:
        os.ftruncate(file.descriptor, 0)
        yield file
    finally:
        if _is_at(file, path):
            os.unlink(path)
        fcntl.flock(file.descriptor, fcntl.LOCK_UN)


def _is_at(file: OpenFile, path: Path) -> bool:
    """Whether an open file still has a name: who had the lock before may have renamed it."""
    try:
        return os.path.samestat(file.status, os.stat(path))
    except FileNotFoundError:
        return False


def _opened(path: Path, keys: KeyFile) -> HashIndex | None:
    """The index of a file if it is one of these keys."""
    try:
        file = OpenFile(path)
        words = file.mapped("<i8")
    except OSError:
        return None
    is_whole = file.status.st_size == words.nbytes >= slots_offset(0) and _is_valid(words)
    if not is_whole or not _is_of(words, keys):
        _logger.warning("%s: is damaged or of other keys", path)
        return None
    return HashIndex(file, words, keys)


def _is_valid(words: Words) -> bool:
    """Whether the head of an index is whole, and the file as long as it says."""
    if words[FileHead.magic] != MAGIC or words[FileHead.version] != VERSION:
        return False
    bits, slots = int(words[FileHead.segment_bits]), int(words[FileHead.slot_count])
    if not 0 <= bits < 48 or 8 * len(words) != slots_offset(bits) + _SLOT_BYTES * slots:
        return False
    return int(words[FileHead.head_checksum]) == _head_checksum(words)


def _head_checksum(words: Words) -> int:
    segments = words[FileHead.segments :][: (1 << int(words[FileHead.segment_bits])) + 1]
    return zlib.crc32(segments.data, zlib.crc32(words[: FileHead.head_checksum].data))


def _is_of(words: Words, keys: KeyFile) -> bool:
    """Whether an index is of these keys: of this file as it is, or of its content."""
    count, modified, inode = (
        int(words[field]) for field in (FileHead.key_count, FileHead.modified, FileHead.inode)
    )
    if (count, modified, inode) == keys.identity:
        return True
    # Copies and archives keep the content, and not always the time.
    return count == keys.count and int(words[FileHead.checksum]) == keys.checksum()


def _build(keys: KeyFile, file: OpenFile) -> None:
    """Writes the index of keys to an empty file.

    Raises:
      ValueError: two keys are equal.
    """
    bits = max(0, (-(-keys.count // _SEGMENT_KEYS) - 1).bit_length())
    sizes = np.zeros(1 << bits, np.int64)
    is_range, checksum = True, 0
    for first, some in keys.blocks():
        checksum = zlib.crc32(some.data, checksum)
        is_range = is_range and bool((some == np.arange(first, first + len(some))).all())
        sizes += _count(bits, some)
    if is_range:
        bits, sizes = 0, np.zeros(1, np.int64)
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum([slots_for(int(size)) for size in sizes], out=starts[1:])
    head = np.zeros(slots_offset(bits) // 8, np.int64)
    head[FileHead.magic], head[FileHead.version] = MAGIC, VERSION
    head[FileHead.key_count], head[FileHead.modified], head[FileHead.inode] = keys.identity
    head[FileHead.is_range], head[FileHead.segment_bits] = is_range, bits
    head[FileHead.slot_count], head[FileHead.checksum] = starts[-1], checksum
    head[FileHead.segments :][: len(starts)] = starts
    head[FileHead.head_checksum] = _head_checksum(head)
    file.write(0, head)
    os.ftruncate(file.descriptor, head.nbytes + _SLOT_BYTES * int(starts[-1]))
    if not is_range:
        _write_slots(keys, file, head.nbytes, starts)


def _write_slots(keys: KeyFile, file: OpenFile, offset: int, starts: Words) -> None:
    """Writes keys to their segments, then makes hash tables of these."""
    segments = len(starts) - 1
    written = np.zeros(segments, np.int64)
    for first, some in keys.blocks():
        slots, ends = _spread(segments.bit_length() - 1, some, first)
        begin = 0
        for segment in np.flatnonzero(np.diff(ends, prepend=0)).tolist():
            part = slots[begin : ends[segment]]
            file.write(offset + _SLOT_BYTES * int(starts[segment] + written[segment]), part)
            written[segment] += len(part)
            begin = ends[segment]
    for segment, count in enumerate(written):
        start = offset + _SLOT_BYTES * int(starts[segment])
        content = file.read(start, _SLOT_BYTES * int(count))
        unordered = np.frombuffer(content, np.int64).reshape(-1, FileSlot.SIZE)
        slots, repeated = _fill(unordered, int(starts[segment + 1] - starts[segment]))
        if repeated >= 0:
            key, row = unordered[repeated]
            raise ValueError(f"{keys.path}: has the key {key} twice, again in row {row - 1}")
        file.write(start, slots)


def _count(bits: int, keys: Words) -> Words:
    """How many of some keys belong to each of 2**bits segments."""
    sizes = np.zeros(1 << bits, np.int64)
    args = np.zeros(FileSpread.SIZE, np.int64)
    args[FileSpread.segment_bits], args[FileSpread.keys] = bits, keys.ctypes.data
    args[FileSpread.count], args[FileSpread.sizes] = len(keys), sizes.ctypes.data
    _kernel("count")(args.ctypes.data)
    return sizes


def _spread(bits: int, keys: Words, first_row: int) -> tuple[Words, Words]:
    """The slots [n, 2] of keys [n], by segment, and the end of each segment in these.

    Args:
      bits: 2**bits segments.
      keys: of rows side by side.
      first_row: the first of these rows.
    """
    sizes = _count(bits, keys)
    ends, slots = np.cumsum(sizes) - sizes, np.empty((len(keys), FileSlot.SIZE), np.int64)
    args = np.zeros(FileSpread.SIZE, np.int64)
    args[FileSpread.segment_bits], args[FileSpread.keys] = bits, keys.ctypes.data
    args[FileSpread.count], args[FileSpread.first_row] = len(keys), first_row
    args[FileSpread.slots], args[FileSpread.ends] = slots.ctypes.data, ends.ctypes.data
    _kernel("spread")(args.ctypes.data)
    return slots, ends


def _fill(unordered: Words, slot_count: int) -> tuple[Words, int]:
    """The hash table [slot_count, 2] of slots [n, 2], and the index of a repeated key, or -1."""
    slots = np.zeros((slot_count, FileSlot.SIZE), np.int64)
    args = np.zeros(FileFill.SIZE, np.int64)
    args[FileFill.given], args[FileFill.count] = unordered.ctypes.data, len(unordered)
    args[FileFill.slots], args[FileFill.slot_count] = slots.ctypes.data, slot_count
    _kernel("fill")(args.ctypes.data)
    return slots, int(args[FileFill.repeated])


@cache
def _kernel(name: str) -> Callable[[int], object]:
    """A function of the kernels' module, compiled: it gets the address of its arguments."""
    symbol = f"file_index_{name}"
    compile_it = Compilation("fusion.ops.tables.cpu_kernels.file_index", name, 1, symbol)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int64)
    return kind(objects.address(symbol, compile_it))
