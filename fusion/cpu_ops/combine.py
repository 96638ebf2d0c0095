"""What comes before gathered rows are combined into bags (`gather`): where they are, in order."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import carray

from fusion.cpu_ops.elements import rows_until
from fusion.cpu_ops.norms import row_norm
from fusion.cpu_ops.row_tiles import AHEAD
from fusion.cpu_ops.sort import sort_by_key
from fusion.runtime.native.jit import Array, int64, jit
from fusion.runtime.native.memory import pointer

#: The combiners, by their place among the values of the ops' attr.
SUM, MEAN, SQRTN, MAX = range(4)


class Bags(NamedTuple):
    """The entries of a batch by row, in compiled code.

    Attributes:
      rows: int64 [u], addresses of gathered rows [D] of the compute dtype.
      row_indices: int32 [m], the gathered row of each entry.
      starts, order: see `group_by_row`.
      is_row_empty: flags of the rows of the batch.
      mask_empty: whether flagged rows give zeros.
      weights: [m] of the compute dtype, or a dummy.
    """

    rows: Any
    row_indices: Any
    starts: Any
    order: Any
    is_row_empty: Any
    mask_empty: Any
    weights: Any


@jit
def group_by_row(rows: Array, n_rows: int, starts: Array, order: Array) -> int:
    """Groups entries by row, keeping their order inside a row.

    Args:
      rows: int64 [m, 2]; column 0 is the row of each entry.
      n_rows: number of rows.
      starts: out, int64 [n_rows + 1]: the entries of row b are order[starts[b]:starts[b + 1]].
      order: out, int32 [m].

    Returns:
      -1, or the index of an entry whose row is outside [0, n_rows).
    """
    starts[:] = 0
    for k in range(rows.shape[0]):
        row = rows[k, 0]
        if row < 0 or row >= n_rows:
            return k
        starts[row + 1] += 1
    for row in range(n_rows):
        starts[row + 1] += starts[row]
    # starts[row] serves as the cursor of its row, which moves it to the start of the next one.
    for k in range(rows.shape[0]):
        row = rows[k, 0]
        order[starts[row]] = k
        starts[row] += 1
    for row in range(n_rows, 0, -1):
        starts[row] = starts[row - 1]
    if n_rows > 0:
        starts[0] = 0
    return -1


@jit
def sort_bags(indices: Array, starts: Array, order: Array, buffer: Array) -> None:
    """Sorts the entries of each bag by column 1 of the indices [m, 2], stably.

    Args:
      starts, order: the bags, see `group_by_row`.
      buffer: scratch, int32 [m].
    """
    ranks = indices[:, 1]
    for row in range(starts.shape[0] - 1):
        sort_by_key(order[starts[row] : starts[row + 1]], ranks, buffer)


@jit
def first_unsorted(rows: Array) -> int:
    """The index of the first entry with a smaller row than the one before it, or -1."""
    for k in range(1, rows.shape[0]):
        if rows[k, 0] < rows[k - 1, 0]:
            return k
    return -1


@jit
def rows_until_last(rows: Array) -> int:
    """The number of rows up to that of the last of some entries, see `elements.rows_until`."""
    return rows_until(rows[rows.shape[0] - 1, 0]) if rows.shape[0] > 0 else int64(0)


@jit
def first_outside(row_indices: Array, count: int) -> int:
    """The index of the first element outside [0, count), or -1."""
    for k in range(row_indices.shape[0]):
        if row_indices[k] < 0 or row_indices[k] >= count:
            return k
    return -1


@jit
def first_repeated(permutation: Array, counts: Array, firsts: Array, seen: Array) -> int:
    """The index of the first pair of a permutation that an earlier one equals, or -1.

    Args:
      permutation: int32 [u, 2], shard and index in it, all inside the shards.
      counts: int64 [P], rows of each shard, u in all.
      firsts: scratch, int64 [P].
      seen: scratch, bool [u].
    """
    seen[:] = False
    first = 0
    for shard in range(counts.shape[0]):
        firsts[shard] = first
        first += counts[shard]
    for k in range(permutation.shape[0]):
        row = firsts[permutation[k, 0]] + permutation[k, 1]
        if seen[row]:
            return k
        seen[row] = True
    return -1


@jit
def locate_rows(
    permutation: Array, bases: Array, counts: Array, row_bytes: int, addresses: Array
) -> int:
    """The address of each unique id's row among the shards.

    Args:
      permutation: int32 [u, 2], shard and index in it, or anything if there is one shard.
      bases, counts: int64 [P]: address of the first row, and rows, of each shard.
      row_bytes: bytes of one row.
      addresses: out, int64 [u].

    Returns:
      -1, or the index of a pair that is outside the shards.
    """
    if bases.shape[0] == 1:
        for k in range(addresses.shape[0]):
            addresses[k] = bases[0] + k * row_bytes
        return -1
    for k in range(addresses.shape[0]):
        shard, row = permutation[k, 0], permutation[k, 1]
        if shard < 0 or shard >= bases.shape[0] or row < 0 or row >= counts[shard]:
            return k
        addresses[k] = bases[shard] + row * row_bytes
    return -1


@jit
def locate_entries(bases: Array, counts: Array, row_bytes: int, addresses: Array) -> None:
    """The address of each shard's rows, shard by shard; the arguments are as in `locate_rows`."""
    k = 0
    for shard in range(bases.shape[0]):
        for index in range(counts[shard]):
            addresses[k] = bases[shard] + index * row_bytes
            k += 1


@jit
def row_at(address: int, dim: int, dtype: type) -> Array:
    """The row [dim] at an address."""
    return carray(pointer(address, dtype), (dim,))


@jit
def clip_rows(addresses: Array, limit: float, dtype: type, clipped: Array) -> None:
    """Writes each row times limit / max(norm, limit) to `clipped` [u, D].

    The multiplication comes before the division and a zero row with limit 0 gives NaN, both as
    in stock TensorFlow's clip_by_norm.
    """
    dim = clipped.shape[1]
    limit = dtype(limit)
    for k in range(addresses.shape[0]):
        row = row_at(addresses[k], dim, dtype)
        norm = row_norm(addresses[k], dim, dtype)
        bound = limit if norm <= limit else norm
        for d in range(dim):
            clipped[k, d] = row[d] * limit / bound


@jit
def copy_row(row: Array, out: Array) -> None:
    """Sets `out` to a row."""
    for d in range(out.shape[0]):
        out[d] = row[d]


@jit
def weight_norm(weights: Array, bag: Array, combiner: int, dtype: type) -> Any:
    """What a weighted bag is divided by: 1, the sum of weights, or the root of their squares."""
    if combiner == SUM:
        return dtype(1)
    total = dtype(0)
    for k in bag:
        weight = dtype(weights[k])
        total += weight if combiner == MEAN else weight * weight
    return total if combiner == MEAN else np.sqrt(total)


@jit
def divide_no_nan(values: Array, divisor: Any) -> None:
    """Divides in place; everything is 0 where the divisor is 0, as in stock's DivNoNan."""
    for d in range(values.shape[0]):
        values[d] = values[d] / divisor if divisor != 0 else values.dtype.type(0)


@jit
def is_masked(row: int, is_row_empty: Array, mask_empty: bool) -> bool:
    """Whether a row gives zeros because it was empty before it was filled."""
    return mask_empty and row < is_row_empty.shape[0] and is_row_empty[row] != 0


@jit
def list_rows(
    rows: Array,
    row_indices: Array,
    starts: Array,
    order: Array,
    is_row_empty: Array,
    mask_empty: bool,
    addresses: Array,
    counts: Array,
) -> int:
    """Lists the row of each entry, bag by bag, for a kernel of `gather`.

    Args:
      rows: int64 [u], addresses of the gathered rows.
      row_indices: int32 [m], the gathered row of each entry.
      starts, order: the entries of each bag, see `group_by_row`; both become those of what is
        listed.
      is_row_empty, mask_empty: see `is_masked`; such bags get no entries.
      addresses: out, int64 [m + AHEAD].
      counts: out, int32 [n], entries of each bag, listed or not.

    Returns:
      How many entries are listed.
    """
    count, end = int64(0), int64(0)
    for row in range(counts.shape[0]):
        first, end = end, starts[row + 1]
        counts[row] = end - first
        starts[row] = count
        if not is_masked(row, is_row_empty, mask_empty):
            for k in range(first, end):
                addresses[count] = rows[row_indices[order[k]]]
                order[count] = order[k]
                count += 1
    starts[counts.shape[0]] = count
    addresses[count : count + AHEAD] = 0
    return count


@jit
def list_weights(weights: Array, order: Array, dtype: type, listed: Array) -> None:
    """Lists weights in an order, rounded to `dtype`."""
    for k in range(listed.shape[0]):
        listed[k] = dtype(weights[order[k]])


@jit
def has_one_each(starts: Array) -> bool:
    """Whether each bag has one entry."""
    different = int64(0)
    for row in range(starts.shape[0]):
        different |= starts[row] ^ row
    return different == 0
