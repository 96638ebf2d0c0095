"""Gathers of rows of a table by dense ids, and where their ids come from.

Keras 3 counts ids < 0 from the end of the table: `select(id < 0, id + rows, id)`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from tensorflow.core.framework import types_pb2

from fusion.passes.analysis.crossed_sizes import FilledSize, filled_width
from fusion.passes.analysis.equal_tensors import is_among
from fusion.passes.analysis.rearrangements import REARRANGEMENTS, rearranged, rearranged_input
from fusion.passes.analysis.symbolic_shapes import Dim, ShapeMath, Vector
from fusion.passes.graph.idioms import compares_with, is_row_gather, pass_casts
from fusion.passes.graph.tensor import ARG_OP, Tensor
from fusion.passes.graph.values import Node, Value, named
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import NoMatch, Stage
from fusion.passes.recognise.spec import (
    IdsSpec,
    LookupSpec,
    RaggedIds,
    RowIds,
)
from fusion.passes.recognise.stock.table import (
    UNIQUES,
    Shard,
    Table,
    match_shard,
    table_name,
    table_spec,
)
from fusion.schema.attributes import ID_TYPES, TABLE_TYPES
from fusion.schema.columns import Column
from fusion.schema.names import (
    GROUPED_CROSS,
    GROUPED_IDS,
    GROUPED_SPLIT,
    OP_NAMES,
    PARSE_EXAMPLE,
    PARSE_SEQUENCE,
)

GATHERS = frozenset({"Gather", "GatherV2", "ResourceGather"})

_VARIABLES = frozenset({"Const", "Variable", "VariableV2"})
_SOURCES = _VARIABLES | {"Placeholder", ARG_OP}
"""What a table may come from, other than a variable's handle; a gather of anything else is none.

A vector that is passed in is none, either: it may be anything.
"""

_FRONT = {PARSE_EXAMPLE, PARSE_SEQUENCE, GROUPED_IDS, GROUPED_SPLIT, GROUPED_CROSS}
_OF_PARTS = UNIQUES.union(OP_NAMES, ["DynamicPartition"]) - _FRONT
"""What ids come from that are a part of another lookup's."""


@dataclass(frozen=True)
class Ids:
    """Where ids come from.

    Attributes:
        values: any shape; the gather's are as many, in this order.
        dtype: their DataType.
        wraps: whether those < 0 count from the end of the table.
        nodes: the nodes between.
        same: tensors of the same numbers, and of the same shape if that is kept.
    """

    values: Value
    dtype: int
    wraps: bool
    nodes: tuple[str, ...]
    same: frozenset[Value]


@dataclass(frozen=True)
class Gathered:
    """A gather of rows.

    Attributes:
        node: the gather.
        table: which table.
        dtype, ids_dtype: DataTypes of it, and of the ids as they are looked up.
        ids: where these come from.
        shape: the symbolic shape of the rows: that of the ids, then D; None if it is not known.
            Of a vector there is no D.
    """

    node: Node
    table: Table
    dtype: int
    ids_dtype: int
    ids: Ids
    shape: Vector | None

    @property
    def is_vector(self) -> bool:
        """Whether the table is a vector."""
        return self.table.shards[0].is_vector


@dataclass(frozen=True)
class NoBag(NoMatch):
    """Why an op that adds up gathered rows is no lookup.

    Attributes:
        gather: where the rows come from.
    """

    gather: str

    @staticmethod
    def of(failure: NoMatch, reduction: Node) -> NoBag:
        """Returns a refusal of an op that adds up the rows of a gather."""
        gather = source_gather(reduction.input(0))
        assert gather is not None, "an anchor adds up gathered rows"
        return NoBag(failure.reason, failure.node, gather.name)


def source_gather(added: Value) -> Node | None:
    """Returns the gather whose rows are added up, with or without a mask or weights."""
    source = added.producer
    places = {"Mul": (0, 1), "Select": (1,), "SelectV2": (1,), "Sub": (0,)}
    operands = [source.input(place).producer for place in places.get(source.op, ())]
    return next(filter(is_table_gather, (source, *operands)), None)


def match_added(added: Value) -> tuple[Node, Gathered] | NoMatch:
    """Says what is added up: where it comes from, and the gather of its rows."""
    node = source_gather(added)
    assert node is not None, "an anchor adds up gathered rows"
    gather = match_gather(node, keeps_shape=True)
    if isinstance(gather, NoMatch):
        return gather
    if gather.is_vector:
        return NoMatch("the table is a vector, whose rows are numbers", node.name)
    return added.producer, gather


def row_gathers(view: GraphView) -> Iterator[Node]:
    """Yields the gathers of rows of tables, in file order."""
    return filter(is_table_gather, named(view, *GATHERS))


def is_table_gather(node: Node) -> bool:
    """Whether a node gathers rows of a table by ids that are no other lookup's."""
    op = node.op
    if op not in GATHERS:
        return False
    is_resource = op == "ResourceGather"
    if node.type_attr(_dtype_attr(is_resource)) not in TABLE_TYPES:
        return False
    if not is_resource and not is_row_gather(node):
        return False
    table, ids = node.inputs[:2]
    if ids.producer.op in _OF_PARTS:
        return False
    shape = table.variable_shape if is_resource else table.shape
    is_vector = shape is not None and len(shape) == 1
    if is_vector and _are_places(ids):
        return False
    if is_resource or table.read_handle is not None:
        return True
    source = table.origin.producer.op
    return (source in _SOURCES and len(shape or ()) == 2) or (is_vector and source in _VARIABLES)


def _are_places(ids: Value) -> bool:
    """Whether ids are places in another tensor, at which weights are picked and not looked up."""
    source = ids.producer
    while source.op in ("Cast", "Reshape", "Squeeze"):
        source = source.input(0).producer
    return source.op == "Where"


def match_gather(gather: Node, *, keeps_shape: bool) -> Gathered | NoMatch:
    """Says what a gather of rows of a table reads.

    Args:
        gather: its node.
        keeps_shape: whether the ids have to have the shape of those that are gathered.
    """
    ids = gather.input(1)
    shard = match_shard(gather, ids.resolved)
    if isinstance(shard, NoMatch):
        return shard
    if shard.shape is not None and len(shard.shape) == 1:
        shard = replace(shard, shape=(*shard.shape, 1), is_vector=True)
    if shard.shape is None or len(shard.shape) != 2:
        return NoMatch("the table is not known to be a matrix", gather.name)
    dtype = gather.type_attr("Tindices")
    if dtype not in ID_TYPES:
        return NoMatch("the ids are no int32 or int64", gather.name)
    table = _table(gather, shard)
    return Gathered(
        gather,
        table,
        gather.type_attr(_dtype_attr(shard.is_resource)),
        dtype,
        _ids(ids, table, dtype, keeps_shape),
        _shape(gather, table),
    )


def lookup_of(
    gather: Gathered,
    anchor: Node,
    ids: IdsSpec,
    output: Value,
    column: Column,
    weights: Tensor | None = None,
) -> LookupSpec:
    """Returns what is made of gathered rows."""
    return LookupSpec(
        anchor=anchor.name,
        ids=ids,
        dtype=gather.ids.dtype if isinstance(ids, RaggedIds | RowIds) else gather.ids_dtype,
        table=table_spec(gather.table, gather.dtype),
        column=column,
        output=output.tensor,
        weights=weights,
    )


def ones_like(ones: Value, of: Collection[Value]) -> tuple[str, ...]:
    """Returns the nodes that make a one for each element of one of the tensors; () if none do."""
    source, nodes = ones.producer, ones.path
    value = ones.constant
    if value is not None:
        # Grappler folds ones of a shape that is known.
        is_like = any(one.shape == value.shape for one in of)
        return nodes if is_like and bool((value == 1).all()) else ()
    measured = source
    if source.op == "Fill":
        sizes, number = source.inputs
        measured = sizes.producer
        if number.scalar != 1 or measured.op != "Shape":
            return ()
        nodes += sizes.path
    elif source.op != "OnesLike":
        return ()
    like = measured.input(0)
    return (*nodes, *like.aliases) if is_among(like.resolved, of) else ()


def _dtype_attr(is_resource: bool) -> str:
    return "dtype" if is_resource else "Tparams"


def _table(gather: Node, shard: Shard) -> Table:
    name = table_name(shard.tensor, gather.name)
    if name == gather.name:
        # Where the variable is unknown, the scope is a better name than its last node.
        name = gather.name.rpartition("/")[0] or gather.name
    return Table(
        stage=Stage.ROWS,
        nodes=(gather.name,),
        ids=gather.input(1).resolved,
        unique=None,
        shards=(shard,),
        strategy="",
        split=(),
        clip=None,
        name=name,
    )


def _shape(gather: Node, table: Table) -> Vector | None:
    (shard,) = table.shards
    width = shard.shape[1] if shard.shape is not None else None
    of_ids = _shape_of_ids(gather.input(1), table)
    if of_ids is None or shard.is_vector:
        return of_ids
    return (*of_ids, Dim(gather.output().tensor, len(of_ids)) if width is None else width)


def _shape_of_ids(ids: Value, table: Table) -> Vector | None:
    """The symbolic shape of ids; of crosses each row has as many as the features say."""
    shape = ShapeMath().shape_of(ids)
    if shape is None or len(shape) != 2 or not isinstance(shape[1], Dim):
        return shape
    unwrapped = _unwrapped(ids.resolved, table)
    inner, _ = pass_casts(ids if unwrapped is None else unwrapped[0])
    width = filled_width(inner)
    return shape if width is None else (shape[0], FilledSize.of(width, shape[1]))


def _ids(gathered: Value, table: Table, dtype: int, keeps_shape: bool) -> Ids:
    """Follows ids through what changes none of them, nor their order, and one count from the end.

    A cast to int32 may change some, and its result may wrap round.
    """
    nodes, ids, wraps = gathered.aliases, table.ids, False
    same = {ids}
    while True:
        before = ids
        if not wraps and (unwrapped := _unwrapped(ids, table)) is not None:
            wraps, (ids, passed) = True, unwrapped
            nodes += passed
            same = {ids}
        node = ids.producer
        if _is_widening(node) or (not keeps_shape and _keeps_elements(node)):
            if node.op == "Cast":
                dtype = node.type_attr("SrcT")
            inner = rearranged_input(node)
            nodes += (node.name, *inner.aliases)
            ids = inner.resolved
            same.add(ids)
        if ids == before:
            return Ids(ids, dtype, wraps, tuple(dict.fromkeys(nodes)), frozenset(same))


def _is_widening(node: Node) -> bool:
    if node.op != "Cast" or node.controls:
        return False
    types = node.type_attr("SrcT"), node.type_attr("DstT")
    return types == (types_pb2.DT_INT32, types_pb2.DT_INT64)


def _keeps_elements(node: Node) -> bool:
    """Whether the node gives the elements of its input another shape, which is never an error."""
    if node.op not in REARRANGEMENTS or node.controls:
        return False
    if node.op == "Reshape":
        target = node.input(1).constant
        # Whatever there is fits one size that is not given, where no other one counts.
        if target is not None and sorted(target.reshape(-1)) == [-1, *[1] * (target.size - 1)]:
            return target.ndim == 1
    shapes, inner = ShapeMath(), rearranged_input(node)
    shape = shapes.shape_of(inner)
    position = node.inputs.index(inner)
    return shape is not None and rearranged(shapes, node, position, shape) is not None


def _unwrapped(ids: Value, table: Table) -> tuple[Value, tuple[str, ...]] | None:
    """Returns x and the nodes between, if ids are `select(x < 0, x + rows of the table, x)`."""
    select = ids.producer
    if select.op not in ("Select", "SelectV2") or select.controls:
        return None
    condition, moved, original = select.inputs
    test, total, x = condition.producer, moved.producer, original.resolved
    if test.op != "Less" or not compares_with(test, 0) or total.op not in ("Add", "AddV2"):
        return None
    summands, compared = total.inputs, test.input(0)
    if compared.resolved != x or test.controls:
        return None
    others = [one for one in summands if one.resolved != x]
    if len(others) != 1 or total.controls or not _is_row_count(others[0], table):
        return None
    operands = (condition, moved, original, *summands, compared)
    passed = (alias for operand in operands for alias in operand.aliases)
    return x, (select.name, test.name, total.name, *passed)


def _is_row_count(number: Value, table: Table) -> bool:
    """Whether a number is that of the rows of the table."""
    shard, value = table.shards[0], ShapeMath().scalar(number)
    rows = None if shard.shape is None else shard.shape[0]
    if isinstance(value, int):
        return value == rows
    return isinstance(value, Dim) and value.axis == 0 and _is_table(value, shard)


def _is_table(size: Dim, shard: Shard) -> bool:
    """Whether the size is one of the table, or of another read of the variable that it is."""
    table = shard.tensor.resolved
    measured = Value(table.view, size.tensor)
    if measured == table:
        return True
    handle = table if shard.is_resource else table.read_handle
    other = measured.read_handle
    return handle is not None and other is not None and handle.origin == other.origin
