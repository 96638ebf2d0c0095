"""Lookups that are one fused op, which reads the table itself.

Those of groups are taken apart into such ops first, see `ungroup`.
"""

from __future__ import annotations

from dataclasses import replace

from fusion.passes.graph.fused_columns import FusedColumn, only_column
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node, Value
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import NoMatch, Stage, Whole
from fusion.passes.recognise.spec import (
    DenseIds,
    IdsSpec,
    LookupSpec,
    RaggedIds,
    RowIds,
    ShardSpec,
    SparseIds,
    TableSpec,
)
from fusion.passes.recognise.stock.table import table_name


def match_whole(node: Node) -> Whole | NoMatch:
    """Says what a FusedEmbeddingLookup without boundaries looks up."""
    view, name = node
    column = only_column(view, name)
    if column.boundaries:
        return NoMatch("its ids are made of values by boundaries", name)
    if column.column.is_packed:
        return NoMatch("the rows of its table are packed", name)
    if column.column.id_column >= 0:
        return NoMatch("its ids are a column of a matrix", name)
    spec = column_spec(view, name, column)
    if spec.column.is_dense_sum:
        return NoMatch("its rows are added as stock's dense sums do", name)
    if spec.column.fill_empty_row != (spec.column.row_count == "dense_shape"):
        return NoMatch("empty rows are filled, but only up to the last with an entry", name)
    passed = (alias for tensor in column.inputs for alias in view.aliases(tensor))
    return Whole(stage=Stage.OUTPUT, nodes=(name,), front=tuple(dict.fromkeys(passed)), spec=spec)


def column_spec(view: GraphView, name: str, column: FusedColumn) -> LookupSpec:
    """Returns what a column of an op for whole lookups looks up, boundaries aside."""
    attrs, inputs = column.column, column.inputs
    counts, limit = attrs.row_count == "dense_shape", attrs.max_norm
    if counts and not attrs.fill_empty_row:
        attrs = replace(attrs, fill_empty_row=True, default_id=-1)
    return LookupSpec(
        anchor=name,
        ids=_ids(column, counts),
        dtype=column.dtypes[0],
        table=_table(view, name, column, limit if limit >= 0 else None),
        column=attrs,
        output=Tensor(name),
        weights=inputs[4] if attrs.use_sparse_weights or attrs.epsilon_input else None,
    )


def _ids(column: FusedColumn, counts: bool) -> IdsSpec:
    _, ids, rows, shape, _ = column.inputs
    attrs, (dtype, rows_dtype) = column.column, column.dtypes
    if attrs.form == "indices":
        return SparseIds(ids, rows, shape if counts else None, flattened=False)
    if attrs.form == "row_splits":
        return RaggedIds(ids, rows, rows_dtype, attrs.wrap_negative)
    if attrs.form == "row_ids":
        return RowIds(ids, rows, rows_dtype, shape if counts else None, attrs.wrap_negative)
    ignored = attrs.ignored_id if attrs.use_ignored_id else None
    return DenseIds(
        ids,
        dtype,
        ignored,
        attrs.column_stride,
        is_each=attrs.form == "each",
        wraps=attrs.wrap_negative,
        lengths=rows if attrs.form == "lengths" else None,
        lengths_dtype=rows_dtype,
    )


def _table(view: GraphView, name: str, column: FusedColumn, max_norm: float | None) -> TableSpec:
    table = column.inputs[0]
    shape, node = view.shape(table), view.nodes[table.node]
    rows, dim = shape if shape is not None and len(shape) == 2 else (None, None)
    dim = column.column.dim if column.column.is_packed else dim
    groups = node.attr["_class"].list.s if "_class" in node.attr else ()
    shard = ShardSpec(
        kind="tensor",
        tensor=table,
        rows=rows,
        dim=dim,
        gather="",
        device=node.device,
        colocation=tuple(group.decode() for group in groups),
    )
    dtype, called = view.type_attr(name, "T"), table_name(Value(view, table), name)
    return TableSpec((shard,), "", (), dtype, max_norm, called)
