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
from fusion.passes.graph.values import Node, Value, named
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import NoMatch, Stage, Whole
from fusion.passes.recognise.spec import DenseIds, LookupSpec
from fusion.passes.recognise.stock.output import match_tail, match_zeros
from fusion.passes.recognise.stock.reduction import Reduction
from fusion.passes.recognise.stock.table import UNIQUES, Table, match_table, table_spec
from fusion.schema.attributes import ID_TYPES, TABLE_TYPES
from fusion.schema.columns import Column

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

    matrix: Value
    dtype: int
    nodes: tuple[str, ...]


def single_anchors(view: GraphView) -> tuple[Node, ...]:
    """Returns the nodes that such lookups may end in, in file order."""
    return tuple(select for select in named(view, LAST) if _rows(select) is not None)


def match_single(select: Node) -> Whole | NoMatch:
    """Says what a lookup of one id per row looks up, from its last node."""
    reduction = _rows(select)
    assert reduction is not None, "an anchor selects gathered rows"
    gather = reduction.anchor.name
    condition, values, zeros = select.inputs
    table = match_table(reduction)
    if isinstance(table, NoMatch):
        return table
    strange = next((shard for shard in table.shards if shard.shape is None), None)
    if strange is not None:
        return NoMatch("the table is not known to be a matrix", strange.tensor.node)
    if table.name == gather:
        # Where the variable is unknown, the scope is a better name than its last node.
        table = replace(table, name=gather.rpartition("/")[0] or gather)
    zero_nodes = match_zeros(zeros, reduction.output, (), broadcast=False)
    if isinstance(zero_nodes, NoMatch):
        return zero_nodes
    clipped, test = table.ids.producer, condition.producer
    if clipped.op != "Maximum" or not compares_with(clipped, 0):
        return NoMatch("the ids are not made 0 where there is none", clipped.name)
    ids = clipped.input(0)
    if test.op != "GreaterEqual" or not compares_with(test, 0):
        return NoMatch("rows are not left out by their ids", test.name)
    compared = test.input(0)
    if compared.resolved != ids.resolved:
        return NoMatch("rows are left out by other ids", test.name)
    dtype = clipped.type_attr("T")
    if dtype not in ID_TYPES:
        return NoMatch("the ids are no int32 or int64", clipped.name)
    column = _column(ids, dtype)
    if isinstance(column, NoMatch):
        return column
    result, of_table = select.output(), table_spec(table, reduction.dtype)
    width = Dim(result.tensor, 1) if of_table.shape[1] is None else of_table.shape[1]
    batch = (column.matrix.shape or (None,))[0]
    tail = match_tail(result, (Dim(result.tensor, 0) if batch is None else batch, width))
    spec = LookupSpec(
        anchor=select.name,
        ids=DenseIds(column.matrix.tensor, column.dtype, None, 0),
        dtype=dtype,
        table=of_table,
        column=Column(combiner="sum", prune=True, fill_empty_row=True),
        output=tail.output.tensor,
    )
    of_ids = (clipped.name, test.name, *condition.aliases)
    nodes = (
        select.name,
        *tail.nodes,
        gather,
        *values.aliases,
        *zero_nodes,
        *_table_nodes(table),
        *of_ids,
    )
    assert table.unique is not None, "these rows are those of distinct ids"
    return Whole(
        stage=Stage.OUTPUT,
        nodes=tuple(dict.fromkeys(nodes)),
        front=tuple(dict.fromkeys((*column.nodes, *compared.aliases))),
        spec=spec,
        of_ids=(table.unique.name, *of_ids),
    )


def _rows(select: Node) -> Reduction | None:
    """Rows of distinct ids that are gathered for all ids again, as a reduction of each of them."""
    gather = select.input(1).producer
    if not is_row_gather(gather):
        return None
    rows, positions = gather.inputs[:2]
    dtype, is_distinct = gather.type_attr("Tparams"), positions.producer.op in UNIQUES
    if not is_distinct or positions.resolved.index != 1 or dtype not in TABLE_TYPES:
        return None
    return Reduction(
        stage=Stage.OUTPUT,
        anchor=gather,
        nodes=(gather.name,),
        combiner="sum",
        rows=rows,
        positions=positions,
        segments=positions,
        segments_dtype=types_pb2.DT_INT32,
        weights=None,
        weighting=None,
        divide_no_nan=True,
        output=gather.output(),
        dtype=dtype,
    )


def _table_nodes(table: Table) -> tuple[str, ...]:
    return table.nodes if table.clip is None else (*table.nodes, *table.clip.nodes)


def _column(ids: Value, dtype: int) -> _Column | NoMatch:
    """The matrix [B, 1] of which a vector of ids of a dtype is made, also of smaller integers."""
    vector, passed = pass_casts(ids)
    reshape = vector.producer
    if reshape.op == "Reshape":
        column, target = reshape.inputs
        matrix, cast_nodes = pass_casts(column)
        shape, front = matrix.shape, (*passed, reshape.name, *cast_nodes)
        nodes = (Node(ids.view, name) for name in front)
        casts = [node for node in nodes if node.op == "Cast"]
        keeps = all(cast.type_attr("DstT") == types_pb2.DT_INT64 for cast in casts)
        is_column = shape is not None and len(shape) == 2 and shape[1] == 1
        if target.elements == [-1] and is_column and keeps:
            return _Column(matrix, casts[-1].type_attr("SrcT") if casts else dtype, front)
    return NoMatch("the ids are not those of a matrix of one column", reshape.name)
