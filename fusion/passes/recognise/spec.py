"""What a column computes, in one small printable value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tensorflow.core.framework import types_pb2

from fusion.passes.graph.tensor import Shape, Tensor
from fusion.printable import printable
from fusion.schema.columns import Column


@dataclass(frozen=True)
class SparseIds:
    """Ids in a sparse matrix.

    Attributes:
        values: int32 or int64 [nnz].
        indices: int64 [nnz, 2].
        dense_shape: int64 [2]; None where the last row with an entry is the last one.
            If the ids are `columns`, those of `indices`.
        flattened: whether these are a SparseReshape's outputs, for ids that are not a matrix.
        checked: whether no size of the shape may be negative, nor its elements be too many: stock
            asks in a SparseReshape, but not where rows are filled without one.
        columns: whether the ids are what the indices say in column 1, as many as the shape says
            there: those of the values of a sparse matrix that is multiplied by the table.
        padded: whether each element of the matrix is looked up: what is no entry, or is dropped,
            as the id of empty rows, which is 0. No element has two entries.
    """

    values: Tensor
    indices: Tensor
    dense_shape: Tensor | None
    flattened: bool
    checked: bool = True
    columns: bool = False
    padded: bool = False

    def __str__(self) -> str:
        shape = "" if self.dense_shape is None else f" shape={self.dense_shape}"
        flat = "flattened " if self.flattened else "padded " if self.padded else ""
        values = "columns" if self.columns else f"values={self.values}"
        return f"{flat}{values} indices={self.indices}{shape}"


@dataclass(frozen=True)
class RaggedIds:
    """Ids of a RaggedTensor.

    Attributes:
        values: int32 or int64 [nnz].
        row_splits: int32 or int64 [rows + 1].
        splits_dtype: DataType of `row_splits`.
        wraps: whether ids < 0 count from the end of the table.
    """

    values: Tensor
    row_splits: Tensor
    splits_dtype: int
    wraps: bool = False

    def __str__(self) -> str:
        wraps = ", from the end if < 0" if self.wraps else ""
        return f"values={self.values} row_splits={self.row_splits}{wraps}"


@dataclass(frozen=True)
class RowIds:
    """Ids with the number of their row.

    Attributes:
        values: int32 or int64 [nnz].
        rows: int32 or int64 [nnz].
        rows_dtype: DataType of `rows`.
        count: int64 [], the number of rows; None where the last row with an entry is the last one.
        wraps: whether ids < 0 count from the end of the table.
    """

    values: Tensor
    rows: Tensor
    rows_dtype: int
    count: Tensor | None
    wraps: bool = False

    def __str__(self) -> str:
        count = "" if self.count is None else f" count={self.count}"
        wraps = ", from the end if < 0" if self.wraps else ""
        return f"values={self.values} rows={self.rows}{count}{wraps}"


@dataclass(frozen=True)
class DenseIds:
    """Ids in a dense tensor.

    Attributes:
        values: [B, L], int32 or int64 if they are not to be hashed; if `is_each`, of any shape.
        dtype: DataType of the ids; they are cast to that of the lookup.
        ignored: the id that stands for no entry; None if there is none.
        stride: is added to an id once for each element on its left in the row.
        hashed: how `values` become ids, if they are none.
        is_each: whether each of them is a row of its own, in row-major order.
        wraps: whether ids < 0 count from the end of the table.
        lengths: int32 or int64, B in all: how many ids of a row are entries, from the left; None
            for all.
        lengths_dtype: their DataType.
    """

    values: Tensor
    dtype: int
    ignored: int | None
    stride: int
    hashed: Hashing | None = None
    is_each: bool = False
    wraps: bool = False
    lengths: Tensor | None = None
    lengths_dtype: int = types_pb2.DT_INT64

    def __str__(self) -> str:
        ignored = "" if self.ignored is None else f" without {self.ignored}"
        stride = f" plus {self.stride} per column" if self.stride else ""
        hashed = "" if self.hashed is None else f" {self.hashed}"
        form = "each of" if self.is_each else "dense"
        wraps = ", from the end if < 0" if self.wraps else ""
        values = f"{dtype_name(self.dtype)} values={self.values}"
        lengths = "" if self.lengths is None else f" lengths={self.lengths}"
        return f"{form} {values}{lengths}{ignored}{stride}{hashed}{wraps}"


@dataclass(frozen=True)
class Hashing:
    """How values become ids, which are never negative.

    Attributes:
        by: the stock nodes that do it, in their order: of each element by itself.
        mask: bool, of the shape of the values: which of them are entries.
    """

    by: tuple[str, ...]
    mask: Tensor

    def __str__(self) -> str:
        return f"hashed by {' and '.join(self.by)} where {self.mask}"


@dataclass(frozen=True)
class EncodedIds:
    """Ids that a one-hot, a multi-hot or a counting encoding spreads over columns.

    Attributes:
        values: integers, [B] or [B, K]; of any shape if each of them is a row.
        dtype: their DataType.
        width: K; None if it is not known, 1 for one id in each row.
        is_vector: whether they are [B].
        classes: ids outside [0, classes) stand for no entry.
        start: the row of the table that id 0 stands for.
        stride: is added to that once for each element on the left in the row.
        is_distinct: whether an id that is in a row more than once counts once.
        refuses: the node of the stock op that raises an error for ids < 0; "" if none does.
        is_flat: whether each of them is a row.
    """

    values: Tensor
    dtype: int
    width: int | None
    is_vector: bool
    classes: int
    start: int = 0
    stride: int = 0
    is_distinct: bool = False
    refuses: str = ""
    is_flat: bool = False

    @property
    def columns(self) -> int:
        """Over how many columns they are spread."""
        return self.classes + self.stride * ((self.width or 1) - 1)

    def __str__(self) -> str:
        stride = f" plus {self.stride} per column" if self.stride else ""
        distinct = " distinct" if self.is_distinct else ""
        each = "each of " if self.is_flat else ""
        rows = f"rows {self.start} to {self.start + self.columns - 1}"
        return f"{each}{self.values} below {self.classes}{distinct}{stride} for {rows}"


@dataclass(frozen=True)
class JoinedIds:
    """Ids of several tensors, side by side in a row, each with rows of the table of its own.

    Attributes:
        parts: the tensors.
    """

    parts: tuple[EncodedIds, ...]

    @property
    def values(self) -> Tensor:
        """The first of the tensors."""
        return self.parts[0].values

    def __str__(self) -> str:
        return f"joined {', '.join(map(str, self.parts))}"


IdsSpec = SparseIds | RaggedIds | RowIds | DenseIds | JoinedIds

#: How ids lie. Those with row numbers come from sparse tensors too.
_KINDS = {
    SparseIds: "sparse",
    RaggedIds: "ragged",
    RowIds: "sparse",
    DenseIds: "dense",
    JoinedIds: "one-hot",
}


@dataclass(frozen=True)
class ShardSpec:
    """A matrix that holds the table, or a part of its rows.

    Attributes:
        kind: "resource" (a variable's handle) or "tensor" (a matrix).
        tensor: that handle or matrix.
        rows, dim: static sizes, None where unknown.
        is_vector: whether it is a vector in truth, of rows of one element.
        gather: the stock node that reads it; "" when the reduction itself does.
        device: where the gather is placed, "" if nowhere in particular.
        colocation: names of nodes the gather is kept beside.
    """

    kind: str
    tensor: Tensor
    rows: int | None
    dim: int | None
    gather: str
    device: str
    colocation: tuple[str, ...]
    is_vector: bool = False


@dataclass(frozen=True)
class TableSpec:
    """The table.

    Attributes:
        shards: one matrix, or several that hold its rows.
        strategy: how rows are split over several shards, div or mod; "" for one.
        split: the rows of each shard that div counts on; () otherwise.
        dtype: DataType of its entries.
        max_norm: the largest L2 norm of a row, None for no limit.
        name: for people.
    """

    shards: tuple[ShardSpec, ...]
    strategy: str
    split: tuple[int, ...]
    dtype: int
    max_norm: float | None
    name: str

    @property
    def shape(self) -> Shape:
        """The static sizes [rows, D] of the whole table."""
        rows = [shard.rows for shard in self.shards]
        known = [number for number in rows if number is not None]
        dims = [shard.dim for shard in self.shards if shard.dim is not None]
        return (sum(known) if len(known) == len(rows) else None, dims[0] if dims else None)


_ORDERS = {"axis": "over an axis", "sequence": "one by one", "dense_segment": "by segments"}


@dataclass(frozen=True)
class LookupSpec:
    """One embedding column: `combine(table[fill(prune(ids))])`.

    Attributes:
        anchor: the segment reduction.
        ids: where the ids come from.
        dtype: DataType of the ids that are looked up.
        table: where they are looked up.
        column: the attrs of the ops that compute it, but for those that follow from `ids` and
            `table`.
        output: the [B, D] tensor that the fused op replaces. Without `fill_empty_row` it ends at
            the last row with an entry.
        weights: of the table's dtype, [nnz], or with `epsilon_input` one number; None: there are
            none.
    """

    anchor: str
    ids: IdsSpec
    dtype: int
    table: TableSpec
    column: Column
    output: Tensor
    weights: Tensor | None = None

    @property
    def combiner(self) -> str:
        """How the rows of a bag become one."""
        return self.column.combiner

    @property
    def matrix(self) -> str:
        """The table's dtype, or the format of its rows, and static shape, as people write them."""
        column, table = self.column, self.table
        stored = column.row_format if column.is_packed else dtype_name(table.dtype)
        return stored + _size(table.shape)

    @property
    def source(self) -> str:
        """Where the ids come from, in a few words: how they lie, their dtype, their tensor."""
        return f"{_KINDS[type(self.ids)]} {dtype_name(self.dtype)} {self.ids.values}"

    @property
    def is_product(self) -> bool:
        """Whether it is a product of matrices, which adds in an order that no other op has."""
        return isinstance(self.ids, JoinedIds)

    @property
    def is_exact(self) -> bool:
        """Whether the fused ops give the bits of stock TensorFlow; else they round otherwise."""
        if self.is_product:
            return False
        is_clipped = self.table.max_norm is not None
        return self.column.is_dense_sum or (self.weights is None and not is_clipped)

    def __str__(self) -> str:
        lines = [f"lookup {self.anchor}", *(f"  {key:<8} {text}" for key, text in self._lines())]
        return "\n".join(map(printable, lines))

    def _lines(self) -> Iterator[tuple[str, str]]:
        column = self.column
        yield "ids", f"{dtype_name(self.dtype)} {self.ids}"
        if column.num_buckets:
            yield "buckets", f"{column.num_buckets}, else {column.bucket_default}"
        conditions = ["id >= 0"] if column.prune else []
        if column.use_sparse_weights:
            yield "weights", f"{self.weights}"
            conditions += ["weight > 0"] if column.prune_sparse_weights else []
        yield "keep", " and ".join(conditions) or "all"
        yield "empty", self._empty()
        yield from self._table_lines()
        if self.table.max_norm is not None:
            yield "max_norm", f"{self.table.max_norm:g}"
        divided = "" if column.divide_no_nan else ", NaN for no weight"
        yield "combine", f"{column.combiner}{divided}{self._added()}"
        yield "output", str(self.output)

    def _added(self) -> str:
        column = self.column
        if not column.is_dense_sum:
            return ""
        masked = ", what is no entry times 0" if column.mask_product else ""
        if column.mask_penalty:
            masked = f", what is no entry less {column.mask_penalty:g}"
        added = self.weights if column.epsilon_input else column.divisor_epsilon
        more = f"{added:g}" if isinstance(added, float) else str(added)
        epsilon = f", divided by {more} more" if added else ""
        return f" {_ORDERS[column.sum_order]}{masked}{epsilon}"

    def _empty(self) -> str:
        column = self.column
        if not column.fill_empty_row:
            return "left empty, up to the last row with an entry"
        value = "zeros" if column.default_id < 0 else str(column.default_id)
        is_unusual = column.use_sparse_weights and column.default_weight != 1
        return f"{value}, weight {column.default_weight:g}" if is_unusual else value

    def _table_lines(self) -> Iterator[tuple[str, str]]:
        table = self.table
        if table.strategy:
            yield "table", f"{self.matrix} in {len(table.shards)} shards by {table.strategy}"
        for shard in table.shards:
            device = f" on {shard.device}" if shard.device else ""
            colocation = f" beside {', '.join(shard.colocation)}" if shard.colocation else ""
            size = dtype_name(table.dtype) + _size((shard.rows, shard.dim))
            key = "shard" if table.strategy else "table"
            yield key, f"{shard.kind} {shard.tensor} {size}{device}{colocation}"


def dtype_name(number: int) -> str:
    """Returns e.g. "float" for DT_FLOAT."""
    return types_pb2.DataType.Name(number).removeprefix("DT_").lower()


def _size(shape: Shape) -> str:
    return f"[{', '.join('?' if n is None else str(n) for n in shape)}]"
