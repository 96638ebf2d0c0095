"""Bags of rows gathered before, of the v2 family of ops, on a GPU: checked against NumPy.

Their entries have distinct ids, whose rows were gathered from shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fusion.cpu_ops.column_layout import ColumnAttrs
from fusion.gpu_ops.layout.records import Entries, GatheredRows, GroupOrder
from fusion.runtime.tensorflow.dtypes import DTYPES
from tests.gpu_kernels.columns import combine
from tests.gpu_kernels.references import (
    MEAN,
    SQRTN,
    SUM,
    Doubles,
    bags,
    clipped,
    close,
    doubles,
    kept,
    limit_among,
    same,
)

if TYPE_CHECKING:
    from fusion.ops.bags.gpu_steps.bags import Bags
    from tests.gpu_kernels.device import Gpu

_DIM = 8
#: Combiners, with weights or without, and whether rows are shortened.
_RULES = ((SUM, True, False), (MEAN, False, True), (MEAN, True, False), (SQRTN, True, True))


@dataclass(frozen=True)
class Rows:
    """Gathered rows of shards, in memory and as they are.

    Attributes:
        sizes, firsts: the rows of each shard, and those of all before, and of all.
        shards: address of the address and the rows of each shard.
        values: [rows of all shards, dim].
        row_bytes: of each row.
    """

    sizes: list[int]
    firsts: npt.NDArray[np.int64]
    shards: int
    values: Doubles
    row_bytes: int


def _gathered(gpu: Gpu, draw: np.random.Generator, count: int, stored: str) -> Rows:
    sizes, item = [count - count // 3, 0, count // 3], np.dtype(kept(np.zeros(1), stored).dtype)
    drawn = [gpu.drawn(draw, (size, _DIM), stored) for size in sizes]
    words = [word for (at, _), size in zip(drawn, sizes, strict=True) for word in (at, size)]
    return Rows(
        sizes,
        np.cumsum([0, *sizes]),
        gpu.put_words(words),
        np.concatenate([values for _, values in drawn]),
        item.itemsize * _DIM,
    )


@dataclass(frozen=True)
class Lookup:
    """Entries of bags, in memory and as they are.

    Attributes:
        rows: the gathered rows.
        keys, owners, weights: of each entry: the number of its row among all, its bag, its weight.
        masked: the bags whose entries do not count, [batch].
        ordered, bags: the entries in the order of bags.
        gathered: the rows as kernels take them.
        keys_at, weights_at, masked_at: keys, weights and masks as they take them.
        errors: address of an `ErrorRecord`.
    """

    rows: Rows
    keys: npt.NDArray[np.int64]
    owners: npt.NDArray[np.int64]
    weights: Doubles
    masked: npt.NDArray[np.bool_]
    ordered: GroupOrder
    bags: Bags
    gathered: GatheredRows
    keys_at: int
    weights_at: int
    masked_at: int
    errors: int


def _drawn(
    draw: np.random.Generator, count: int, stored: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """The bags of entries, of which the last has none, their weights, and which bags are masked."""
    masked = draw.random(count // 5 + 2) < 0.2
    masked[0] = True
    owners = draw.integers(0, masked.size - 1, count)
    return owners, kept(draw.uniform(0.25, 2, count), stored), masked


def by_ids(gpu: Gpu, count: int, draw: np.random.Generator, stored: str) -> Lookup:
    """Entries of distinct ids in any order, as many as a third of them."""
    from fusion.ops.bags.gpu_steps.bag_gradient import rows_of_ids
    from fusion.ops.bags.gpu_steps.bags import bags, by_row

    owners, weights, masked = _drawn(draw, count, stored)
    batch, unique = masked.size, count // 3 + 1
    rows, numbers = _gathered(gpu, draw, unique, stored), draw.permutation(unique)
    shards = np.searchsorted(rows.firsts, numbers, side="right") - 1
    permutation = np.stack([shards, numbers - rows.firsts[shards]], 1).astype(np.int32)
    places = draw.integers(0, unique, count)
    indices = np.stack([owners, draw.integers(0, 9, count)], 1)
    errors, counts = gpu.put_words([0] * 4), gpu.reserve(4 * batch)
    weights_at, masked_at = gpu.put(weights), gpu.put(masked)
    places_at, kind = gpu.put(places.astype(np.int32)), DTYPES[stored].code
    pairs, firsts = gpu.put(permutation), gpu.put(rows.firsts)
    gathered = GatheredRows(unique, 3, rows.shards, firsts, rows.row_bytes, pairs)
    given = Entries(0, 0, count, gpu.put(indices), batch, weights_at, kind, weights.itemsize)
    found = bags(gpu, given, places_at, gathered, masked_at, batch, counts, errors)
    same("entries", gpu.get(counts, np.int32, batch), np.bincount(owners, minlength=batch))
    ordered = by_row(gpu, given, errors)
    same("bags", gpu.get(ordered.order, np.int32, count), np.argsort(owners, kind="stable"))
    keys_at = rows_of_ids(gpu, ordered, places_at, gathered, errors)
    return Lookup(
        rows, numbers[places], owners, doubles(weights), masked, ordered, found,
        gathered, keys_at, weights_at, masked_at, errors,
    )  # fmt: skip


def rules_of(stored: str) -> Sequence[tuple[int, bool, bool]]:
    """The rules that are checked for a dtype: all, but one of them in the simulator."""
    from fusion.gpu_ops.language.device import SIMULATED

    return _RULES[DTYPES[stored].code % 4 :][:1] if SIMULATED else _RULES


def check_bags(gpu: Gpu, lookup: Lookup, stored: str) -> float:
    """Combines the rows by each rule; the largest error."""
    from benchmarks.gpu.call import Column
    from fusion.cpu_ops import column_layout

    gpu.check_errors("bags", lookup.errors)
    batch, worst = lookup.masked.size, 0.0
    counts = ~lookup.masked[lookup.owners]
    keys, owners = lookup.keys[counts], lookup.owners[counts]
    for combiner, weighted, is_clipped in rules_of(stored):
        limit = limit_among(lookup.rows.values) if is_clipped else -1.0
        # The addresses of rows are the ids of a table at 0 with rows of a byte.
        column = Column(
            column_layout.ROW_SPLITS, 0, 2**63 - 1, _DIM, lookup.bags.addresses, lookup.owners.size,
            rows=lookup.bags.starts, weights=lookup.bags.weights if weighted else 0,
            attrs={
                ColumnAttrs.prune: 1,
                ColumnAttrs.combiner: combiner,
                ColumnAttrs.max_norm: limit,
            },
        )  # fmt: skip
        mine, _ = combine(gpu, stored, batch, [column], row_bytes=1)
        weights = lookup.weights[counts] if weighted else np.ones(keys.size)
        rows = clipped(lookup.rows.values, limit)[keys]
        wanted = bags(rows, owners, weights, combiner, batch)
        worst = max(worst, close("bags", stored, mine, *wanted))
    return worst


def last_row(gpu: Gpu, count: int, draw: np.random.Generator) -> float:
    """The rows up to the last entry's."""
    from fusion.ops.bags.gpu_steps.bags import last_row as step

    indices = np.sort(draw.integers(0, 2**40, (count, 2)), axis=0)
    errors = gpu.put_words([0] * 4)
    found = step(gpu, gpu.put(indices), count, errors)
    gpu.check_errors("last row", errors)
    same("last row", gpu.words(found, 1), indices[-1:, 0] + 1)
    return 0.0
