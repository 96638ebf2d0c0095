"""Gathers of rows of a table by dense ids, and where their ids come from.

Keras 3 counts ids < 0 from the end of the table: `select(id < 0, id + rows, id)`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from tensorflow.core.framework import types_pb2

from fusion.passes.analysis.equal_tensors import is_among
from fusion.passes.analysis.rearrangements import REARRANGEMENTS, rearranged, rearranged_input
from fusion.passes.analysis.symbolic_shapes import Dim, Element, ShapeMath, Vector
from fusion.passes.graph.idioms import compares_with, is_row_gather
from fusion.passes.graph.tensor import ARG_OP, Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import NoMatch, Stage
from fusion.passes.recognise.spec import (
    Addition,
    IdsSpec,
    LookupSpec,
    RaggedIds,
    RowIds,
    WeightsSpec,
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
from fusion.schema.names import OP_NAMES

GATHERS = frozenset({"Gather", "GatherV2", "ResourceGather"})

_VARIABLES = frozenset({"Const", "Variable", "VariableV2"})
_HELD = _VARIABLES | {"Placeholder", ARG_OP}
"""What a table may come from, other than a variable's handle; a gather of anything else is none.

A vector that is passed in is none, either: it may be anything.
"""

_OF_PARTS = UNIQUES.union(OP_NAMES, ["DynamicPartition"])
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

    values: Tensor
    dtype: int
    wraps: bool
    nodes: tuple[str, ...]
    same: frozenset[Tensor]


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

    node: str
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
    def of(failure: NoMatch, view: GraphView, reduction: str) -> NoBag:
        """Returns a refusal of an op that adds up the rows of a gather."""
        gather = gather_behind(view, view.inputs(reduction)[0])
        assert gather is not None, "an anchor adds up gathered rows"
        return NoBag(failure.reason, failure.node, gather)


def gather_behind(view: GraphView, added: Tensor) -> str | None:
    """Returns the gather whose rows are added up, with or without a mask or weights."""
    source = view.resolve(added)
    places = {"Mul": (0, 1), "Select": (1,), "SelectV2": (1,), "Sub": (0,)}
    inputs = places.get(view.op(source.node), ())
    operands = [source, *(view.resolve(view.inputs(source.node)[k]) for k in inputs)]
    return next((one.node for one in operands if is_table_gather(view, one.node)), None)


def match_added(view: GraphView, added: Tensor) -> tuple[Tensor, Gathered] | NoMatch:
    """Says what is added up: where it comes from, and the gather of its rows."""
    name = gather_behind(view, added)
    assert name is not None, "an anchor adds up gathered rows"
    gather = match_gather(view, name, keeps_shape=True)
    if isinstance(gather, NoMatch):
        return gather
    if gather.is_vector:
        return NoMatch("the table is a vector, whose rows are numbers", name)
    return view.resolve(added), gather


def row_gathers(view: GraphView) -> Iterator[str]:
    """Yields the gathers of rows of tables, in file order."""
    return (name for name in view.named(*GATHERS) if is_table_gather(view, name))


def is_table_gather(view: GraphView, name: str) -> bool:
    """Whether a node gathers rows of a table by ids that are no other lookup's."""
    op = view.op(name)
    if op not in GATHERS:
        return False
    is_resource = op == "ResourceGather"
    if view.type_attr(name, _dtype_attr(is_resource)) not in TABLE_TYPES:
        return False
    if not is_resource and not is_row_gather(view, name):
        return False
    table, ids = view.inputs(name)[:2]
    if view.op(view.resolve(ids).node) in _OF_PARTS:
        return False
    shape = view.variable_shape(table) if is_resource else view.shape(table)
    is_vector = shape is not None and len(shape) == 1
    if is_vector and _are_places(view, ids):
        return False
    if is_resource or view.read_handle(table) is not None:
        return True
    held = view.op(view.origin(table).node)
    return (held in _HELD and len(shape or ()) == 2) or (is_vector and held in _VARIABLES)


def _are_places(view: GraphView, ids: Tensor) -> bool:
    """Whether ids are places in another tensor, at which weights are picked and not looked up."""
    source = view.resolve(ids)
    while view.op(source.node) in ("Cast", "Reshape", "Squeeze"):
        source = view.resolve(view.inputs(source.node)[0])
    return view.op(source.node) == "Where"


def match_gather(view: GraphView, gather: str, *, keeps_shape: bool) -> Gathered | NoMatch:
    """Says what a gather of rows of a table reads.

    Args:
        view: the graph.
        gather: its node.
        keeps_shape: whether the ids have to have the shape of those that are gathered.
    """
    is_resource = view.op(gather) == "ResourceGather"
    shard = match_shard(view, Tensor(gather), view.resolve(view.inputs(gather)[1]))
    if isinstance(shard, NoMatch):
        return shard
    if shard.shape is not None and len(shard.shape) == 1:
        shard = replace(shard, shape=(*shard.shape, 1), is_vector=True)
    if shard.shape is None or len(shard.shape) != 2:
        return NoMatch("the table is not known to be a matrix", gather)
    dtype = view.type_attr(gather, "Tindices")
    if dtype not in ID_TYPES:
        return NoMatch("the ids are no int32 or int64", gather)
    table = _table(view, gather, shard)
    return Gathered(
        gather,
        table,
        view.type_attr(gather, _dtype_attr(is_resource)),
        dtype,
        _ids(view, table, dtype, keeps_shape),
        _shape(view, gather, shard),
    )


def lookup_of(
    view: GraphView,
    gather: Gathered,
    anchor: str,
    ids: IdsSpec,
    output: Tensor,
    *,
    combiner: str = "sum",
    divide_no_nan: bool = True,
    weights: WeightsSpec | None = None,
    addition: Addition | None = None,
) -> LookupSpec:
    """Returns what is made of gathered rows; none is left out and none is filled in."""
    return LookupSpec(
        anchor=anchor,
        ids=ids,
        dtype=gather.ids.dtype if isinstance(ids, RaggedIds | RowIds) else gather.ids_dtype,
        buckets=None,
        weights=weights,
        table=table_spec(view, gather.table, gather.dtype),
        prune=False,
        fill=True,
        default_id=None,
        combiner=combiner,
        divide_no_nan=divide_no_nan,
        output=output,
        addition=addition,
    )


def ones_like(view: GraphView, ones: Tensor, of: Collection[Tensor]) -> tuple[str, ...]:
    """Returns the nodes that make a one for each element of one of the tensors; () if none do."""
    source, nodes = view.resolve(ones), view.aliases(ones)
    nodes += (source.node,)
    value = view.constant(source)
    if value is not None:
        # Grappler folds ones of a shape that is known.
        is_like = any(view.shape(tensor) == value.shape for tensor in of)
        return nodes if is_like and bool((value == 1).all()) else ()
    measured = source
    if view.op(source.node) == "Fill":
        sizes, number = view.inputs(source.node)
        value, measured = view.constant(number), view.resolve(sizes)
        if value is None or value.ndim or value != 1 or view.op(measured.node) != "Shape":
            return ()
        nodes += (*view.aliases(sizes), measured.node)
    elif view.op(source.node) != "OnesLike":
        return ()
    like = view.inputs(measured.node)[0]
    return (*nodes, *view.aliases(like)) if is_among(view, view.resolve(like), of) else ()


def _dtype_attr(is_resource: bool) -> str:
    return "dtype" if is_resource else "Tparams"


def _table(view: GraphView, gather: str, shard: Shard) -> Table:
    name = table_name(view, shard.tensor, gather)
    if name == gather:
        # Where the variable is unknown, the scope is a better name than its last node.
        name = gather.rpartition("/")[0] or gather
    return Table(
        stage=Stage.ROWS,
        nodes=(gather,),
        ids=view.resolve(view.inputs(gather)[1]),
        unique="",
        shards=(shard,),
        strategy="",
        split=(),
        clip=None,
        name=name,
    )


def _shape(view: GraphView, gather: str, shard: Shard) -> Vector | None:
    ids, width = view.inputs(gather)[1], shard.shape[1] if shard.shape is not None else None
    of_ids = ShapeMath(view).shape_of(ids)
    if of_ids is None or shard.is_vector:
        return of_ids
    return (*of_ids, Dim(Tensor(gather), len(of_ids)) if width is None else width)


def _ids(view: GraphView, table: Table, dtype: int, keeps_shape: bool) -> Ids:
    """Follows ids through what changes none of them, nor their order, and one count from the end.

    A cast to int32 may change some, and its result may wrap round.
    """
    gathered = view.inputs(table.nodes[0])[1]
    nodes, tensor, wraps = view.aliases(gathered), table.ids, False
    same = {tensor}
    while True:
        before = tensor
        if not wraps and (unwrapped := _unwrapped(view, tensor, table)) is not None:
            wraps, (tensor, passed) = True, unwrapped
            nodes += passed
            same = {tensor}
        is_moved = not keeps_shape and _keeps_elements(view, tensor.node)
        if _is_widening(view, tensor.node) or is_moved:
            if view.op(tensor.node) == "Cast":
                dtype = view.type_attr(tensor.node, "SrcT")
            inner = rearranged_input(view, tensor.node)
            nodes += (tensor.node, *view.aliases(inner))
            tensor = view.resolve(inner)
            same.add(tensor)
        if tensor == before:
            return Ids(tensor, dtype, wraps, tuple(dict.fromkeys(nodes)), frozenset(same))


def _is_widening(view: GraphView, name: str) -> bool:
    if view.op(name) != "Cast" or view.controls(name):
        return False
    types = view.type_attr(name, "SrcT"), view.type_attr(name, "DstT")
    return types == (types_pb2.DT_INT32, types_pb2.DT_INT64)


def _keeps_elements(view: GraphView, name: str) -> bool:
    """Whether the node gives the elements of its input another shape, which is never an error."""
    if view.op(name) not in REARRANGEMENTS or view.controls(name):
        return False
    if view.op(name) == "Reshape":
        target = view.constant(view.inputs(name)[1])
        # Whatever there is fits one size that is not given, where no other one counts.
        if target is not None and sorted(target.reshape(-1)) == [-1, *[1] * (target.size - 1)]:
            return target.ndim == 1
    shapes, inner = ShapeMath(view), rearranged_input(view, name)
    shape = shapes.shape_of(inner)
    position = view.inputs(name).index(inner)
    return shape is not None and rearranged(shapes, name, position, shape) is not None


def _unwrapped(view: GraphView, ids: Tensor, table: Table) -> tuple[Tensor, tuple[str, ...]] | None:
    """Returns x and the nodes between, if ids are `select(x < 0, x + rows of the table, x)`."""
    if view.op(ids.node) not in ("Select", "SelectV2") or view.controls(ids.node):
        return None
    condition, moved, kept = view.inputs(ids.node)
    test, total, x = (view.resolve(tensor) for tensor in (condition, moved, kept))
    if view.op(test.node) != "Less" or not compares_with(view, test, 0):
        return None
    if view.op(total.node) not in ("Add", "AddV2"):
        return None
    summands = view.inputs(total.node)
    if view.resolve(view.inputs(test.node)[0]) != x or view.controls(test.node):
        return None
    others = [one for one in summands if view.resolve(one) != x]
    if len(others) != 1 or view.controls(total.node) or not _is_row_count(view, others[0], table):
        return None
    tensors = (condition, moved, kept, *summands, view.inputs(test.node)[0])
    passed = (alias for tensor in tensors for alias in view.aliases(tensor))
    return x, (ids.node, test.node, total.node, *passed)


def _is_row_count(view: GraphView, number: Tensor, table: Table) -> bool:
    """Whether a number is that of the rows of the table."""
    shard, value = table.shards[0], ShapeMath(view).scalar(number)
    rows = None if shard.shape is None else shard.shape[0]
    if isinstance(value, int):
        return value == rows
    return isinstance(value, Dim) and value.axis == 0 and _is_table(view, value, shard)


def _is_table(view: GraphView, size: Element, shard: Shard) -> bool:
    """Whether the size is one of the table, or of another read of the variable that it is."""
    assert isinstance(size, Dim)
    table = view.resolve(shard.tensor)
    if size.tensor == table:
        return True
    handle = table if shard.is_resource else view.read_handle(table)
    other = view.read_handle(size.tensor)
    return handle is not None and other is not None and view.origin(handle) == view.origin(other)
