"""An index of keys in guarded memory, and what is called on it from Python."""

from __future__ import annotations

import numpy as np

from fusion.ops.tables.cpu_kernels import buckets, entries
from fusion.ops.tables.cpu_kernels import index as key_index
from fusion.ops.tables.cpu_kernels import rows as key_rows
from fusion.ops.tables.cpu_kernels.layout import (
    BUCKET_BYTES,
    KEYS,
    STRIPES,
    Addition,
    KeyIndex,
    index_bytes,
)
from fusion.runtime.native.jit import callable_from_python

begin_index = callable_from_python(key_index.begin_index)
find_rows = callable_from_python(key_index.find_rows)
add_rows = callable_from_python(key_index.add_rows)
remove = callable_from_python(key_index.remove)
retire_row = callable_from_python(key_rows.retire_row)
pending_rows = callable_from_python(key_rows.pending_rows)
release_rows = callable_from_python(key_rows.release_rows)
write_entries = callable_from_python(entries.write_entries)
put_key = callable_from_python(entries.put_key)
hold = callable_from_python(entries.hold)
let_go = callable_from_python(entries.let_go)
fill_rows = callable_from_python(key_rows.fill_rows)
hash_of = callable_from_python(buckets.hash_of)

#: Bytes of a line of the cache.

#: Bytes of a line of the cache.
LINE = 64

_GUARD = 0xA5


class Guarded:
    """Memory at the start of a line, with guards before and behind it."""

    def __init__(self, size: int) -> None:
        self._memory = np.full(size + 4 * LINE, _GUARD, np.uint8)
        start = -self._memory.ctypes.data % LINE + LINE
        self._guards = self._memory[:start], self._memory[start + size :]
        self.bytes = self._memory[start : start + size]
        self.bytes[:] = 0
        self.address = self.bytes.ctypes.data

    def check(self) -> None:
        """Nothing was written outside."""
        for guard in self._guards:
            assert (guard == _GUARD).all()


class Index(Guarded):
    """An index, and the rows of a table beside it."""

    def __init__(self, capacity: int, admission: int = 1, seed: int = 0, samples=None) -> None:
        super().__init__(index_bytes(capacity))
        self.capacity, self.admission = capacity, admission
        self.head = self.bytes[: 8 * KeyIndex.SIZE].view(np.int64)
        begin_index(self.address, capacity, admission, seed, 1)
        self.samples = samples
        self.table = Guarded(0 if samples is None else capacity * samples[0].nbytes)

    @property
    def rows(self):
        """The table [capacity, dim]."""
        return self.table.bytes.view(self.samples.dtype).reshape(self.capacity, -1)

    def find(self, keys) -> list[int]:
        keys = np.ascontiguousarray(keys, np.int64)
        rows = np.full(len(keys), -77)
        find_rows(self.address, keys.ctypes.data, len(keys), rows.ctypes.data)
        return rows.tolist()

    def addition(self, step: int = 1, counts=None):
        """An `Addition`."""
        words = np.zeros(Addition.SIZE, np.int64)
        words[Addition.admission], words[Addition.step] = self.admission, step
        if counts is not None:
            words[Addition.counts] = counts.ctypes.data
        if self.samples is not None:
            words[Addition.table] = self.table.address
            words[Addition.samples] = self.samples.ctypes.data
            words[Addition.sample_count], words[Addition.dim] = self.samples.shape
            words[Addition.item_bytes] = self.samples.itemsize
        return words

    def add(self, keys, counts=None, step: int = 1) -> list[int]:
        return self.add_and_tell(keys, counts, step)[0]

    def add_and_tell(self, keys, counts=None, step: int = 1) -> tuple[list[int], int, int]:
        """The rows, how many keys got one, and how often one found no room."""
        keys = np.ascontiguousarray(keys, np.int64)
        counts = None if counts is None else np.ascontiguousarray(counts, np.int32)
        rows, words = np.full(len(keys), -77), self.addition(step, counts)
        add_rows(self.address, keys.ctypes.data, len(keys), rows.ctypes.data, words.ctypes.data)
        return rows.tolist(), int(words[Addition.added_count]), int(words[Addition.refused_count])

    def remove(self, key: int) -> int:
        return remove(self.address, key) - 1

    def free(self, key: int) -> None:
        """Takes a key out, and lets its row be used again."""
        retire_row(self.address, self.remove(key) + 1)
        release_rows(self.address, self.head[KeyIndex.pending_rows])

    def put(self, key: int, count: int, step: int) -> int:
        words = np.zeros(Addition.SIZE, np.int64)
        return put_key(self.address, key, count, step, words.ctypes.data)

    def pending(self, most: int = 100) -> list[int]:
        rows = np.full(most, -77)
        return rows[: pending_rows(self.address, rows.ctypes.data, most)].tolist()

    def entries(self) -> dict[int, tuple[int, int, int]]:
        """The row, count and last step of each key, as `write_entries` has them."""
        count = int(self.head[KeyIndex.key_count])
        keys, rows, steps = (Guarded(8 * count) for _ in range(3))
        counts = Guarded(4 * count)
        hold(self.address)
        write_entries(self.address, *(m.address for m in (keys, rows, counts, steps)))
        let_go(self.address)
        for memory in (keys, rows, counts, steps):
            memory.check()
        words = [memory.bytes.view(np.int64).tolist() for memory in (keys, rows, steps)]
        found = [*zip(*words, counts.bytes.view(np.int32).tolist(), strict=True)]
        assert len({key for key, *_ in found}) == len(found)
        return {key: (row, times, step) for key, row, step, times in found}

    def record(self, key: int) -> tuple[int, int]:
        """How often a key with a row was seen, and in which step for the last time."""
        (row,) = self.find([key])
        start = self.head[KeyIndex.records] + 8 * row
        seen, step = self.bytes[start : start + 8].view(np.int32).tolist()
        return seen, step

    def counts(self) -> dict[int, int]:
        """What the index has of each key, its row from 1 on, or -n; chains are well formed."""
        found: list[tuple[int, int]] = []
        for number in range(self.head[KeyIndex.bucket_count]):
            at = self.head[KeyIndex.buckets] + BUCKET_BYTES * number
            is_first = True
            while True:
                bucket = self.bytes[at : at + BUCKET_BYTES]
                keys, ints = bucket[: 8 * KEYS].view(np.int64), bucket[8 * KEYS :].view(np.int32)
                here = [(int(k), int(r)) for k, r in zip(keys, ints[:KEYS], strict=True) if r != 0]
                assert here or is_first
                found += here
                if ints[KEYS] == 0:
                    break
                at = self.head[KeyIndex.more] + BUCKET_BYTES * (int(ints[KEYS]) - 1)
                is_first = False
        assert len(dict(found)) == len(found)
        return dict(found)

    def check(self) -> None:
        """Chains have all keys once, no gaps, and nothing was written outside."""
        super().check()
        self.table.check()
        assert not self.head[KeyIndex.locks : KeyIndex.locks + STRIPES].any()
        assert not (self.head[KeyIndex.versions : KeyIndex.versions + STRIPES] & 1).any()
        assert len(self.counts()) == self.head[KeyIndex.key_count]
        assert self.head[KeyIndex.row_count] <= self.capacity
