"""The ids of a dense matrix as entries: PruneDenseAndFillEmptyRows.

mark_dense -> Device.words(marked.totals, 2) -> put_dense, and fill_dense if rows are filled
"""

from __future__ import annotations

from typing import NamedTuple

from fusion.cpu_ops.prune_dense import DenseRules
from fusion.gpu_ops.steps.device import THREADS, Device, blocks_of
from fusion.gpu_ops.steps.prune import Marked
from fusion.gpu_ops.steps.sums import numbers, prefix_sums


class DenseIds(NamedTuple):
    """A matrix of ids.

    Attributes:
        ids, kind: of a kind of integers.
        batch, width: its shape.
        out_kind: the kind of the ids of entries.
    """

    ids: int
    kind: int
    batch: int
    width: int
    out_kind: int


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
    device.launch(
        "mark_dense", blocks_of(count), THREADS,
        dense.ids, dense.kind, count, width, dense.out_kind, int(rules.use_ignored), rules.ignored,
        rules.stride, rules.buckets, rules.bucket_default, rules.least, found, mask, empty,
    )  # fmt: skip
    device.launch("put_row_flags", blocks_of(batch), THREADS, empty, batch, width, flags, shape)
    offsets = prefix_sums(device, mask, count, totals)
    fillers = prefix_sums(device, empty, batch, totals + 8)
    return Marked(mask, offsets, empty, fillers, totals), found


def put_dense(
    device: Device, dense: DenseIds, marked: Marked, numbers: int, ids: int, indices: int
) -> None:
    """Writes the entries.

    Args:
        marked, numbers: of `mark_dense`.
        ids, indices: out, int64 [?, 2] the latter.
    """
    count = dense.batch * dense.width
    device.launch(
        "put_dense", blocks_of(count), THREADS,
        count, dense.width, marked.mask, marked.offsets, numbers, dense.out_kind, ids, indices,
    )  # fmt: skip


def fill_dense(
    device: Device,
    dense: DenseIds,
    marked: Marked,
    first: int,
    filler: int,
    ids: int,
    indices: int,
) -> None:
    """Writes an entry for each row that has none.

    Args:
        first: the entries that there are, behind which these come.
        filler: their id.
        ids, indices: as of `put_dense`.
    """
    device.launch(
        "fill_rows", blocks_of(dense.batch), THREADS,
        dense.batch, marked.empty, marked.fillers, first, filler, dense.out_kind, 0, 0,
        ids, indices, 0,
    )  # fmt: skip
