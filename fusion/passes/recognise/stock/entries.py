"""The id side of a lookup: its entries, and filling of empty rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tensorflow.core.framework import types_pb2

from fusion.passes.graph.idioms import is_integer_cast
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import Match, NoMatch, Stage
from fusion.passes.recognise.stock.boolean_mask import peel
from fusion.passes.recognise.stock.reduction import Reduction
from fusion.passes.recognise.stock.table import Table
from fusion.schema.attributes import ID_TYPES

_FILL_OPS = frozenset({"SparseFillEmptyRows", "RaggedFillEmptyRows"})
_ID_READERS = {
    "Unique": (0, "T"),
    "Gather": (1, "Tindices"),
    "GatherV2": (1, "Tindices"),
    "ResourceGather": (1, "Tindices"),
}
"""Which input of an op is the ids, and the attr that has their dtype."""


@dataclass(frozen=True, kw_only=True)
class Entries(Match):
    """The entries of a batch: (row, id, weight) each.

    Attributes:
        ids: [m].
        indices: int64 [m, 2] with the row in column 0, None if only `rows` is known.
        rows: [m], None if they are column 0 of `indices`.
        weights: [m], or None.
        weight_rows: `indices` or `rows` once more, if the weights have their own.
        count: the number of rows: a number, or a dense shape [2] beside `indices`; None where the
            last row with an entry is the last one.
        dtype: DataType of the ids.
        rows_dtype: DataType of `rows`.
        is_widened: whether stock looks up the ids as int64, though they are int32.
    """

    ids: Tensor
    indices: Tensor | None
    rows: Tensor | None
    weights: Tensor | None
    count: Tensor | None
    dtype: int
    rows_dtype: int
    weight_rows: Tensor | None = None
    is_widened: bool = False

    @property
    def rows_in(self) -> Tensor:
        """What holds the entries' rows."""
        rows = self.indices if self.indices is not None else self.rows
        assert rows is not None
        return rows


@dataclass(frozen=True, kw_only=True)
class Fill(Match):
    """SparseFillEmptyRows or RaggedFillEmptyRows: every empty row gets an entry.

    Attributes:
        entries: those before.
        default: the id of the new entries, >= 0.
        default_weight: their weight.
        is_row_empty: which rows were empty.
    """

    entries: Entries
    default: int
    default_weight: float
    is_row_empty: Tensor


def match_entries(view: GraphView, reduction: Reduction, table: Table) -> Entries | NoMatch:
    """Explains the reduction's segment ids as the rows of the entries that are looked up."""
    ids, segments = table.ids, reduction.segments
    dtype = _id_dtype(view, ids)
    if dtype not in ID_TYPES:
        return NoMatch("the ids are neither int32 nor int64", ids.node)
    widened = _behind_widening(view, ids)
    if widened is not None:
        ids, dtype = widened[0], types_pb2.DT_INT32
    # Rows without entries are zeros, as many as there are, if their number is given.
    count = reduction.count
    column = _match_first_column(view, segments) if count is None else None
    is_ragged = segments.node == ids.node and view.op(ids.node) == "RaggedFillEmptyRows"
    is_table_read = not table.shards[0].gather
    if column is None and not is_ragged and is_table_read and count is None:
        return NoMatch("the segment ids are not the row numbers of a SparseTensor", segments.node)
    if column is not None and not _is_matrix(view, column[0]):
        # The column itself is read then.
        column = None
    indices, nodes = column if column is not None else (None, ())
    return Entries(
        stage=Stage.OUTPUT,
        nodes=nodes if widened is None else (*nodes, *widened[1]),
        ids=ids,
        indices=indices,
        rows=segments if column is None else None,
        weights=reduction.weights,
        count=count,
        dtype=dtype,
        rows_dtype=reduction.segments_dtype,
        is_widened=widened is not None,
    )


def _behind_widening(view: GraphView, ids: Tensor) -> tuple[Tensor, tuple[str, ...]] | None:
    """Passes a cast to int64 of the int32 ids of filled rows: these, and the nodes passed.

    Feature columns of TF-Ranking, TFX and EasyRec make it.
    """
    if not is_integer_cast(view, ids.node) or view.controls(ids.node):
        return None
    types = view.type_attr(ids.node, "SrcT"), view.type_attr(ids.node, "DstT")
    inner = view.inputs(ids.node)[0]
    source = view.resolve(inner)
    if types != (types_pb2.DT_INT32, types_pb2.DT_INT64) or not _is_filled_ids(view, source):
        return None
    return source, (ids.node, *view.aliases(inner))


def is_filled(view: GraphView, entries: Entries) -> bool:
    """Whether empty rows are filled: an op that does so gives the ids, or the rows of entries."""
    return _is_filled_ids(view, entries.ids) or view.op(entries.rows_in.node) in _FILL_OPS


def _is_filled_ids(view: GraphView, ids: Tensor) -> bool:
    return view.op(ids.node) in _FILL_OPS and ids.index == 1


def match_fill(view: GraphView, entries: Entries) -> Fill | NoMatch:
    """Explains entries of which empty rows are filled."""
    name = entries.ids.node
    if not _is_filled_ids(view, entries.ids):
        return NoMatch("empty rows are filled, but the ids are others", name)
    if entries.rows_in != Tensor(name, 0):
        return NoMatch("the segment ids are not the rows of the filled ids", entries.rows_in.node)
    if entries.count is not None:
        return NoMatch("rows are filled, and their number is given, too", name)
    rows, values, count, default = view.inputs(name)
    number = view.constant(default)
    if number is None or number.ndim != 0:
        return NoMatch("the id for empty rows is not a constant", default.node)
    if int(number) < 0:
        return NoMatch("the id for empty rows is negative", default.node)
    nodes: tuple[str, ...] = (name,)
    weights, default_weight, weight_rows = entries.weights, 1.0, None
    if weights is not None:
        filled = _match_filled_weights(view, name, weights)
        if isinstance(filled, NoMatch):
            return filled
        nodes += (weights.node,)
        weight_rows, weights = view.inputs(weights.node)[:2]
        default_weight = filled
    is_sparse = view.op(name) == "SparseFillEmptyRows"
    before = Entries(
        stage=Stage.IDS,
        nodes=(),
        ids=values,
        indices=rows if is_sparse else None,
        rows=None if is_sparse else rows,
        weights=weights,
        count=count,
        dtype=entries.dtype,
        rows_dtype=types_pb2.DT_INT64,
        weight_rows=weight_rows,
    )
    return Fill(
        stage=Stage.IDS,
        nodes=nodes,
        entries=before,
        default=int(number),
        default_weight=default_weight,
        is_row_empty=Tensor(name, 2),
    )


def _id_dtype(view: GraphView, ids: Tensor) -> int:
    """Returns the DataType of the ids, as the op that reads them says."""
    for use in view.tensor_uses(ids):
        index, key = _ID_READERS.get(view.op(use.node), (1, "Tidx"))
        if use.position == index and (dtype := view.type_attr(use.node, key)) != 0:
            return dtype
    return 0


def _match_first_column(view: GraphView, segments: Tensor) -> tuple[Tensor, tuple[str, ...]] | None:
    """Explains row numbers as column 0 of [m, 2] indices."""
    name = segments.node
    if view.op(name) != "StridedSlice" or not _takes_first_column(view, name):
        return None
    indices = view.inputs(name)[0]
    return view.resolve(indices), (name, *view.aliases(indices))


def _is_matrix(view: GraphView, indices: Tensor) -> bool:
    """Whether indices are those of a matrix: filled rows are always given as such."""
    shape = view.shape(indices)
    is_filled = view.op(indices.node) in _FILL_OPS
    return is_filled or (shape is not None and len(shape) == 2 and shape[1] == 2)


def _takes_first_column(view: GraphView, name: str) -> bool:
    """Whether a StridedSlice of a matrix means `[:, 0]`."""
    bounds = [view.constant(bound) for bound in view.inputs(name)[1:]]
    if any(bound is None or bound.shape != (2,) for bound in bounds):
        return False
    begin, _, strides = (bound for bound in bounds if bound is not None)
    masks = {
        key: view.int_attr(name, f"{key}_mask")
        for key in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    all_rows = bool(masks["begin"] & 1 and masks["end"] & 1) and strides[0] == 1
    one_column = masks["shrink_axis"] == 2 and not masks["begin"] & 2 and begin[1] == 0
    return (
        all_rows
        and one_column
        and strides[1] == 1
        and not masks["ellipsis"]
        and not masks["new_axis"]
    )


def _match_filled_weights(view: GraphView, ids_fill: str, weights: Tensor) -> float | NoMatch:
    """Explains the weights as filled in the same rows as the ids, and returns the filler."""
    if view.op(weights.node) != view.op(ids_fill) or weights.index != 1:
        return NoMatch("the weights of empty rows are not filled in", weights.node)
    of_ids, of_weights = view.inputs(ids_fill), view.inputs(weights.node)
    if view.resolve(of_ids[2]) != view.resolve(of_weights[2]):
        return NoMatch("ids and weights are filled in different rows", weights.node)
    if not _same_entries(view, of_ids[0], of_weights[0]):
        return NoMatch("ids and weights are filled in different rows", weights.node)
    value = view.constant(of_weights[3])
    if value is None or value.ndim != 0:
        return NoMatch("the weight of empty rows is not a constant", of_weights[3].node)
    number = float(value)
    if float(np.float32(number)) != number:
        return NoMatch("the weight of empty rows is not a float32 number", of_weights[3].node)
    return number


def _same_entries(view: GraphView, a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same one with the same entries dropped."""
    of_a, of_b = peel(view, a), peel(view, b)
    return of_a.tensors[-1] == of_b.tensors[-1] and of_a.conditions == of_b.conditions
