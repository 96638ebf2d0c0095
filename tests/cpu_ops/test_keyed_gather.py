"""Gathering the rows of keys, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from fusion.ops.tables.cpu_kernels import gather as keyed_gather
from fusion.ops.tables.cpu_kernels.layout import KeyedGather
from fusion.runtime.native.jit import callable_from_python
from tests.cpu_ops.key_index import Guarded, Index

gather = callable_from_python(keyed_gather.gather)
copy_missing = callable_from_python(keyed_gather.copy_missing)

KNOWN = np.arange(0, 400, 2) * 7919


class Gather:
    """A gather of keys in a table of random rows."""

    def __init__(self, dim: int, dtype: str, keys) -> None:
        rng = np.random.default_rng(dim)
        self.index = Index(len(KNOWN))
        self.index.add(KNOWN)
        self.table = rng.normal(size=[len(KNOWN), dim]).astype(dtype)
        self.default = rng.normal(size=dim).astype(dtype)
        self.keys = np.ascontiguousarray(keys, np.int64)
        self.out = Guarded(len(self.keys) * self.table[0].nbytes)
        self.rows = Guarded(8 * len(self.keys))
        self.args = np.zeros(KeyedGather.SIZE, np.int64)
        self.args[KeyedGather.index] = self.index.address
        self.args[KeyedGather.table] = self.table.ctypes.data
        self.args[KeyedGather.default] = self.default.ctypes.data
        self.args[KeyedGather.row_bytes] = self.table[0].nbytes
        self.args[KeyedGather.keys] = self.keys.ctypes.data
        self.args[KeyedGather.rows] = self.rows.address
        self.args[KeyedGather.out] = self.out.address

    def run(self, first: int, end: int) -> None:
        """Gathers some of the keys, and checks them and that nothing else is written."""
        self.out.bytes[:] = 0xEE
        self.rows.bytes[:] = 0xEE
        gather(self.args.ctypes.data, first, end)
        expected, values = self.expected()
        size = self.table[0].nbytes
        found = self.rows.bytes.view(np.int64)
        np.testing.assert_array_equal(found[first:end], expected[first:end])
        out = self.out.bytes.view(self.table.dtype).reshape(len(self.keys), len(self.default))
        np.testing.assert_array_equal(out[first:end], values[first:end])
        for memory, item in ((self.out.bytes, size), (self.rows.bytes, 8)):
            assert (memory[: first * item] == 0xEE).all()
            assert (memory[end * item :] == 0xEE).all()
        self.check()

    def expected(self):
        """The rows of all keys, and their values."""
        rows = np.array(self.index.find(self.keys), np.int64)
        values = self.table[np.maximum(rows, 0)].copy()
        values[rows < 0] = self.default
        return rows, values

    def check(self) -> None:
        for memory in (self.out, self.rows, self.index):
            memory.check()


def some_keys(count: int):
    """Keys of which about half are unknown, some several times."""
    return np.random.default_rng(count).integers(0, 400, count) * 7919


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_of_any_dimension(dtype):
    for dim in range(1, 71):
        Gather(dim, dtype, some_keys(37)).run(0, 37)


@pytest.mark.parametrize("count", [0, 1, 2, 15, 16, 17, 31, 32, 33, 48, 100])
def test_any_number_of_keys(count):
    Gather(5, "float32", some_keys(count)).run(0, count)


@pytest.mark.parametrize("first", [0, 1, 15, 16, 17])
def test_blocks_may_begin_and_end_anywhere(first):
    whole = Gather(3, "float64", some_keys(60))
    for end in range(first, 60):
        whole.run(first, end)


def test_unknown_keys_only():
    whole = Gather(4, "float32", np.arange(50) * 7919 * 2 + 1)
    whole.run(0, 50)
    assert (whole.expected()[0] == -1).all()


@pytest.mark.parametrize("is_noted", [False, True])
def test_known_keys_are_noted_if_asked_for(is_noted):
    keys = some_keys(100)
    whole = Gather(4, "float32", keys)
    words = whole.index.addition(step=6)
    if is_noted:
        whole.args[KeyedGather.addition] = words.ctypes.data
    whole.run(10, 90)
    noted = keys[10:90] if is_noted else []
    before = whole.index.head.copy()
    for key in KNOWN.tolist():
        times = sum(key == other for other in noted)
        assert whole.index.record(key) == (1 + times, 6 if times else 1)
    np.testing.assert_array_equal(whole.index.head, before)
    assert len(whole.index.counts()) == len(KNOWN)  # unknown keys are not added here


def test_rows_that_keys_have_got_are_gathered_again():
    whole = Gather(6, "float32", [0, 1, 7919 * 2, 3, 5])
    whole.run(0, 5)
    rows = whole.rows.bytes.view(np.int64)
    assert (rows[[1, 3, 4]] == -1).all()
    rows[[1, 4]] = 9, 8
    missing = np.array([1, 3, 4])
    copy_missing(whole.args.ctypes.data, 3, missing.ctypes.data)
    out = whole.out.bytes.view(np.float32).reshape(5, 6)
    np.testing.assert_array_equal(out[[1, 4]], whole.table[[9, 8]])
    np.testing.assert_array_equal(out[3], whole.default)
    whole.check()
