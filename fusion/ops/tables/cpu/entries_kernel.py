"""EmbeddingKeyEntries on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fusion.ops.tables.cpu.layout import SharedVariable
from fusion.ops.tables.cpu.sharing import share_index, unshare
from fusion.ops.tables.cpu_kernels.entries import hold, let_go, write_entries
from fusion.ops.tables.cpu_kernels.layout import KeyIndex
from fusion.ops.tables.cpu_kernels.rows import pending_rows
from fusion.runtime.layout import Words
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.pointers import as_record, as_words, stack_record
from fusion.runtime.tensorflow.spec import OpSpec


@jit
def _new_vector(frame: op.Frame, number: int, count: int, item: int) -> Words:
    return as_words(op.new_output(frame, number, int64(1), count, int64(1), item))


@jit
def _write(frame: op.Frame, index: KeyIndex) -> None:
    """Writes the entries of an index, which is held."""
    count = index.key_count
    keys = _new_vector(frame, int64(0), count, int64(8))
    rows = _new_vector(frame, int64(1), count, int64(8))
    counts = _new_vector(frame, int64(2), count, int64(4))
    steps = _new_vector(frame, int64(3), count, int64(8))
    pending_count = index.pending_rows
    pending = _new_vector(frame, int64(4), pending_count, int64(8))
    aged = _new_vector(frame, int64(5), int64(1), int64(8))
    clock = _new_vector(frame, int64(6), int64(1), int64(8))
    if not op.failed(frame):
        aged[0] = index.aged_rows
        clock[0] = index.clock
        write_entries(index, keys, rows, counts, steps)
        # They are released by one who has read them, and only become more.
        pending_rows(index, pending, pending_count)


def entries(frame: op.Frame) -> None:
    """The kernel body."""
    shared = stack_record(SharedVariable)
    index = as_record(KeyIndex, share_index(frame, int64(0), shared))
    if index != 0:
        hold(index)
        _write(frame, index)
        let_go(index)
    unshare(shared)


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Callable[[op.Frame], None]:
    """The kernel body."""
    return entries
