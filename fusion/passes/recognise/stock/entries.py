"""The id side of a lookup: its entries, and filling of empty rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tensorflow.core.framework import types_pb2

from fusion.passes.graph.idioms import is_integer_cast
from fusion.passes.graph.values import Node, Value
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

    ids: Value
    indices: Value | None
    rows: Value | None
    weights: Value | None
    count: Value | None
    dtype: int
    rows_dtype: int
    weight_rows: Value | None = None
    is_widened: bool = False

    @property
    def rows_in(self) -> Value:
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
    is_row_empty: Value


def match_entries(reduction: Reduction, table: Table) -> Entries | NoMatch:
    """Explains the reduction's segment ids as the rows of the entries that are looked up."""
    ids, segments = table.ids, reduction.segments
    dtype = _id_dtype(ids)
    if dtype not in ID_TYPES:
        return NoMatch("the ids are neither int32 nor int64", ids.node)
    widened = _without_widening(ids)
    if widened is not None:
        ids, dtype = widened[0], types_pb2.DT_INT32
    # Rows without entries are zeros, as many as there are, if their number is given.
    count = reduction.count
    column = _match_first_column(segments) if count is None else None
    is_ragged = segments.node == ids.node and ids.producer.op == "RaggedFillEmptyRows"
    is_table_read = table.shards[0].gather is None
    if column is None and not is_ragged and is_table_read and count is None:
        return NoMatch("the segment ids are not the row numbers of a SparseTensor", segments.node)
    if column is not None and not _is_matrix(column[0]):
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


def _without_widening(ids: Value) -> tuple[Value, tuple[str, ...]] | None:
    """Passes a cast to int64 of the int32 ids of filled rows: these, and the nodes passed.

    Feature columns of TF-Ranking, TFX and EasyRec make it.
    """
    cast = ids.producer
    if not is_integer_cast(cast) or cast.controls:
        return None
    types = cast.type_attr("SrcT"), cast.type_attr("DstT")
    inner = cast.input(0)
    source = inner.resolved
    if types != (types_pb2.DT_INT32, types_pb2.DT_INT64) or not _is_filled_ids(source):
        return None
    return source, (cast.name, *inner.aliases)


def is_filled(entries: Entries) -> bool:
    """Whether empty rows are filled: an op that does so gives the ids, or the rows of entries."""
    return _is_filled_ids(entries.ids) or entries.rows_in.producer.op in _FILL_OPS


def _is_filled_ids(ids: Value) -> bool:
    return ids.producer.op in _FILL_OPS and ids.index == 1


def match_fill(entries: Entries) -> Fill | NoMatch:
    """Explains entries of which empty rows are filled."""
    node = entries.ids.producer
    if not _is_filled_ids(entries.ids):
        return NoMatch("empty rows are filled, but the ids are others", node.name)
    if entries.rows_in != node.output(0):
        return NoMatch("the segment ids are not the rows of the filled ids", entries.rows_in.node)
    if entries.count is not None:
        return NoMatch("rows are filled, and their number is given, too", node.name)
    rows, values, count, default = node.inputs
    number = default.scalar
    if number is None:
        return NoMatch("the id for empty rows is not a constant", default.node)
    if number < 0:
        return NoMatch("the id for empty rows is negative", default.node)
    nodes: tuple[str, ...] = (node.name,)
    weights, default_weight, weight_rows = entries.weights, 1.0, None
    if weights is not None:
        filled = _match_filled_weights(node, weights)
        if isinstance(filled, NoMatch):
            return filled
        nodes += (weights.node,)
        weight_rows, weights = weights.producer.inputs[:2]
        default_weight = filled
    is_sparse = node.op == "SparseFillEmptyRows"
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
        default=number,
        default_weight=default_weight,
        is_row_empty=node.output(2),
    )


def _id_dtype(ids: Value) -> int:
    """Returns the DataType of the ids, as the op that reads them says."""
    for node, position, _ in ids.uses:
        index, key = _ID_READERS.get(node.op, (1, "Tidx"))
        if position == index and (dtype := node.type_attr(key)) != 0:
            return dtype
    return 0


def _match_first_column(segments: Value) -> tuple[Value, tuple[str, ...]] | None:
    """Explains row numbers as column 0 of [m, 2] indices."""
    column = segments.producer
    if column.op != "StridedSlice" or not _takes_first_column(column):
        return None
    indices = column.input(0)
    return indices.resolved, (column.name, *indices.aliases)


def _is_matrix(indices: Value) -> bool:
    """Whether indices are those of a matrix: filled rows are always given as such."""
    shape = indices.shape
    is_filled = indices.producer.op in _FILL_OPS
    return is_filled or (shape is not None and len(shape) == 2 and shape[1] == 2)


def _takes_first_column(column: Node) -> bool:
    """Whether a StridedSlice of a matrix means `[:, 0]`."""
    bounds = [bound.constant for bound in column.inputs[1:]]
    if any(bound is None or bound.shape != (2,) for bound in bounds):
        return False
    begin, _, strides = (bound for bound in bounds if bound is not None)
    masks = {
        key: column.int_attr(f"{key}_mask")
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


def _match_filled_weights(ids_fill: Node, weights: Value) -> float | NoMatch:
    """Explains the weights as filled in the same rows as the ids, and returns the filler."""
    fill = weights.producer
    if fill.op != ids_fill.op or weights.index != 1:
        return NoMatch("the weights of empty rows are not filled in", weights.node)
    of_ids, of_weights = ids_fill.inputs, fill.inputs
    is_same_count = of_ids[2].resolved == of_weights[2].resolved
    if not is_same_count or not _are_same_entries(of_ids[0], of_weights[0]):
        return NoMatch("ids and weights are filled in different rows", weights.node)
    default = of_weights[3]
    if default.scalar is None:
        return NoMatch("the weight of empty rows is not a constant", default.node)
    number = float(default.scalar)
    if float(np.float32(number)) != number:
        return NoMatch("the weight of empty rows is not a float32 number", default.node)
    return number


def _are_same_entries(a: Value, b: Value) -> bool:
    """Whether two tensors are the same one with the same entries dropped."""
    of_a, of_b = peel(a), peel(b)
    return of_a.tensors[-1] == of_b.tensors[-1] and of_a.conditions == of_b.conditions
