"""Gradients of rows and weights on a GPU: checked against NumPy, in each dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fusion.gpu_ops.layout.call import GradientCall
from fusion.gpu_ops.layout.gradient import ColumnGradient
from fusion.gpu_ops.layout.records import GradBags, Gradient
from fusion.runtime.tensorflow.dtypes import DTYPES
from tests.gpu_kernels.bags import Lookup, by_ids, check_bags, rules_of
from tests.gpu_kernels.grad_call import prepare_gradient
from tests.gpu_kernels.references import (
    MEAN,
    SQRTN,
    Doubles,
    close,
    doubles,
    kept,
    limit_among,
    row_gradients,
    weight_gradients,
)

if TYPE_CHECKING:
    from tests.gpu_kernels.device import Gpu


def grouped(gpu: Gpu, count: int, draw: np.random.Generator, stored: str) -> float:
    """Two columns behind gathers, one of them with weights: GroupedEmbeddingPostLookUpGrad."""
    from fusion.gpu_ops.steps.sums import numbers
    from fusion.ops.columns.gpu_steps.gradient import GradEntries, order_entries, scatter

    dims, batch, each, most = (16, 3), count // 8 + 1, count // 2, count // 6 + 1
    owners = np.sort(draw.integers(0, batch, (2, each)))
    starts = [np.searchsorted(one, np.arange(batch + 1)) for one in owners]
    splits = np.stack([starts[0], starts[1] + each]).astype(np.int32)
    places = (most * draw.random((2, each)) ** 2).astype(np.int32)
    weights = kept(draw.uniform(0.25, 2, 2 * each), stored)
    top_at, top = gpu.drawn(draw, (batch, sum(dims)), stored)
    outs = [gpu.reserve(8 * most * dim) for dim in dims]
    keys = numbers(gpu, 2 * each, 2 * most)
    arrays = {
        GradientCall.entry_count: 2 * each,
        GradientCall.unique_idxs: gpu.put(places),
        GradientCall.row_splits: gpu.put(splits),
        GradientCall.entry_weights: gpu.put(weights),
        GradientCall.keys: keys,
        GradientCall.owners: gpu.reserve(8 * each),
        GradientCall.starts: gpu.reserve(8 * (2 * most + 1)),
        GradientCall.scales: gpu.reserve(16 * batch),
    }
    item, firsts = DTYPES[stored].item_bytes, (0, dims[0])
    rows = [(top_at + first * item, sum(dims) * item) for first in firsts]
    columns = [
        ColumnGradient(most, dims[0], outs[0], *rows[0], MEAN, 0),
        ColumnGradient(most, dims[1], outs[1], *rows[1], SQRTN, 1),
    ]
    call = prepare_gradient(stored, batch, columns, arrays, gpu.reserve)
    base = next(reversed(gpu.held))
    gpu.write(base, call.words)
    entries = GradEntries(2 * each, 2 * most, keys, arrays[GradientCall.starts])
    order = order_entries(gpu, base, entries, 2 * batch)
    scatter(gpu, DTYPES[stored].code, base, order, call.tiles)
    gpu.check_errors("gradient", base + 8 * call.errors)
    worst, masked = 0.0, np.zeros(batch, np.bool_)
    factors = np.ones(each), doubles(weights)[each:]
    for k, column in enumerate(columns):
        wanted = row_gradients(
            top[:, firsts[k] :][:, : column.dim], np.zeros((most, column.dim)), places[k],
            owners[k], factors[k], masked, column.combiner, -1.0,
        )  # fmt: skip
        mine = gpu.numbers(outs[k], stored, (most, column.dim))
        worst = max(worst, close("gradient", stored, mine, *wanted))
    return worst


def of_ids(gpu: Gpu, count: int, draw: np.random.Generator, stored: str) -> float:
    """Bags of distinct ids' rows, and their gradients: FusedEmbeddingSparsePostLookUpV2."""
    lookup = by_ids(gpu, count, draw, stored)
    return max(check_bags(gpu, lookup, stored), _gradients(gpu, draw, lookup, stored))


def _gradients(gpu: Gpu, draw: np.random.Generator, lookup: Lookup, stored: str) -> float:
    """The largest error of gradients by each rule."""
    top = gpu.drawn(draw, (lookup.masked.size, lookup.rows.values.shape[1]), stored)
    errors = [_gradient(gpu, top, lookup, stored, rules) for rules in rules_of(stored)]
    gpu.check_errors("gradients", lookup.errors)
    return max(errors)


def _gradient(
    gpu: Gpu,
    drawn: tuple[int, Doubles],
    lookup: Lookup,
    stored: str,
    rules: tuple[int, bool, bool],
) -> float:
    """The largest error of gradients by one of `rules_of`.

    Args:
        drawn: the gradient of the bags, its address and what it is.
    """
    from fusion.ops.bags.gpu_steps import bag_gradient as steps

    (top_at, top), (combiner, weighted, is_clipped) = drawn, rules
    rows, batch, count = lookup.rows, lookup.masked.size, lookup.owners.size
    limit = limit_among(rows.values) if is_clipped else -1.0
    bits = int(np.float64(limit).view(np.int64))
    given = Gradient(top_at, DTYPES[stored].code, top.shape[1], combiner, int(is_clipped), bits)
    weights_at = lookup.weights_at if weighted else 0
    bags = GradBags(lookup.ordered, lookup.keys_at, weights_at, lookup.masked_at, batch)
    outs = [gpu.reserve(size * rows.row_bytes) for size in rows.sizes]
    scaled = steps.add_up(gpu, given, bags, lookup.gathered, gpu.put_words(outs))
    weights = lookup.weights if weighted else np.ones(count)
    entries = lookup.keys, lookup.owners, weights, lookup.masked, combiner, limit
    found = [
        gpu.numbers(out, stored, (size, top.shape[1]))
        for out, size in zip(outs, rows.sizes, strict=True)
    ]
    wanted = row_gradients(top, rows.values, *entries)
    worst = close("gradient of rows", stored, np.concatenate(found), *wanted)
    if not weighted:
        return worst
    grads = gpu.reserve(8 * count)
    steps.add_up_weights(gpu, given, bags, lookup.gathered, scaled, grads)
    mine = gpu.numbers(grads, stored, (count,))
    wanted = weight_gradients(top, rows.values, *entries)
    return max(worst, close("gradient of weights", stored, mine, *wanted))
