"""What a column computes, in one small printable value."""

from __future__ import annotations

from dataclasses import dataclass

from tensorflow.core.framework import types_pb2

from fusion.passes.graph_view import Shape, Tensor


@dataclass(frozen=True)
class IdsSpec:
    """The sparse matrix of ids that is looked up.

    Attributes:
        values: int32 or int64 [nnz].
        indices: int64 [nnz, 2].
        dense_shape: int64 [2].
        flattened: whether these are a SparseReshape's outputs, for ids that are not a matrix.
        dtype: DataType of the ids.
    """

    values: Tensor
    indices: Tensor
    dense_shape: Tensor
    flattened: bool
    dtype: int


@dataclass(frozen=True)
class TableSpec:
    """The table.

    Attributes:
        kind: "resource" (a variable's handle) or "tensor" (a matrix).
        tensor: that handle or matrix.
        dtype: DataType of its entries.
        rows, dim: static sizes, None where unknown.
        gather: the stock node that reads it; "" when the reduction itself does.
        device: where the gather is placed, "" if nowhere in particular.
        colocation: names of nodes the gather is kept beside.
        name: for people.
    """

    kind: str
    tensor: Tensor
    dtype: int
    rows: int | None
    dim: int | None
    gather: str
    device: str
    colocation: tuple[str, ...]
    name: str


@dataclass(frozen=True)
class LookupSpec:
    """One embedding column: `combine(table[fill(prune(ids))])`.

    Attributes:
        anchor: the segment reduction.
        prune: whether ids < 0 are dropped.
        fill: whether rows left empty get an entry.
        default_id: the id of that entry; None gives zeros instead.
        combiner: sum, mean or sqrtn.
        output: the [B, D] tensor that the fused op replaces.
    """

    anchor: str
    ids: IdsSpec
    table: TableSpec
    prune: bool
    fill: bool
    default_id: int | None
    combiner: str
    output: Tensor

    @property
    def matrix(self) -> str:
        """The table's dtype and static shape, as people write them."""
        return _dtype(self.table.dtype) + _size((self.table.rows, self.table.dim))

    def __str__(self) -> str:
        ids, table = self.ids, self.table
        place = f" on {table.device}" if table.device else ""
        beside = f" beside {', '.join(table.colocation)}" if table.colocation else ""
        flat = " flattened" if ids.flattened else ""
        kept = "id >= 0" if self.prune else "all"
        empty = "none" if not self.fill else "zeros" if self.default_id is None else self.default_id
        return "\n".join(
            [
                f"lookup {self.anchor}",
                f"  ids      {_dtype(ids.dtype)}{flat} values={ids.values} "
                f"indices={ids.indices} shape={ids.dense_shape}",
                f"  keep     {kept}",
                f"  empty    {empty}",
                f"  table    {table.kind} {table.tensor} {self.matrix}{place}{beside}",
                f"  combine  {self.combiner}",
                f"  output   {self.output}",
            ]
        )


def _dtype(number: int) -> str:
    return types_pb2.DataType.Name(number).removeprefix("DT_").lower()


def _size(shape: Shape) -> str:
    return f"[{', '.join('?' if n is None else str(n) for n in shape)}]"
