"""Lookups of fused ops around a stock gather, as columns with do_fusion and the pass build them.

    v2: PruneInvalidAndFillEmptyRows -> UniqueWithCountsV3 -> gather of the unique rows
            -> FusedEmbeddingSparsePostLookUpV2
    v1: FusedEmbeddingSparsePreLookUp -> UniqueWithCountsV3 -> gather of the unique rows
            -> a row for each entry, by the v2 op -> FusedEmbeddingSparsePostLookUp

In inference one op can do all of it. What the ops do their attrs say; what is left to prove is that
they belong together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from tensorflow.core.framework import types_pb2

from fusion.passes.analysis.symbolic_shapes import Element, Item, ShapeMath
from fusion.passes.graph.idioms import pass_casts
from fusion.passes.graph.values import Node, Value
from fusion.passes.recognise.match import NoMatch, Stage
from fusion.passes.recognise.spec import DenseIds
from fusion.passes.recognise.stock.entries import Entries, Fill
from fusion.passes.recognise.stock.id_source import IdSource
from fusion.passes.recognise.stock.max_norm import Clip
from fusion.passes.recognise.stock.prune import Prune
from fusion.passes.recognise.stock.ragged import RowSplits
from fusion.passes.recognise.stock.reduction import Reduction
from fusion.passes.recognise.stock.table import Table, match_shards, match_split, match_table
from fusion.schema.names import POST_V1, POST_V2, PRE_V1, PRUNE, PRUNE_DENSE, UNIQUE

_TO_SPARSE = "RaggedTensorToSparse"


class _Outputs(NamedTuple):
    """Where an op that prunes has its outputs; `weights` is -1 if it has none."""

    indices: int
    weights: int
    flags: int


_OUTPUTS = {PRUNE: _Outputs(1, 2, 3), PRUNE_DENSE: _Outputs(1, -1, 2), PRE_V1: _Outputs(1, 3, 2)}


def _outputs(front: Node) -> _Outputs:
    """Returns the indices of an op's outputs; of lists with an item for each shard, the first."""
    outputs, count = _OUTPUTS[front.op], 1
    if front.op == PRE_V1:
        count = front.int_attr("num_partitions")
    return outputs if count == 1 else _Outputs(count, 2 * count + 1, 2 * count)


@dataclass(frozen=True)
class FusedLookup:
    """What fused ops look up, in the parts of a stock lookup.

    Attributes:
        zeros: whether rows that were filled give zeros.
    """

    reduction: Reduction
    table: Table
    fill: Fill | None
    prune: Prune | None
    source: IdSource
    zeros: bool


class _Bags(NamedTuple):
    """What the last op is given of the entries."""

    shape: Value
    indices: Value
    flags: Value
    weights: Value


def match_fused(anchor: Node) -> FusedLookup | NoMatch:
    """Explains the lookup that ends with the fused op `anchor`."""
    inputs = [value.resolved for value in anchor.inputs]
    count = anchor.int_attr("num_partitions")
    if count < 1 or len(inputs) < count + 5:
        return NoMatch("the inputs are not those of the op", anchor.name)
    if anchor.op == POST_V1 and count > 1:
        match = _match_v1_shards(anchor, inputs, count)
    elif anchor.op == POST_V1:
        match = _match_v1(anchor, inputs)
    else:
        match = _match_v2(anchor, inputs, count)
    if isinstance(match, NoMatch):
        return match
    reduction, table, bags, passed = match
    limit = anchor.float_attr("max_norm")
    if limit >= 0:
        if table.clip is not None:
            return NoMatch("the rows are clipped twice", anchor.name)
        clip = Clip(
            stage=Stage.ROWS, nodes=(), rows=reduction.rows, limit=limit, output=reduction.rows
        )
        table = replace(table, clip=clip)
    entries = _match_entries(reduction, table.ids, bags)
    if isinstance(entries, NoMatch):
        return entries
    fill, prune, source = entries
    source = replace(source, nodes=(*source.nodes, *passed))
    zeros = anchor.int_attr("default_id") < 0
    return FusedLookup(reduction, table, fill, prune, source, zeros)


_Chain = tuple[Reduction, Table, _Bags, tuple[str, ...]]
"""The reduction, the table, what the last op is given of the entries, and nodes that only copy."""


def _match_v2(anchor: Node, inputs: list[Value], count: int) -> _Chain | NoMatch:
    rows, (permutation, shape, indices, flags, positions, weights) = inputs[:count], inputs[count:]
    unique = positions.producer
    if unique.op != UNIQUE or positions.index != 1:
        return NoMatch("the rows are not those of unique ids", unique.name)
    bags = _Bags(shape, indices, flags, weights)
    reduction = _reduction(anchor, rows[0], positions, bags)
    table = match_table(reduction) if count == 1 else match_split(rows, permutation, unique)
    return table if isinstance(table, NoMatch) else (reduction, table, bags, ())


def _match_v1(anchor: Node, inputs: list[Value]) -> _Chain | NoMatch:
    rows, indices, shape, flags, _, weights = inputs
    copied = _match_copied(rows)
    if copied is None:
        return NoMatch("the rows are not those of the entries", rows.node)
    rows, positions, passed = copied
    if positions.producer.op != UNIQUE or positions.index != 1:
        return NoMatch("the rows are not those of unique ids", positions.node)
    bags = _Bags(shape, indices, flags, weights)
    reduction = _reduction(anchor, rows, positions, bags)
    table = match_table(reduction)
    return table if isinstance(table, NoMatch) else (reduction, table, bags, passed)


def _match_v1_shards(anchor: Node, inputs: list[Value], count: int) -> _Chain | NoMatch:
    """Explains a row for each entry of each shard; the first op split the entries."""
    rows, keys, passed = list[Value](), list[Value](), tuple[str, ...]()
    front = inputs[-count].producer
    for index, value in enumerate(inputs[:count]):
        copied = _match_copied(value)
        if copied is None:
            return NoMatch("the rows are not those of the entries", value.node)
        unique_rows, positions, nodes = copied
        unique = positions.producer
        if unique.op != UNIQUE or positions.index != 1:
            return NoMatch("the rows are not those of unique ids", unique.name)
        ids = unique.input(0)
        if ids.resolved != front.output(index):
            return NoMatch("the rows are not those of the entries", unique.name)
        rows.append(unique_rows)
        keys.append(unique.output())
        passed += (*nodes, unique.name, *ids.aliases)
    if front.op != PRE_V1 or front.int_attr("num_partitions") != count:
        return NoMatch("the entries are not those that were split", front.name)
    # Of each list the first is asked about below, as if there were one shard; here are the others.
    lists = {0: inputs[2 * count + 2 : 3 * count + 2], 1: inputs[count : 2 * count]}
    lists[2] = inputs[3 * count + 2 :]
    for number, values in lists.items():
        start = number * count + (number == 2)
        if values != [front.output(start + index) for index in range(count)]:
            return NoMatch("the entries are not those that were split", anchor.name)
    bags = _Bags(inputs[2 * count], inputs[count], inputs[2 * count + 1], inputs[3 * count + 2])
    reduction = _reduction(anchor, rows[0], keys[0], bags)
    shapes = front.inputs[:count]
    table = match_shards(front, rows, keys, front.output(), (), shapes)
    return table if isinstance(table, NoMatch) else (reduction, table, bags, passed)


def _reduction(anchor: Node, rows: Value, positions: Value, bags: _Bags) -> Reduction:
    return Reduction(
        stage=Stage.OUTPUT,
        anchor=anchor,
        nodes=(anchor.name, *(name for value in anchor.inputs for name in value.aliases)),
        combiner=anchor.text_attr("combiner"),
        rows=rows,
        positions=positions,
        segments=bags.indices,
        segments_dtype=types_pb2.DT_INT64,
        weights=bags.weights if anchor.flag_attr("use_sparse_weights") else None,
        weighting=None,
        divide_no_nan=anchor.op == POST_V1 or anchor.flag_attr("divide_no_nan"),
        output=anchor.output(),
        dtype=anchor.type_attr("T"),
    )


def _match_copied(rows: Value) -> tuple[Value, Value, tuple[str, ...]] | None:
    """Explains `rows` as those of each entry, copied by a v2 op that has one entry per row.

    Returns:
        The unique rows, the position of each entry's among them, and the nodes that copy.
    """
    copy = rows.producer
    if copy.op != POST_V2 or rows.index or copy.int_attr("num_partitions") != 1:
        return None
    inputs = copy.inputs
    unique_rows, _, _, indices, _, positions, weights = (value.resolved for value in inputs)
    is_sum = copy.text_attr("combiner") == "sum" and copy.float_attr("max_norm") < 0
    if not is_sum or copy.text_attr("row_count") != "last_row":
        return None
    ids = positions.producer.input(0).resolved
    nodes = _match_numbers(indices.producer, ids)
    ones: tuple[str, ...] | None = ()
    if copy.flag_attr("use_sparse_weights"):
        ones = _match_ones(weights.producer, ids)
    if nodes is None or ones is None:
        return None
    passed = (name for value in inputs for name in value.aliases)
    return unique_rows, positions, (copy.name, *passed, *nodes, *ones)


def _match_numbers(pack: Node, ids: Value) -> tuple[str, ...] | None:
    """Explains column 0 of the indices as 0, 1, ... for each id: the nodes that count."""
    if pack.op != "Pack" or pack.int_attr("axis") not in (1, -1):
        return None
    column, passed = pass_casts(pack.input(0))
    counter = column.producer
    if counter.op != "Range":
        return None
    start, limit, step = counter.inputs
    if start.item != 0 or step.item != 1:
        return None
    size, more = pass_casts(limit)
    if size.producer.op != "Size" or size.producer.input(0).resolved != ids:
        return None
    return (pack.name, *passed, counter.name, *more, size.node)


def _match_ones(fill: Node, ids: Value) -> tuple[str, ...] | None:
    """Explains the weights as 1 for each id: the nodes that make them."""
    if fill.op != "Fill":
        return None
    shape, number = fill.inputs
    measured = shape.producer
    if number.scalar != 1 or measured.op != "Shape" or measured.input(0).resolved != ids:
        return None
    return (fill.name, *shape.path)


def _match_entries(
    reduction: Reduction, ids: Value, bags: _Bags
) -> tuple[Fill | None, Prune | None, IdSource] | NoMatch:
    """Explains the entries as those that another fused op pruned and filled, or as given ones."""
    front = ids.producer
    ends_early = reduction.anchor.text_attr("row_count") == "last_row"
    if front.op not in _OUTPUTS:
        if not ends_early:
            return NoMatch("the entries are not those that a fused op pruned", front.name)
        dtype = reduction.positions.producer.type_attr("Tid")
        entries = _entries(ids, bags.indices, reduction.weights, None, dtype)
        return None, None, _source(entries, (0, 0), None, ())
    fills = front.flag_attr("fill_empty_row")
    if fills == ends_early:
        # Rows are counted up to the last that has an entry exactly where none is filled.
        return NoMatch("empty rows are neither filled nor left out", front.name)
    if not _belong_together(reduction, ids, bags):
        return NoMatch("the entries are not those that were pruned", front.name)
    weighted = reduction.weights is not None
    entries, dense = _entries_before(front, weighted, ends_early)
    buckets = front.int_attr("num_buckets"), front.int_attr("bucket_default")
    source = _source(entries, buckets, dense, (front.name,))
    prunes = front.flag_attr("prune_invalid_id" if front.op == PRE_V1 else "prune")
    prune = Prune(
        stage=Stage.IDS,
        nodes=(),
        entries=entries,
        by_id=prunes,
        by_weight=prunes and weighted and front.flag_attr("prune_sparse_weights"),
    )
    if not fills:
        return None, prune, source
    fill = Fill(
        stage=Stage.IDS,
        nodes=(),
        entries=entries,
        default=max(front.int_attr("default_id"), 0),
        default_weight=front.float_attr("default_weight") if weighted else 1.0,
        is_row_empty=front.output(_outputs(front).flags),
    )
    return fill, prune, source


def _belong_together(reduction: Reduction, ids: Value, bags: _Bags) -> bool:
    """Whether the last op is given what the first one made, the ids, with equal attrs."""
    front, anchor = ids.producer, reduction.anchor
    outputs, dense = _outputs(front), front.op == PRUNE_DENSE
    shape = front.output(3) if dense else front.input(-2).resolved
    weighted = reduction.weights is not None
    same = ["default_id"]
    same += [] if anchor.op == POST_V1 else ["fill_empty_row"]
    same += [] if dense else ["use_sparse_weights"]
    same += ["row_count"] if front.op == PRE_V1 else []
    return (
        ids.index == 0
        and bags.indices == front.output(outputs.indices)
        and bags.flags == front.output(outputs.flags)
        and bags.shape == shape
        and (not weighted or bags.weights == front.output(outputs.weights))
        and all(front.attr(key) == anchor.attr(key) for key in same)
    )


def _entries_before(
    front: Node, weighted: bool, ends_early: bool
) -> tuple[Entries, DenseIds | None]:
    """Returns what the op that prunes is given."""
    inputs, dtype = front.inputs, front.type_attr("Tid")
    if front.op == PRUNE_DENSE:
        ignored = front.int_attr("ignored_id")
        dense = DenseIds(
            values=inputs[0].resolved.tensor,
            dtype=front.type_attr("Tdense"),
            ignored=ignored if front.flag_attr("use_ignored_id") else None,
            stride=front.int_attr("column_stride"),
        )
        return _entries(front.output(), front.output(1), None, front.output(3), dtype), dense
    ids, indices, shape, weights = inputs[-4:]
    count = None if ends_early else shape
    return _entries(ids, indices, weights if weighted else None, count, dtype), None


def _entries(
    ids: Value, indices: Value, weights: Value | None, count: Value | None, dtype: int
) -> Entries:
    return Entries(
        stage=Stage.IDS,
        nodes=(),
        ids=ids,
        indices=indices,
        rows=None,
        weights=weights,
        count=count,
        dtype=dtype,
        rows_dtype=types_pb2.DT_INT64,
    )


def _source(
    entries: Entries, buckets: tuple[int, int], dense: DenseIds | None, nodes: tuple[str, ...]
) -> IdSource:
    splits = _row_splits(entries) if dense is None else None
    front: tuple[str, ...] = ()
    if splits is not None:
        entries = replace(entries, ids=splits[0], indices=None)
        front = (splits[2],)
    return IdSource(
        stage=Stage.IDS,
        nodes=nodes,
        front=front,
        entries=entries,
        flattened=False,
        checked=True,
        buckets=buckets,
        dense=dense,
        row_splits=None if splits is None else splits[1],
        batch=None if entries.count is None else _batch(entries.count),
    )


def _row_splits(entries: Entries) -> tuple[Value, RowSplits, str] | None:
    """Explains filled entries as those of a RaggedTensor that was made sparse."""
    assert entries.indices is not None
    node = entries.indices.producer
    if node.op != _TO_SPARSE or node.int_attr("RAGGED_RANK") != 1:
        return None
    read = [entries.indices, entries.ids, entries.count]
    made = [node.output(index) for index in range(3)]
    if [None if value is None else value.resolved for value in read] != made:
        return None
    splits, values = node.inputs
    return values, RowSplits(splits.tensor, node.type_attr("Tsplits")), node.name


def _batch(count: Value) -> Element:
    elements = ShapeMath().vector(count)
    return elements[0] if elements else Item(count.tensor, 0)
