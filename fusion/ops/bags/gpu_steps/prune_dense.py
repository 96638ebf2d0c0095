"""The launches of PruneDenseAndFillEmptyRows.

mark_dense -> Device.words(marked.totals, 2) -> put_dense, and fill_dense if rows are filled
"""

from __future__ import annotations

from fusion.gpu_ops.layout.records import DenseIds, Entries, Marks, PrunedEntries
from fusion.gpu_ops.steps.device import THREADS, Device, blocks_of
from fusion.gpu_ops.steps.sums import numbers, prefix_sums
from fusion.ops.bags.cpu_kernels.prune_dense import DenseRules
from fusion.ops.bags.gpu_steps.prune import fill


def mark_dense(
    device: Device, dense: DenseIds, rules: DenseRules, flags: int, shape: int
) -> tuple[Marks, int]:
    """Marks the ids that are entries; also returns the address of the entries' ids, int64.

    Args:
        flags: out, bool [batch], the rows that have no entry.
        shape: out, int64 [2], that of the matrix; 0: nowhere.
    """
    batch, width = dense.batch, dense.width
    count = batch * width
    ids, mask, totals = device.reserve(8 * count), device.reserve(4 * count), device.reserve(16)
    empty = numbers(device, batch, 1)
    device.launch("mark_dense", blocks_of(count), THREADS, dense, rules, ids, mask, empty)
    device.launch("put_row_flags", blocks_of(batch), THREADS, empty, batch, width, flags, shape)
    offsets = prefix_sums(device, mask, count, totals)
    fillers = prefix_sums(device, empty, batch, totals + 8)
    return Marks(mask, offsets, empty, fillers, totals), ids


def put_dense(
    device: Device, dense: DenseIds, marked: Marks, numbers: int, out: PrunedEntries
) -> None:
    """Writes the entries.

    Args:
        marked, numbers: of `mark_dense`.
    """
    blocks = blocks_of(dense.batch * dense.width)
    device.launch("put_dense", blocks, THREADS, dense, marked, numbers, out)


def fill_dense(
    device: Device, dense: DenseIds, marked: Marks, first: int, filler: int, out: PrunedEntries
) -> None:
    """Writes an entry for each row that has none.

    Args:
        first: the number of entries, after which these come.
        filler: their id.
    """
    entries = Entries(0, dense.out_dtype, first, 0, dense.batch, 0, 0, 0)
    fill(device, entries, marked, first, filler, 0, out)
