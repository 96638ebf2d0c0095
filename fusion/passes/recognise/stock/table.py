"""The table side of a lookup: which matrices the ids index, and how their rows are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fusion.passes.analysis.handles import shared_name
from fusion.passes.graph.idioms import is_row_gather
from fusion.passes.graph.tensor import ARG_OP, Shape, Tensor
from fusion.passes.graph.view import GraphView
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
        gather: the node that reads the rows; "" when the reduction reads the matrix itself.
        shape: static [rows, D], or None.
        is_vector: whether it is a vector in truth; D is 1 then.
    """

    tensor: Tensor
    is_resource: bool
    gather: str
    shape: Shape | None
    is_vector: bool = False


@dataclass(frozen=True, kw_only=True)
class Table(Match):
    """The table of a lookup.

    Attributes:
        ids: the id of each entry.
        unique: the node that finds the distinct ids; "" where the ids are looked up as they are.
        shards: the table, in one or more matrices.
        strategy: how rows are split over several shards: div or mod; "" for one.
        split: the rows of each shard that div counts on; () otherwise.
        clip: what max_norm makes of the rows, None without it.
        name: for people.
    """

    ids: Tensor
    unique: str
    shards: tuple[Shard, ...]
    strategy: str
    split: tuple[int, ...]
    clip: Clip | None
    name: str


def match_table(view: GraphView, reduction: Reduction) -> Table | NoMatch:
    """Explains the reduced rows as `table[unique ids]` or as the table itself."""
    positions = view.resolve(reduction.positions)
    if view.op(positions.node) in UNIQUES and positions.index == 1:
        table = _match_classic(view, reduction, positions.node)
    else:
        table = _match_fast(view, reduction, positions)
    if isinstance(table, NoMatch):
        return table
    for shard in table.shards:
        strange = None if shard.shape is None else not_a_matrix(shard.shape, shard.tensor.node)
        if strange is not None:
            return strange
    return table


def _match_fast(view: GraphView, reduction: Reduction, ids: Tensor) -> Table:
    rows = reduction.rows
    return Table(
        stage=Stage.ROWS,
        nodes=view.aliases(reduction.positions),
        ids=ids,
        unique="",
        shards=(Shard(rows, False, "", view.shape(rows)),),
        strategy="",
        split=(),
        clip=None,
        name=table_name(view, rows, reduction.output.node),
    )


def _match_classic(view: GraphView, reduction: Reduction, unique: str) -> Table | NoMatch:
    ids = view.inputs(unique)[0]
    nodes = (unique, *view.aliases(reduction.positions), *view.aliases(ids))
    clip = match_clip(view, reduction.rows) if is_quotient(view, reduction.rows) else None
    if isinstance(clip, NoMatch):
        return clip
    rows = reduction.rows if clip is None else clip.rows
    keys = Tensor(unique, 0)
    partition = match_partition(view, rows, keys) if is_stitched(view, rows) else None
    if isinstance(partition, NoMatch):
        return partition
    if partition is None:
        gathered = {view.resolve(rows): keys}
        nodes += view.aliases(rows)
    else:
        gathered = dict(zip(partition.gathered, partition.keys, strict=True))
        nodes += partition.nodes
    shards = []
    for tensor, read in gathered.items():
        shard = match_shard(view, tensor, read)
        if isinstance(shard, NoMatch):
            return shard
        if partition is not None and not _has_width(shard, partition.width):
            return NoMatch("the stitched rows are given another size", reduction.rows.node)
        shards.append(shard)
        nodes += (shard.gather, *view.aliases(view.inputs(shard.gather)[1]))
    return Table(
        stage=Stage.ROWS,
        nodes=tuple(dict.fromkeys(nodes)),
        ids=view.resolve(ids),
        unique=unique,
        shards=tuple(shards),
        strategy="" if partition is None else partition.strategy,
        split=() if partition is None else partition.split,
        clip=clip if clip is None else replace(clip, rows=view.resolve(rows)),
        name=table_name(view, shards[0].tensor, reduction.output.node, is_part=len(shards) > 1),
    )


def _has_width(shard: Shard, width: int | None) -> bool:
    """Whether rows of a shard can have this size."""
    sizes = shard.shape[1:] if shard.shape is not None else ()
    return width is None or all(size in (None, width) for size in sizes)


def match_shard(view: GraphView, rows: Tensor, keys: Tensor) -> Shard | NoMatch:
    """Explains `rows` as a gather of the rows `keys` of a matrix."""
    is_resource = view.op(rows.node) == "ResourceGather"
    if not is_resource and not is_row_gather(view, rows.node):
        return NoMatch("the rows do not come from a gather", rows.node)
    if is_resource and view.int_attr(rows.node, "batch_dims"):
        return NoMatch("the gather has batch dimensions", rows.node)
    table, read = view.inputs(rows.node)[:2]
    if view.resolve(read) != keys:
        return NoMatch("the gathered ids are not the unique ids of this lookup", rows.node)
    return Shard(table, is_resource, rows.node, _table_shape(view, table, rows, is_resource))


def _table_shape(view: GraphView, table: Tensor, rows: Tensor, is_resource: bool) -> Shape | None:
    known = view.variable_shape(table) if is_resource else view.shape(table)
    if known is None and (gathered := view.shape(rows)) is not None:
        return (None, *gathered[1:])
    return known


def table_spec(view: GraphView, table: Table, dtype: int) -> TableSpec:
    """Returns what a table of a dtype is."""
    return TableSpec(
        shards=tuple(_shard_spec(view, shard) for shard in table.shards),
        strategy=table.strategy,
        split=table.split,
        dtype=dtype,
        max_norm=None if table.clip is None else table.clip.limit,
        name=table.name,
    )


def _shard_spec(view: GraphView, shard: Shard) -> ShardSpec:
    rows, dim = shard.shape if shard.shape is not None else (None, None)
    beside = view.nodes.get(shard.gather or shard.tensor.node)
    has_group = beside is not None and "_class" in beside.attr
    groups = beside.attr["_class"].list.s if beside is not None and has_group else ()
    return ShardSpec(
        kind="resource" if shard.is_resource else "tensor",
        tensor=shard.tensor,
        rows=rows,
        dim=dim,
        gather=shard.gather,
        device=beside.device if beside is not None else "",
        colocation=tuple(group.decode() for group in groups),
        is_vector=shard.is_vector,
    )


def table_name(view: GraphView, table: Tensor, output: str, is_part: bool = False) -> str:
    """Returns the variable's name where it can be seen, else the scope of the node `output`.

    A function does not know what its caller passes in; there the scope is a better name for people
    than the argument.
    """
    source = view.origin(table).node
    if (handle := view.read_handle(table)) is not None:
        source = view.origin(handle).node
    if view.op(source) in (ARG_OP, "Placeholder"):
        return output.removesuffix("/embedding_lookup_sparse")
    if view.op(source) == "VarHandleOp":
        source = shared_name(view, source)
    return source.removesuffix("/part_0") if is_part else source


def match_split(
    view: GraphView, rows: Sequence[Tensor], permutation: Tensor, unique: str
) -> Table | NoMatch:
    """Explains rows as those of distinct ids, which PartitionWithPermutation split.

    Args:
        view: the graph.
        rows: those of each shard.
        permutation: where the row of each distinct id is among them.
        unique: the node that finds the distinct ids.
    """
    split, count = permutation.node, len(rows)
    if view.op(split) != PARTITION or permutation.index != count:
        return NoMatch("the rows are not those of a partitioned table", split)
    if view.resolve(view.inputs(split)[0]) != Tensor(unique):
        return NoMatch("the partitioned ids are not the distinct ids of this lookup", split)
    nodes = (split, *view.aliases(view.inputs(split)[0]), unique)
    keys = [Tensor(split, index) for index in range(count)]
    ids = view.resolve(view.inputs(unique)[0])
    return match_shards(view, split, rows, keys, ids, nodes, view.inputs(split)[1:])


def match_shards(
    view: GraphView,
    split: str,
    rows: Sequence[Tensor],
    keys: Sequence[Tensor],
    ids: Tensor,
    nodes: Sequence[str],
    shapes: Sequence[Tensor],
) -> Table | NoMatch:
    """Explains rows as gathers from shards of the sizes that stock TensorFlow gives them.

    Args:
        view: the graph.
        split: the node that splits ids, and says how.
        rows: those of each shard.
        keys: the ids in each of them.
        ids: all ids.
        nodes: what else vanishes.
        shapes: those that the shards are said to have.
    """
    strategy = view.text_attr(split, "partition_strategy")
    if strategy not in ("div", "mod"):
        return NoMatch(f"stock TensorFlow does not split rows by {strategy}", split)
    shards, clips = list[Shard](), list[Clip]()
    for matrix, key in zip(rows, keys, strict=True):
        clip = match_clip(view, matrix) if is_quotient(view, matrix) else None
        if isinstance(clip, NoMatch):
            return clip
        if clip is not None:
            clips.append(clip)
            nodes = (*nodes, *clip.nodes)
        unclipped = matrix if clip is None else clip.rows
        shard = match_shard(view, view.resolve(unclipped), key)
        if isinstance(shard, NoMatch):
            return shard
        shards.append(shard)
        read = view.inputs(shard.gather)[1]
        nodes = (*nodes, shard.gather, *view.aliases(unclipped), *view.aliases(read))
    if clips and (len(clips) < len(shards) or len({clip.limit for clip in clips}) > 1):
        return NoMatch("the rows of the shards are not all clipped alike", split)
    sizes = [_rows(view, shape) for shape in shapes]
    known = tuple(size for size in sizes if size is not None)
    if strategy == "div" and known != shard_rows(sum(known), len(sizes)):
        return NoMatch("the shards are not of the sizes that stock TensorFlow gives them", split)
    return Table(
        stage=Stage.ROWS,
        nodes=tuple(dict.fromkeys(nodes)),
        ids=ids,
        unique="",
        shards=tuple(shards),
        strategy=strategy,
        split=known if strategy == "div" else (),
        clip=clips[0] if clips else None,
        name=table_name(view, shards[0].tensor, split, is_part=True),
    )


def _rows(view: GraphView, shape: Tensor) -> int | None:
    value = view.constant(shape)
    return None if value is None or value.ndim != 1 or not value.size else int(value[0])
