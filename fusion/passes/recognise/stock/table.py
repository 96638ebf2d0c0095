"""The table side of a lookup: which matrices the ids index, and how their rows are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fusion.passes.analysis.handles import shared_name
from fusion.passes.graph.idioms import is_row_gather
from fusion.passes.graph.tensor import ARG_OP, Shape
from fusion.passes.graph.values import Node, Value
from fusion.passes.recognise.match import Match, NoMatch, Stage
from fusion.passes.recognise.spec import ShardSpec, TableSpec
from fusion.passes.recognise.stock.max_norm import Clip, is_quotient, match_clip
from fusion.passes.recognise.stock.partition import is_stitched, match_partition, shard_rows
from fusion.passes.recognise.stock.reduction import Reduction, not_a_matrix
from fusion.schema.names import PARTITION, UNIQUE

UNIQUES = frozenset({"Unique", UNIQUE})
"""What finds distinct ids, in order of first occurrence: output 0; 1 has the index of each id."""


@dataclass(frozen=True)
class Shard:
    """A matrix, or the rows of a partitioned one that it holds.

    Attributes:
        tensor: the resource handle or the matrix.
        is_resource: which of the two.
        gather: the node that reads the rows; None when the reduction reads the matrix itself.
        shape: static [rows, D], or None.
        is_vector: whether it is a vector in truth; D is 1 then.
    """

    tensor: Value
    is_resource: bool
    gather: Node | None
    shape: Shape | None
    is_vector: bool = False


@dataclass(frozen=True, kw_only=True)
class Table(Match):
    """The table of a lookup.

    Attributes:
        ids: the id of each entry.
        unique: the node that finds the distinct ids; None where ids are looked up as they are.
        shards: the table, in one or more matrices.
        strategy: how rows are split over several shards: div or mod; "" for one.
        split: the rows of each shard that div counts on; () otherwise.
        clip: what max_norm makes of the rows, None without it.
        name: for people.
    """

    ids: Value
    unique: Node | None
    shards: tuple[Shard, ...]
    strategy: str
    split: tuple[int, ...]
    clip: Clip | None
    name: str


def match_table(reduction: Reduction) -> Table | NoMatch:
    """Explains the reduced rows as `table[unique ids]` or as the table itself."""
    positions = reduction.positions.resolved
    is_classic = positions.producer.op in UNIQUES and positions.index == 1
    table = _match_classic(reduction) if is_classic else _match_fast(reduction)
    if isinstance(table, NoMatch):
        return table
    for shard in table.shards:
        strange = None if shard.shape is None else not_a_matrix(shard.shape, shard.tensor.node)
        if strange is not None:
            return strange
    return table


def _match_fast(reduction: Reduction) -> Table:
    rows = reduction.rows
    return Table(
        stage=Stage.ROWS,
        nodes=reduction.positions.aliases,
        ids=reduction.positions.resolved,
        unique=None,
        shards=(Shard(rows, False, None, rows.shape),),
        strategy="",
        split=(),
        clip=None,
        name=table_name(rows, reduction.output.node),
    )


def _match_classic(reduction: Reduction) -> Table | NoMatch:
    unique = reduction.positions.producer
    ids = unique.input(0)
    nodes = (unique.name, *reduction.positions.aliases, *ids.aliases)
    clip = match_clip(reduction.rows) if is_quotient(reduction.rows) else None
    if isinstance(clip, NoMatch):
        return clip
    rows = reduction.rows if clip is None else clip.rows
    keys = unique.output(0)
    partition = match_partition(rows, keys) if is_stitched(rows) else None
    if isinstance(partition, NoMatch):
        return partition
    if partition is None:
        gathered = {rows.producer: keys}
        nodes += rows.aliases
    else:
        pairs = zip(partition.gathered, partition.keys, strict=True)
        gathered = {one.producer: keys for one, keys in pairs}
        nodes += partition.nodes
    shards = []
    for gather, read in gathered.items():
        shard = match_shard(gather, read)
        if isinstance(shard, NoMatch):
            return shard
        if partition is not None and not _has_width(shard, partition.width):
            return NoMatch("the stitched rows are given another size", reduction.rows.node)
        shards.append(shard)
        nodes += (gather.name, *gather.input(1).aliases)
    return Table(
        stage=Stage.ROWS,
        nodes=tuple(dict.fromkeys(nodes)),
        ids=ids.resolved,
        unique=unique,
        shards=tuple(shards),
        strategy="" if partition is None else partition.strategy,
        split=() if partition is None else partition.split,
        clip=clip if clip is None else replace(clip, rows=rows.resolved),
        name=table_name(shards[0].tensor, reduction.output.node, is_part=len(shards) > 1),
    )


def _has_width(shard: Shard, width: int | None) -> bool:
    """Whether rows of a shard can have this size."""
    sizes = shard.shape[1:] if shard.shape is not None else ()
    return width is None or all(size in (None, width) for size in sizes)


def match_shard(gather: Node, keys: Value) -> Shard | NoMatch:
    """Explains the rows of a node as a gather of the rows `keys` of a matrix."""
    is_resource = gather.op == "ResourceGather"
    if not is_resource and not is_row_gather(gather):
        return NoMatch("the rows do not come from a gather", gather.name)
    if is_resource and gather.int_attr("batch_dims"):
        return NoMatch("the gather has batch dimensions", gather.name)
    table, read = gather.inputs[:2]
    if read.resolved != keys:
        return NoMatch("the gathered ids are not the unique ids of this lookup", gather.name)
    shape = table.variable_shape if is_resource else table.shape
    if shape is None and (gathered := gather.output().shape) is not None:
        shape = (None, *gathered[1:])
    return Shard(table, is_resource, gather, shape)


def table_spec(table: Table, dtype: int) -> TableSpec:
    """Returns what a table of a dtype is."""
    return TableSpec(
        shards=tuple(map(_shard_spec, table.shards)),
        strategy=table.strategy,
        split=table.split,
        dtype=dtype,
        max_norm=None if table.clip is None else table.clip.limit,
        name=table.name,
    )


def _shard_spec(shard: Shard) -> ShardSpec:
    rows, dim = shard.shape if shard.shape is not None else (None, None)
    gather = "" if shard.gather is None else shard.gather.name
    node = shard.tensor.view.nodes.get(gather or shard.tensor.node)
    has_group = node is not None and "_class" in node.attr
    groups = node.attr["_class"].list.s if node is not None and has_group else ()
    return ShardSpec(
        kind="resource" if shard.is_resource else "tensor",
        tensor=shard.tensor.tensor,
        rows=rows,
        dim=dim,
        gather=gather,
        device=node.device if node is not None else "",
        colocation=tuple(group.decode() for group in groups),
        is_vector=shard.is_vector,
    )


def table_name(table: Value, output: str, is_part: bool = False) -> str:
    """Returns the variable's name where it can be seen, else the scope of the node `output`.

    A function does not know what its caller passes in; there the scope is a better name for people
    than the argument.
    """
    handle = table.read_handle
    source = (table if handle is None else handle).origin.producer
    name = source.name
    if source.op in (ARG_OP, "Placeholder"):
        return output.removesuffix("/embedding_lookup_sparse")
    if source.op == "VarHandleOp":
        name = shared_name(source.view, name)
    return name.removesuffix("/part_0") if is_part else name


def match_split(rows: Sequence[Value], permutation: Value, unique: Node) -> Table | NoMatch:
    """Explains rows as those of distinct ids, which PartitionWithPermutation split.

    Args:
        rows: those of each shard.
        permutation: where the row of each distinct id is among them.
        unique: the node that finds the distinct ids.
    """
    split, count = permutation.producer, len(rows)
    if split.op != PARTITION or permutation.index != count:
        return NoMatch("the rows are not those of a partitioned table", split.name)
    distinct, *shapes = split.inputs
    if distinct.resolved != unique.output():
        return NoMatch("the partitioned ids are not the distinct ids of this lookup", split.name)
    nodes = (split.name, *distinct.aliases, unique.name)
    keys = [split.output(index) for index in range(count)]
    return match_shards(split, rows, keys, unique.input(0).resolved, nodes, shapes)


def match_shards(
    split: Node,
    rows: Sequence[Value],
    keys: Sequence[Value],
    ids: Value,
    nodes: Sequence[str],
    shapes: Sequence[Value],
) -> Table | NoMatch:
    """Explains rows as gathers from shards of the sizes that stock TensorFlow gives them.

    Args:
        split: the node that splits ids, and says how.
        rows: those of each shard.
        keys: the ids in each of them.
        ids: all ids.
        nodes: what else vanishes.
        shapes: those that the shards are said to have.
    """
    strategy = split.text_attr("partition_strategy")
    if strategy not in ("div", "mod"):
        return NoMatch(f"stock TensorFlow does not split rows by {strategy}", split.name)
    shards, clips = list[Shard](), list[Clip]()
    for matrix, key in zip(rows, keys, strict=True):
        clip = match_clip(matrix) if is_quotient(matrix) else None
        if isinstance(clip, NoMatch):
            return clip
        if clip is not None:
            clips.append(clip)
            nodes = (*nodes, *clip.nodes)
        unclipped = matrix if clip is None else clip.rows
        gather = unclipped.producer
        shard = match_shard(gather, key)
        if isinstance(shard, NoMatch):
            return shard
        shards.append(shard)
        nodes = (*nodes, gather.name, *unclipped.aliases, *gather.input(1).aliases)
    if clips and (len(clips) < len(shards) or len({clip.limit for clip in clips}) > 1):
        return NoMatch("the rows of the shards are not all clipped alike", split.name)
    sizes = [_rows(shape) for shape in shapes]
    known = tuple(size for size in sizes if size is not None)
    if strategy == "div" and known != shard_rows(sum(known), len(sizes)):
        why = "the shards are not of the sizes that stock TensorFlow gives them"
        return NoMatch(why, split.name)
    return Table(
        stage=Stage.ROWS,
        nodes=tuple(dict.fromkeys(nodes)),
        ids=ids,
        unique=None,
        shards=tuple(shards),
        strategy=strategy,
        split=known if strategy == "div" else (),
        clip=clips[0] if clips else None,
        name=table_name(shards[0].tensor, split.name, is_part=True),
    )


def _rows(shape: Value) -> int | None:
    value = shape.constant
    return None if value is None or value.ndim != 1 or not value.size else int(value[0])
