"""Partitioned tables: ids split over shards, gathered from each, and stitched together."""

from __future__ import annotations

from dataclasses import dataclass

from fusion.passes.analysis.expressions import Call, Expression, call, expression
from fusion.passes.analysis.symbolic_shapes import Dim, ShapeMath, pass_flat
from fusion.passes.graph.values import Node, Value
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
    gathered: tuple[Value, ...]
    keys: tuple[Value, ...]
    nodes: tuple[str, ...]


def is_stitched(rows: Value) -> bool:
    """Whether rows are put together of several tensors, maybe reshaped."""
    node = rows.producer
    if node.op == "Reshape":
        node = node.input(0).producer
    return node.op in _STITCHES


def match_partition(rows: Value, ids: Value) -> Partition | NoMatch:
    """Explains stitched `rows` as those of `ids` in a partitioned table."""
    match = _pass_reshape(rows, ids)
    if isinstance(match, NoMatch):
        return match
    stitch, passed, width = match
    inputs = stitch.inputs
    count = len(inputs) // 2
    gathered = tuple(one.resolved for one in inputs[count:])
    positions, keys = inputs[0].producer, Node(rows.view, "")
    if gathered[0].producer.input_count > 1:
        keys = gathered[0].producer.input(1).producer
    for node, parts in ((positions, inputs[:count]), (keys, ())):
        if node.op != "DynamicPartition" or node.int_attr("num_partitions") != count:
            return NoMatch("the rows are not those of a partitioned table", stitch.name)
        if any(part.resolved != node.output(i) for i, part in enumerate(parts)):
            return NoMatch("rows are not put back where their ids came from", stitch.name)
    (numbers, shards), (local, same_shards) = positions.inputs, keys.inputs
    if same_shards.resolved != shards.resolved:
        return NoMatch("ids and their positions are partitioned differently", keys.name)
    counter = _match_counter(numbers, ids)
    if counter is None:
        return NoMatch("the positions of ids are not counted from 0", numbers.node)
    split = _match_split(shards, local, ids, count)
    if isinstance(split, NoMatch):
        return split
    strategy, total, nodes = split
    inner = (name for one in (*inputs, shards, same_shards) for name in one.aliases)
    everything = (stitch.name, positions.name, keys.name, *passed, *counter, *nodes, *inner)
    return Partition(
        strategy=strategy,
        split=shard_rows(total, count),
        width=width,
        gathered=gathered,
        keys=tuple(keys.output(i) for i in range(count)),
        nodes=tuple(dict.fromkeys(everything)),
    )


def _pass_reshape(rows: Value, ids: Value) -> tuple[Node, tuple[str, ...], int | None] | NoMatch:
    """Passes the Reshape to [number of ids, D] that restores the static shape of stitched rows."""
    reshape = rows.producer
    if reshape.op in _STITCHES:
        return reshape, rows.aliases, None
    inner, target = reshape.inputs
    math = ShapeMath()
    shape = math.vector(target)
    is_known = shape is not None and len(shape) == 2 and shape[0] in (-1, Dim(ids.tensor, 0))
    if shape is None or not is_known or not isinstance(shape[1], int) or shape[1] < 0:
        return NoMatch("the size of the rows of a partitioned table is not known", reshape.name)
    derived = math.derived(target, {ids})
    return inner.producer, (*rows.path, *inner.aliases, *derived), shape[1]


def _match_counter(numbers: Value, ids: Value) -> tuple[str, ...] | None:
    """Explains `range(size(ids))`: its nodes."""
    counter = numbers.producer
    if counter.op != "Range":
        return None
    start, limit, delta = counter.inputs
    math = ShapeMath()
    if (math.scalar(start), math.scalar(delta)) != (0, 1):
        return None
    nodes = (*numbers.path, *limit.aliases)
    size = limit.producer
    if size.op == "Size":
        of, passed = pass_flat(size.input(0))
        return (*nodes, size.name, *passed) if of == ids else None
    if math.scalar(limit) != Dim(ids.tensor, 0):
        return None
    return (*nodes, *math.derived(limit, {ids}))


def _match_split(
    shards: Value, local: Value, ids: Value, count: int
) -> tuple[str, int | None, tuple[str, ...]] | NoMatch:
    """Explains the shard of each id and its row there: the strategy and the rows it splits."""
    shard, local_id = (expression(value, {ids: _ID}) for value in (shards, local))
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
