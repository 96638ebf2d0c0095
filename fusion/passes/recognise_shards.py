"""The shards of a partitioned table between fused ops, which split ids and put rows together."""

from __future__ import annotations

from collections.abc import Sequence

from fusion.passes.graph_view import GraphView
from fusion.passes.match import NoMatch, Stage
from fusion.passes.recognise_clip import Clip, match_clip
from fusion.passes.recognise_partition import shard_rows
from fusion.passes.recognise_table import Shard, Table, match_shard, table_name
from fusion.passes.tensor import Tensor

_SPLIT = "PartitionWithPermutation"


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
    if view.op(split) != _SPLIT or permutation.index != count:
        return NoMatch("the rows are not those of a partitioned table", split)
    if view.resolve(view.inputs(split)[0]) != Tensor(unique):
        return NoMatch("the partitioned ids are not the distinct ids of this lookup", split)
    nodes = (split, *view.aliases(view.inputs(split)[0]), unique)
    keys = [Tensor(split, place) for place in range(count)]
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
    for given, key in zip(rows, keys, strict=True):
        clip = match_clip(view, given)
        if isinstance(clip, NoMatch):
            return clip
        if clip is not None:
            clips.append(clip)
            nodes = (*nodes, *clip.nodes)
        one = given if clip is None else clip.rows
        shard = match_shard(view, view.resolve(one), key)
        if isinstance(shard, NoMatch):
            return shard
        shards.append(shard)
        read = view.inputs(shard.gather)[1]
        nodes = (*nodes, shard.gather, *view.aliases(one), *view.aliases(read))
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
