"""EmbeddingKeyEntries on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fusion.cpu_ops.keys.entries import hold, let_go, write_entries
from fusion.cpu_ops.keys.layout import KeyIndex
from fusion.cpu_ops.keys.rows import pending_rows
from fusion.ops.cpu.tables.layout import SharedVariable
from fusion.ops.cpu.tables.sharing import share_index, unshare
from fusion.runtime.native.frame import failed, new_output
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, stack_words, store
from fusion.runtime.tensorflow.spec import OpSpec


@jit
def _new_vector(frame: int, number: int, count: int, item: int) -> int:
    return new_output(frame, number, int64(1), count, int64(1), item)


@jit
def _write(frame: int, index: int) -> None:
    """Writes the entries of an index, which is held."""
    count = load(index, KeyIndex.key_count)
    keys = _new_vector(frame, int64(0), count, int64(8))
    rows = _new_vector(frame, int64(1), count, int64(8))
    counts = _new_vector(frame, int64(2), count, int64(4))
    steps = _new_vector(frame, int64(3), count, int64(8))
    pending_count = load(index, KeyIndex.pending_rows)
    pending = _new_vector(frame, int64(4), pending_count, int64(8))
    aged = _new_vector(frame, int64(5), int64(1), int64(8))
    clock = _new_vector(frame, int64(6), int64(1), int64(8))
    if not failed(frame):
        store(aged, 0, load(index, KeyIndex.aged_rows))
        store(clock, 0, load(index, KeyIndex.clock))
        write_entries(index, keys, rows, counts, steps)
        # They are released by one who has read them, and only become more.
        pending_rows(index, pending, pending_count)


def entries(frame: int) -> None:
    """The kernel body."""
    shared = stack_words(SharedVariable.SIZE)
    index = share_index(frame, int64(0), shared)
    if index != 0:
        hold(index)
        _write(frame, index)
        let_go(index)
    unshare(shared)


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[int], None]:
    """The kernel body."""
    return entries
