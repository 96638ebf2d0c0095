"""The gradient of combining gathered rows into bags, with respect to rows and weights.

With e' the (clipped) row, w the weight, Z the divisor of the combiner and g the bag's gradient:
the row gets g * w / Z, in the order of the entries, so that unweighted float32 results have the
bits of stock TensorFlow; clipping multiplies that by the derivative of e' (docs/ops.md,
Mathematics); the weight gets g . e' / Z less the part through Z.
"""

from __future__ import annotations

import numpy as np

from fusion.cpu_ops.combine import (
    SQRTN,
    SUM,
    Bags,
    copy_row,
    divide_no_nan,
    is_masked,
    row_at,
    weight_norm,
)
from fusion.cpu_ops.norms import row_norm
from fusion.runtime.native.jit import Array, int64, jit


@jit
def _dot(a: Array, b: Array) -> float:
    total = 0.0
    for d in range(a.shape[0]):
        total += np.float64(a[d]) * np.float64(b[d])
    return total


@jit
def list_sums(
    rows: Array,
    row_indices: Array,
    starts: Array,
    order: Array,
    ranks: Array,
    sums: Array,
    splits: Array,
    listed: Array,
) -> None:
    """Lists entries bag by bag for a kernel of `scatter`: rows are numbered as they occur in bags.

    Args:
      rows: int64 [u], where the sum of each row goes.
      row_indices: int32 [m], the row of each entry.
      starts, order: the entries of each bag, see `combine.group_by_row`.
      ranks: scratch, int32 [u].
      sums: out, int64 [u], the addresses of sums by the numbers of rows; of those without entries
        the last.
      splits: out, int32 [n + 1], where each bag's entries start.
      listed: out, int32 [m], the number of each entry's row.
    """
    ranks[:] = -1
    fresh = int64(0)
    for k in range(order.shape[0]):
        index = row_indices[order[k]]
        if ranks[index] < 0:
            ranks[index] = fresh
            sums[fresh] = rows[index]
            fresh += 1
        listed[k] = ranks[index]
    for index in range(rows.shape[0]):
        if ranks[index] < 0:
            sums[fresh] = rows[index]
            fresh += 1
    for row in range(splits.shape[0]):
        splits[row] = starts[row]


@jit
def unclip_rows(
    addresses: Array, grad_addresses: Array, dim: int, limit: float, dtype: type
) -> None:
    """Turns gradients of clipped rows into gradients of the rows, in place."""
    limit = np.float64(dtype(limit))
    for k in range(addresses.shape[0]):
        row = row_at(addresses[k], dim, dtype)
        norm = np.float64(row_norm(addresses[k], dim, dtype))
        if norm < limit:
            continue
        grad = row_at(grad_addresses[k], dim, dtype)
        along = 0.0
        for d in range(dim):  # divided first, so that nothing overflows
            along += row[d] / norm * grad[d]
        for d in range(dim):
            grad[d] = (limit / norm) * (grad[d] - row[d] / norm * along)


@jit
def weight_grads(
    top_grad: Array,
    addresses: Array,
    bags: Bags,
    combiner: int,
    dtype: type,
    scaled: Array,
    total: Array,
    grads: Array,
) -> None:
    """The gradient of each entry's weight.

    With W the sum and Q the root of the squares of a bag's weights, S its weighted sum and dS the
    gradient of S: sum dS.e'; mean dS.e' - g.S/W^2; sqrtn dS.e' - (g.S/Q^2)(w/Q). The two parts
    are computed as stock's chain of divisions does, also where W or Q is 0.

    Args:
      top_grad: [n, D], gradients of the bags.
      addresses: int64 [u], of the rows of the bags, which may be clipped.
      combiner: SUM, MEAN or SQRTN.
      scaled, total: scratch [D].
      grads: out, [m].
    """
    dim = top_grad.shape[1]
    for row in range(top_grad.shape[0]):
        bag = bags.order[bags.starts[row] : bags.starts[row + 1]]
        if is_masked(row, bags.is_row_empty, bags.mask_empty):
            for k in bag:
                grads[k] = 0
            continue
        copy_row(top_grad[row], scaled)
        norm = weight_norm(bags.weights, bag, combiner, dtype)
        through = 0.0
        if combiner != SUM:
            divide_no_nan(scaled, norm)
            total[:] = 0
            for k in bag:
                entry = row_at(addresses[bags.row_indices[k]], dim, dtype)
                for d in range(dim):
                    total[d] += entry[d] * dtype(bags.weights[k])
            divide_no_nan(total, norm)
            through = -_dot(scaled, total)
        if combiner == SQRTN and through != 0:  # the root of 0 has gradient 0 then, as in stock
            through = through / np.float64(norm)
        for k in bag:
            factor = np.float64(bags.weights[k]) if combiner == SQRTN else 1.0
            entry = row_at(addresses[bags.row_indices[k]], dim, dtype)
            grads[k] = _dot(scaled, entry) + through * factor
