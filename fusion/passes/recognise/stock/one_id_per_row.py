"""Lookups of one id per row in a few ops, as `DenseFeatures` builds them.

They are `select(id >= 0, gather(table[unique(max(id, 0))]), zeros)`, see
`fusion.feature_column.single_ids.embed`: no segment reduction is in them. One op for all of them is
better still; ops around a gather would not be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensorflow.core.framework import types_pb2

from fusion.passes.analysis.symbolic_shapes import Dim
from fusion.passes.graph.idioms import compares_with, is_row_gather, pass_casts
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.fused.fused_op import Whole
from fusion.passes.recognise.match import NoMatch, Stage
from fusion.passes.recognise.spec import DenseIds, LookupSpec
from fusion.passes.recognise.stock.output import match_tail, match_zeros
from fusion.passes.recognise.stock.reduction import Reduction
from fusion.passes.recognise.stock.table import UNIQUES, Table, match_table, table_spec
from fusion.schema.attributes import ID_TYPES, TABLE_TYPES

LAST = "Select"
"""The op that each such lookup ends with."""


@dataclass(frozen=True)
class _Column:
    """Ids as a matrix.

    Attributes:
        matrix: [B, 1].
        dtype: its DataType.
        nodes: what makes a vector of it.
    """

    matrix: Tensor
    dtype: int
    nodes: tuple[str, ...]


def single_anchors(view: GraphView) -> tuple[str, ...]:
    """Returns the nodes that such lookups may end in, in file order."""
    return tuple(name for name in view.named(LAST) if _rows(view, name) is not None)


def match_single(view: GraphView, select: str) -> Whole | NoMatch:
    """Says what a lookup of one id per row looks up, from its last node."""
    reduction = _rows(view, select)
    assert reduction is not None, "an anchor selects gathered rows"
    gather = reduction.output
    condition, values, zeros = view.inputs(select)
    table = match_table(view, reduction)
    if isinstance(table, NoMatch):
        return table
    strange = next((shard for shard in table.shards if shard.shape is None), None)
    if strange is not None:
        return NoMatch("the table is not known to be a matrix", strange.tensor.node)
    if table.name == gather.node:
        # Where the variable is unknown, the scope is a better name than its last node.
        table = replace(table, name=gather.node.rpartition("/")[0] or gather.node)
    zero_nodes = match_zeros(view, zeros, gather, (), broadcast=False)
    if isinstance(zero_nodes, NoMatch):
        return zero_nodes
    clipped, test = table.ids, view.resolve(condition)
    if view.op(clipped.node) != "Maximum" or not compares_with(view, clipped, 0):
        return NoMatch("the ids are not made 0 where there is none", clipped.node)
    ids = view.inputs(clipped.node)[0]
    if view.op(test.node) != "GreaterEqual" or not compares_with(view, test, 0):
        return NoMatch("rows are not left out by their ids", test.node)
    if view.resolve(view.inputs(test.node)[0]) != view.resolve(ids):
        return NoMatch("rows are left out by other ids", test.node)
    dtype = view.type_attr(clipped.node, "T")
    if dtype not in ID_TYPES:
        return NoMatch("the ids are no int32 or int64", clipped.node)
    column = _column(view, ids, dtype)
    if isinstance(column, NoMatch):
        return column
    result, of_table = Tensor(select), table_spec(view, table, reduction.dtype)
    width = Dim(result, 1) if of_table.shape[1] is None else of_table.shape[1]
    batch = (view.shape(column.matrix) or (None,))[0]
    tail = match_tail(view, result, (Dim(result, 0) if batch is None else batch, width))
    spec = LookupSpec(
        anchor=select,
        ids=DenseIds(column.matrix, column.dtype, None, 0),
        dtype=dtype,
        buckets=None,
        weights=None,
        table=of_table,
        prune=True,
        fill=True,
        default_id=None,
        combiner="sum",
        divide_no_nan=True,
        output=tail.output,
    )
    nodes = (
        select,
        *tail.nodes,
        gather.node,
        *view.aliases(values),
        *zero_nodes,
        *_table_nodes(table),
    )
    nodes += (clipped.node, test.node, *view.aliases(condition))
    front = (*column.nodes, *view.aliases(view.inputs(test.node)[0]))
    return Whole(
        stage=Stage.OUTPUT,
        nodes=tuple(dict.fromkeys(nodes)),
        front=tuple(dict.fromkeys(front)),
        spec=spec,
        of_ids=(table.unique, clipped.node, test.node, *view.aliases(condition)),
    )


def _rows(view: GraphView, select: str) -> Reduction | None:
    """Rows of distinct ids that are gathered for all ids again, as a reduction of each of them."""
    gather = view.resolve(view.inputs(select)[1]).node
    if not is_row_gather(view, gather):
        return None
    rows, positions = view.inputs(gather)[:2]
    unique, dtype = view.resolve(positions), view.type_attr(gather, "Tparams")
    if view.op(unique.node) not in UNIQUES or unique.index != 1 or dtype not in TABLE_TYPES:
        return None
    return Reduction(
        stage=Stage.OUTPUT,
        anchor=gather,
        nodes=(gather,),
        combiner="sum",
        rows=rows,
        positions=positions,
        segments=positions,
        segments_dtype=types_pb2.DT_INT32,
        weights=None,
        weighting=None,
        divide_no_nan=True,
        output=Tensor(gather),
        dtype=dtype,
    )


def _table_nodes(table: Table) -> tuple[str, ...]:
    return table.nodes if table.clip is None else (*table.nodes, *table.clip.nodes)


def _column(view: GraphView, ids: Tensor, dtype: int) -> _Column | NoMatch:
    """The matrix [B, 1] of which a vector of ids of a dtype is made, also of smaller integers."""
    vector, passed = pass_casts(view, ids)
    if view.op(vector.node) == "Reshape":
        column, target = view.inputs(vector.node)
        matrix, behind = pass_casts(view, column)
        shape, new_shape = view.shape(matrix), view.constant(target)
        is_flat = new_shape is not None and new_shape.tolist() == [-1]
        front = (*passed, vector.node, *behind)
        casts = [name for name in front if view.op(name) == "Cast"]
        keeps = all(view.type_attr(name, "DstT") == types_pb2.DT_INT64 for name in casts)
        if is_flat and shape is not None and len(shape) == 2 and shape[1] == 1 and keeps:
            source = view.type_attr(casts[-1], "SrcT") if casts else dtype
            return _Column(matrix, source, front)
    return NoMatch("the ids are not those of a matrix of one column", vector.node)
