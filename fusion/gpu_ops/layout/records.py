"""Records that launches pass to kernels, of 64-bit integers: numbers, and addresses of arrays."""

from __future__ import annotations

from typing import NamedTuple


class Ids(NamedTuple):
    """An array of ids.

    Attributes:
        address, dtype: of the first one, and their dtype code.
        number: how many ids there are.
    """

    address: int
    dtype: int
    number: int


class GroupOrder(NamedTuple):
    """Elements in the order of their groups: ids of shards, entries of bags or of rows.

    Attributes:
        number, groups: how many they are.
        owners: int32 [number], the group of each element; `groups` for those that are in none.
        order: int32 [number], the elements by their groups, those of a group in their order.
        starts: int64 [groups + 1], where the elements of each group start in that order.
    """

    number: int
    groups: int
    owners: int
    order: int
    starts: int


class Firsts(NamedTuple):
    """The first positions of distinct ids.

    Attributes:
        slots: int64, the hash table: the first position of the id in each slot.
        id_slots: int64 [number of ids], the slot of each id.
        ranks: int64 [number of ids], the firsts before each id.
        total: int64 [1], the number of distinct ids.
    """

    slots: int
    id_slots: int
    ranks: int
    total: int


class Shards(NamedTuple):
    """The shards of a table.

    Attributes:
        rows, ends: int64 [number], the rows of each, none negative, and the cumulative ones.
        number: how many they are.
        strategy: `DIV`, `MOD` or `MOD_EV` of `bags.cpu_kernels.partition`.
    """

    rows: int
    ends: int
    number: int
    strategy: int


class Entries(NamedTuple):
    """The entries of a batch of sparse ids.

    Attributes:
        ids, ids_dtype, number: their ids, the dtype code and the number of these.
        indices: int64 [number, 2], column 0 is the row of each entry.
        batch: rows of the batch.
        weights, weights_dtype, weight_bytes: their weights; 0 without.
    """

    ids: int
    ids_dtype: int
    number: int
    indices: int
    batch: int
    weights: int
    weights_dtype: int
    weight_bytes: int


class DenseIds(NamedTuple):
    """A matrix of ids.

    Attributes:
        ids, dtype: the address, and the dtype code.
        batch, width: its shape.
        out_dtype: the dtype code of the ids of entries.
    """

    ids: int
    dtype: int
    batch: int
    width: int
    out_dtype: int


class Marks(NamedTuple):
    """Marks of the entries that are kept, and of the rows that keep none.

    Attributes:
        mask: int32, 1 for each entry that is kept.
        offsets: int64, the entries kept before each.
        empty: int32, 1 for each row that keeps none.
        fillers: int64, the rows that keep none before each.
        totals: int64 [2], the entries kept and the rows that keep none.
    """

    mask: int
    offsets: int
    empty: int
    fillers: int
    totals: int


class PrunedEntries(NamedTuple):
    """The output: entries that are kept, then those that fill rows.

    Attributes:
        ids, indices: as of `Entries`.
        weights: the same; 0 without.
    """

    ids: int
    indices: int
    weights: int


class ListedElements(NamedTuple):
    """Elements and rows of many columns that are listed.

    Attributes:
        ids: int64 by element.
        owners: int32 by element, the number of its row among those of all columns, or how many
            these are for an element that does not count.
        sums: int64, prefix sums of marks of elements and rows, then their total.
    """

    ids: int
    owners: int
    sums: int


class Pairs(NamedTuple):
    """Positions of many columns, and their distinct pairs of a column and an id.

    Attributes:
        keys: int64 by position, its id.
        sources: int32 by position, its element; -1 for rows.
        slots: int64, the hash table: the first position of the pair in each slot.
        id_slots: int64 by position, its slot; `unique.EMPTY` for what is no position.
        marks: int32 by position, 1 for the first of its pair.
        ranks: int64 by position, the firsts before it, then their total.
    """

    keys: int
    sources: int
    slots: int
    id_slots: int
    marks: int
    ranks: int


class NumberedEntries(NamedTuple):
    """The output of many columns: distinct ids and entries.

    Attributes:
        keys: addresses of the distinct ids of each column.
        entries: int32 by entry, which of them it is; 0 for what is none.
        weights: by entry, 0 for what has none; 0: no column has weights.
    """

    keys: int
    entries: int
    weights: int


class GatheredRows(NamedTuple):
    """Rows of distinct ids, gathered from shards and numbered shard by shard.

    Attributes:
        number, shard_count: how many they are, and the shards.
        shards: int64 [shard_count, 2], address and rows of each shard.
        firsts: int64 [shard_count + 1], the first number of each shard, and the number of all.
        row_bytes: of each row.
        permutation: int32 [number, 2], shard and index in it of each distinct id; not read with
            one shard.
    """

    number: int
    shard_count: int
    shards: int
    firsts: int
    row_bytes: int
    permutation: int


class Gradient(NamedTuple):
    """The gradient of combined rows.

    Attributes:
        top: the gradient of the result, [batch, dim].
        dtype, dim: the dtype code and the elements of its rows; those of all others are the same.
        combiner: as of the op.
        clips, limit: whether rows are shortened, and the bits of the double that is the limit.
    """

    top: int
    dtype: int
    dim: int
    combiner: int
    clips: int
    limit: int


class GradBags(NamedTuple):
    """The entries of bags, of which there is a gradient.

    Attributes:
        ordered: the entries in the order of bags.
        keys: int32 by entry, the number of its row among those gathered, that of all for none.
        weights: by entry, of the gradient's dtype; 0 without.
        masked, flags: so many bool flags by row of the batch, whose entries get zeros; 0: there
            are none.
    """

    ordered: GroupOrder
    keys: int
    weights: int
    masked: int
    flags: int


class Scales(NamedTuple):
    """The factors of the gradients of bags and of shortened rows.

    "Worked" is the compute dtype of the gradients.

    Attributes:
        scales: worked, by bag: what its gradient is multiplied by or, with weights, divided by;
            nothing of bags without entries.
        working: worked, by row [dim], the gradients of shortened rows; 0: they are not shortened.
        norms: float64 by row, its norm; 0 likewise.
        alongs: float64 by row, the part of its gradient along it, where it is shortened.
    """

    scales: int
    working: int
    norms: int
    alongs: int
