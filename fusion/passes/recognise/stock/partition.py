"""Partitioned tables: ids split over shards, gathered from each, and stitched together."""

from __future__ import annotations

from dataclasses import dataclass

from fusion.passes.analysis.expressions import Call, Expression, call, expression
from fusion.passes.analysis.symbolic_shapes import Dim, ShapeMath, pass_flat
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import NoMatch

_STITCHES = frozenset({"ParallelDynamicStitch", "DynamicStitch"})
_ID = "id"


@dataclass(frozen=True)
class Partition:
    """`stitch` of each shard's rows: one row for each id.

    Attributes:
        strategy: div or mod.
        split: the rows of each shard that div counts on; () for mod, which needs none.
        width: the size of a row that the stitched rows are given, None where they are given none.
        gathered: the gathered rows of each shard.
        keys: the ids in each shard, as its gather must read them.
        nodes: what computes it, without the gathers.
    """

    strategy: str
    split: tuple[int, ...]
    width: int | None
    gathered: tuple[Tensor, ...]
    keys: tuple[Tensor, ...]
    nodes: tuple[str, ...]


def is_stitched(view: GraphView, rows: Tensor) -> bool:
    """Whether rows are put together of several tensors, maybe reshaped."""
    rows = view.resolve(rows)
    if view.op(rows.node) == "Reshape":
        rows = view.resolve(view.inputs(rows.node)[0])
    return view.op(rows.node) in _STITCHES


def match_partition(view: GraphView, rows: Tensor, ids: Tensor) -> Partition | NoMatch:
    """Explains stitched `rows` as those of `ids` in a partitioned table."""
    match = _pass_reshape(view, rows, ids)
    if isinstance(match, NoMatch):
        return match
    stitch, passed, width = match
    inputs = view.inputs(stitch.node)
    count = len(inputs) // 2
    gathered = tuple(view.resolve(tensor) for tensor in inputs[count:])
    positions = view.resolve(inputs[0]).node
    keys = view.resolve(view.inputs(gathered[0].node)[1]).node if _has_keys(view, gathered) else ""
    for node, parts in ((positions, inputs[:count]), (keys, ())):
        if view.op(node) != "DynamicPartition" or view.int_attr(node, "num_partitions") != count:
            return NoMatch("the rows are not those of a partitioned table", stitch.node)
        if any(view.resolve(part) != Tensor(node, i) for i, part in enumerate(parts)):
            return NoMatch("rows are not put back where their ids came from", stitch.node)
    (numbers, shards), (local, same_shards) = view.inputs(positions), view.inputs(keys)
    if view.resolve(same_shards) != view.resolve(shards):
        return NoMatch("ids and their positions are partitioned differently", keys)
    counter = _match_counter(view, numbers, ids)
    if counter is None:
        return NoMatch("the positions of ids are not counted from 0", numbers.node)
    split = _match_split(view, shards, local, ids, count)
    if isinstance(split, NoMatch):
        return split
    strategy, total, nodes = split
    inner = (name for tensor in (*inputs, shards, same_shards) for name in view.aliases(tensor))
    everything = (stitch.node, positions, keys, *passed, *counter, *nodes, *inner)
    return Partition(
        strategy=strategy,
        split=shard_rows(total, count),
        width=width,
        gathered=gathered,
        keys=tuple(Tensor(keys, i) for i in range(count)),
        nodes=tuple(dict.fromkeys(everything)),
    )


def _has_keys(view: GraphView, gathered: tuple[Tensor, ...]) -> bool:
    return len(view.inputs(gathered[0].node)) > 1


def _pass_reshape(
    view: GraphView, rows: Tensor, ids: Tensor
) -> tuple[Tensor, tuple[str, ...], int | None] | NoMatch:
    """Passes the Reshape to [number of ids, D] that restores the static shape of stitched rows."""
    passed = view.aliases(rows)
    rows = view.resolve(rows)
    if view.op(rows.node) in _STITCHES:
        return rows, passed, None
    inner, target = view.inputs(rows.node)
    stitch = view.resolve(inner)
    math = ShapeMath(view)
    shape = math.vector(target)
    is_known = shape is not None and len(shape) == 2 and shape[0] in (-1, Dim(ids, 0))
    if shape is None or not is_known or not isinstance(shape[1], int) or shape[1] < 0:
        return NoMatch("the size of the rows of a partitioned table is not known", rows.node)
    derived = math.derived(target, {ids})
    return stitch, (*passed, rows.node, *view.aliases(inner), *derived), shape[1]


def _match_counter(view: GraphView, numbers: Tensor, ids: Tensor) -> tuple[str, ...] | None:
    """Explains `range(size(ids))`: its nodes."""
    source = view.resolve(numbers)
    if view.op(source.node) != "Range":
        return None
    start, limit, delta = view.inputs(source.node)
    math = ShapeMath(view)
    if (math.scalar(start), math.scalar(delta)) != (0, 1):
        return None
    size = view.resolve(limit)
    nodes = (*view.aliases(numbers), source.node, *view.aliases(limit))
    if view.op(size.node) == "Size":
        of, passed = pass_flat(view, view.inputs(size.node)[0])
        return (*nodes, size.node, *passed) if of == ids else None
    if math.scalar(limit) != Dim(ids, 0):
        return None
    return (*nodes, *math.derived(limit, {ids}))


def _match_split(
    view: GraphView, shards: Tensor, local: Tensor, ids: Tensor, count: int
) -> tuple[str, int | None, tuple[str, ...]] | NoMatch:
    """Explains the shard of each id and its row there: the strategy and the rows it splits."""
    shard, local_id = (expression(view, tensor, {ids: _ID}) for tensor in (shards, local))
    if shard is None or local_id is None:
        return NoMatch("ids are assigned to shards in an unknown way", shards.node)
    nodes = (*shard[1], *local_id[1])
    if (shard[0], local_id[0]) == (call("mod", _ID, count), call("div", _ID, count)):
        return "mod", None, nodes
    total = _rows_of_div(shard[0], count)
    if total is not None and (shard[0], local_id[0]) == _split_div(total, count):
        return "div", total, nodes
    return NoMatch("ids are assigned to shards in an unknown way", shards.node)


def shard_rows(rows: int | None, count: int) -> tuple[int, ...]:
    """Returns the rows of each shard as stock TensorFlow splits them; () if unknown."""
    if rows is None:
        return ()
    return tuple(rows // count + (i < rows % count) for i in range(count))


def _split_div(rows: int, count: int) -> tuple[Expression, Expression]:
    """Stock TensorFlow's arithmetic: the first `rows % count` shards have one row more."""
    size, extra = divmod(rows, count)
    rest = call("sub", _ID, extra)
    shard = call("max", call("div", _ID, size + 1), call("div", rest, size))
    is_long = call("less", shard, extra)
    return shard, call("select", is_long, call("mod", _ID, size + 1), call("mod", rest, size))


def _rows_of_div(shard: Expression, count: int) -> int | None:
    """Returns the number of rows that an expression for div may split, from its constants."""
    if not isinstance(shard, Call) or shard.name != "max":
        return None
    size, extra = None, 0
    for part in shard.operands:
        if not isinstance(part, Call) or part.name != "div":
            return None
        number, divisor = part.operands
        if not isinstance(divisor, int):
            return None
        size = divisor if size is None else min(size, divisor)
        if isinstance(number, Call) and isinstance(number.operands[-1], int):
            extra = number.operands[-1]
    # With fewer rows than shards stock TensorFlow divides by 0.
    return size * count + extra if size is not None and size > 0 else None
