"""Lookups that are one fused op, which reads the table itself.

Those of groups are taken apart into such ops first, see `ungroup`.
"""

from __future__ import annotations

from fusion.passes.graph.fused_columns import FusedColumn, only_column
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node, Value
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import NoMatch, Stage, Whole
from fusion.passes.recognise.spec import (
    Addition,
    BucketsSpec,
    DenseIds,
    IdsSpec,
    LookupSpec,
    RaggedIds,
    RowIds,
    ShardSpec,
    SparseIds,
    TableSpec,
    WeightsSpec,
)
from fusion.passes.recognise.stock.table import table_name


def match_whole(node: Node) -> Whole | NoMatch:
    """Says what a FusedEmbeddingLookup without boundaries looks up."""
    view, name = node
    column = only_column(view, name)
    if column.boundaries:
        return NoMatch("its ids are made of values by boundaries", name)
    if column.is_packed:
        return NoMatch("the rows of its table are packed", name)
    spec = column_spec(view, name, column)
    if spec.addition is not None:
        return NoMatch("its rows are added as stock's dense sums do", name)
    if spec.fill != (column.column.row_count == "dense_shape"):
        return NoMatch("empty rows are filled, but only up to the last with an entry", name)
    passed = (alias for tensor in column.inputs for alias in view.aliases(tensor))
    return Whole(stage=Stage.OUTPUT, nodes=(name,), front=tuple(dict.fromkeys(passed)), spec=spec)


def column_spec(view: GraphView, name: str, column: FusedColumn) -> LookupSpec:
    """Returns what a column of an op for whole lookups looks up, boundaries aside."""
    attrs, inputs = column.column, column.inputs
    counts = attrs.row_count == "dense_shape"
    default, limit = attrs.default_id, attrs.max_norm
    fills = attrs.fill_empty_row
    weights = None
    if attrs.use_sparse_weights:
        weights = WeightsSpec(inputs[4], attrs.prune_sparse_weights, attrs.default_weight)
    count, addition = attrs.num_buckets, None
    if attrs.sum_order != "segment":
        epsilon = inputs[4] if attrs.epsilon_input else attrs.divisor_epsilon
        order, is_product = attrs.sum_order, attrs.mask_product
        addition = Addition(order, is_product, attrs.mask_penalty, epsilon)
    return LookupSpec(
        anchor=name,
        ids=_ids(column, counts),
        dtype=column.dtypes[0],
        buckets=BucketsSpec(count, attrs.bucket_default) if count else None,
        weights=weights,
        table=_table(view, name, column, limit if limit >= 0 else None),
        prune=attrs.prune,
        fill=counts or fills,
        default_id=default if fills and default >= 0 else None,
        combiner=attrs.combiner,
        divide_no_nan=attrs.divide_no_nan,
        output=Tensor(name),
        addition=addition,
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
    dim = column.column.dim if column.is_packed else dim
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
    return TableSpec((shard,), "", (), dtype, max_norm, called, column.column.row_format)
