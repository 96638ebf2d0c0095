"""The ids of a dense matrix as entries: PruneDenseAndFillEmptyRows.

mark_dense -> Device.words(marked.totals, 2) -> put_dense, and fill_dense if rows are filled
"""

from __future__ import annotations

from fusion.gpu_ops.layout.records import DenseIds, Entries, Marked, Pruned
from fusion.gpu_ops.steps.device import THREADS, Device, blocks_of
from fusion.gpu_ops.steps.sums import numbers, prefix_sums
from fusion.ops.bags.cpu_kernels.prune_dense import DenseRules
from fusion.ops.bags.gpu_steps.prune import fill


def mark_dense(
    device: Device, dense: DenseIds, rules: DenseRules, flags: int, shape: int
) -> tuple[Marked, int]:
    """Finds which ids are entries, and the address of what each stands for, int64.

    Args:
        flags: out, bool [batch], the rows that have no entry.
        shape: out, int64 [2], that of the matrix; 0: nowhere.
    """
    batch, width = dense.batch, dense.width
    count = batch * width
    found, mask, totals = device.reserve(8 * count), device.reserve(4 * count), device.reserve(16)
    empty = numbers(device, batch, 1)
    device.launch("mark_dense", blocks_of(count), THREADS, dense, rules, found, mask, empty)
    device.launch("put_row_flags", blocks_of(batch), THREADS, empty, batch, width, flags, shape)
    offsets = prefix_sums(device, mask, count, totals)
    fillers = prefix_sums(device, empty, batch, totals + 8)
    return Marked(mask, offsets, empty, fillers, totals), found


def put_dense(device: Device, dense: DenseIds, marked: Marked, numbers: int, out: Pruned) -> None:
    """Writes the entries.

    Args:
        marked, numbers: of `mark_dense`.
    """
    blocks = blocks_of(dense.batch * dense.width)
    device.launch("put_dense", blocks, THREADS, dense, marked, numbers, out)


def fill_dense(
    device: Device, dense: DenseIds, marked: Marked, first: int, filler: int, out: Pruned
) -> None:
    """Writes an entry for each row that has none.

    Args:
        first: the entries that there are, behind which these come.
        filler: their id.
    """
    entries = Entries(0, dense.out_kind, first, 0, dense.batch, 0, 0, 0)
    fill(device, entries, marked, first, filler, 0, out)
