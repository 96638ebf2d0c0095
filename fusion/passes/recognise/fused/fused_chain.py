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
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import NoMatch, Stage
from fusion.passes.recognise.spec import BucketsSpec, DenseIds
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


def _outputs(view: GraphView, front: str) -> _Outputs:
    """Returns the indices of an op's outputs; of lists with an item for each shard, the first."""
    outputs, count = _OUTPUTS[view.op(front)], 1
    if view.op(front) == PRE_V1:
        count = view.int_attr(front, "num_partitions")
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

    shape: Tensor
    indices: Tensor
    flags: Tensor
    weights: Tensor


def match_fused(view: GraphView, anchor: str) -> FusedLookup | NoMatch:
    """Explains the lookup that ends with the fused op `anchor`."""
    inputs = [view.resolve(tensor) for tensor in view.inputs(anchor)]
    count = view.int_attr(anchor, "num_partitions")
    if count < 1 or len(inputs) < count + 5:
        return NoMatch("the inputs are not those of the op", anchor)
    if view.op(anchor) == POST_V1 and count > 1:
        match = _match_v1_shards(view, anchor, inputs, count)
    elif view.op(anchor) == POST_V1:
        match = _match_v1(view, anchor, inputs)
    else:
        match = _match_v2(view, anchor, inputs, count)
    if isinstance(match, NoMatch):
        return match
    reduction, table, bags, passed = match
    limit = view.float_attr(anchor, "max_norm")
    if limit >= 0:
        if table.clip is not None:
            return NoMatch("the rows are clipped twice", anchor)
        clip = Clip(
            stage=Stage.ROWS, nodes=(), rows=reduction.rows, limit=limit, output=reduction.rows
        )
        table = replace(table, clip=clip)
    entries = _match_entries(view, reduction, table.ids, bags)
    if isinstance(entries, NoMatch):
        return entries
    fill, prune, source = entries
    source = replace(source, nodes=(*source.nodes, *passed))
    zeros = view.int_attr(anchor, "default_id") < 0
    return FusedLookup(reduction, table, fill, prune, source, zeros)


_Chain = tuple[Reduction, Table, _Bags, tuple[str, ...]]
"""The reduction, the table, what the last op is given of the entries, and nodes that only copy."""


def _match_v2(view: GraphView, anchor: str, inputs: list[Tensor], count: int) -> _Chain | NoMatch:
    rows, (permutation, shape, indices, flags, positions, weights) = inputs[:count], inputs[count:]
    if view.op(positions.node) != UNIQUE or positions.index != 1:
        return NoMatch("the rows are not those of unique ids", positions.node)
    bags = _Bags(shape, indices, flags, weights)
    reduction = _reduction(view, anchor, rows[0], positions, bags)
    if count == 1:
        table = match_table(view, reduction)
    else:
        table = match_split(view, rows, permutation, positions.node)
    return table if isinstance(table, NoMatch) else (reduction, table, bags, ())


def _match_v1(view: GraphView, anchor: str, inputs: list[Tensor]) -> _Chain | NoMatch:
    rows, indices, shape, flags, _, weights = inputs
    copied = _match_copied(view, rows)
    if copied is None:
        return NoMatch("the rows are not those of the entries", rows.node)
    rows, positions, passed = copied
    if view.op(positions.node) != UNIQUE or positions.index != 1:
        return NoMatch("the rows are not those of unique ids", positions.node)
    bags = _Bags(shape, indices, flags, weights)
    reduction = _reduction(view, anchor, rows, positions, bags)
    table = match_table(view, reduction)
    return table if isinstance(table, NoMatch) else (reduction, table, bags, passed)


def _match_v1_shards(
    view: GraphView, anchor: str, inputs: list[Tensor], count: int
) -> _Chain | NoMatch:
    """Explains a row for each entry of each shard; the first op split the entries."""
    rows, keys, passed = list[Tensor](), list[Tensor](), tuple[str, ...]()
    front = inputs[-count].node
    for index, tensor in enumerate(inputs[:count]):
        copied = _match_copied(view, tensor)
        if copied is None:
            return NoMatch("the rows are not those of the entries", tensor.node)
        unique_rows, positions, nodes = copied
        unique = positions.node
        if view.op(unique) != UNIQUE or positions.index != 1:
            return NoMatch("the rows are not those of unique ids", unique)
        if view.resolve(view.inputs(unique)[0]) != Tensor(front, index):
            return NoMatch("the rows are not those of the entries", unique)
        rows.append(unique_rows)
        keys.append(Tensor(unique))
        passed += (*nodes, unique, *view.aliases(view.inputs(unique)[0]))
    if view.op(front) != PRE_V1 or view.int_attr(front, "num_partitions") != count:
        return NoMatch("the entries are not those that were split", front)
    # Of each list the first is asked about below, as if there were one shard; here are the others.
    lists = {0: inputs[2 * count + 2 : 3 * count + 2], 1: inputs[count : 2 * count]}
    lists[2] = inputs[3 * count + 2 :]
    for number, tensors in lists.items():
        start = number * count + (number == 2)
        if tensors != [Tensor(front, start + index) for index in range(count)]:
            return NoMatch("the entries are not those that were split", anchor)
    bags = _Bags(inputs[2 * count], inputs[count], inputs[2 * count + 1], inputs[3 * count + 2])
    reduction = _reduction(view, anchor, rows[0], keys[0], bags)
    shapes = view.inputs(front)[:count]
    table = match_shards(view, front, rows, keys, Tensor(front), (), shapes)
    return table if isinstance(table, NoMatch) else (reduction, table, bags, passed)


def _reduction(
    view: GraphView, anchor: str, rows: Tensor, positions: Tensor, bags: _Bags
) -> Reduction:
    return Reduction(
        stage=Stage.OUTPUT,
        anchor=anchor,
        nodes=(anchor, *(name for tensor in view.inputs(anchor) for name in view.aliases(tensor))),
        combiner=view.text_attr(anchor, "combiner"),
        rows=rows,
        positions=positions,
        segments=bags.indices,
        segments_dtype=types_pb2.DT_INT64,
        weights=bags.weights if view.flag_attr(anchor, "use_sparse_weights") else None,
        weighting=None,
        divide_no_nan=view.op(anchor) == POST_V1 or view.flag_attr(anchor, "divide_no_nan"),
        output=Tensor(anchor),
        dtype=view.type_attr(anchor, "T"),
    )


def _match_copied(view: GraphView, rows: Tensor) -> tuple[Tensor, Tensor, tuple[str, ...]] | None:
    """Explains `rows` as those of each entry, copied by a v2 op that has one entry per row.

    Returns:
        The unique rows, the position of each entry's among them, and the nodes that copy.
    """
    copy = rows.node
    if view.op(copy) != POST_V2 or rows.index or view.int_attr(copy, "num_partitions") != 1:
        return None
    unique_rows, _, _, indices, _, positions, weights = map(view.resolve, view.inputs(copy))
    is_sum = view.text_attr(copy, "combiner") == "sum" and view.float_attr(copy, "max_norm") < 0
    if not is_sum or view.text_attr(copy, "row_count") != "last_row":
        return None
    ids = view.resolve(view.inputs(positions.node)[0])
    nodes = _match_numbers(view, indices, ids)
    ones: tuple[str, ...] | None = ()
    if view.flag_attr(copy, "use_sparse_weights"):
        ones = _match_ones(view, weights, ids)
    if nodes is None or ones is None:
        return None
    passed = (name for tensor in view.inputs(copy) for name in view.aliases(tensor))
    return unique_rows, positions, (copy, *passed, *nodes, *ones)


def _match_numbers(view: GraphView, indices: Tensor, ids: Tensor) -> tuple[str, ...] | None:
    """Explains column 0 of the indices as 0, 1, ... for each id: the nodes that count."""
    if view.op(indices.node) != "Pack" or view.int_attr(indices.node, "axis") not in (1, -1):
        return None
    column, passed = pass_casts(view, view.inputs(indices.node)[0])
    if view.op(column.node) != "Range":
        return None
    start, limit, step = view.inputs(column.node)
    first, each = view.constant(start), view.constant(step)
    if first is None or each is None or first != 0 or each != 1:
        return None
    size, more = pass_casts(view, limit)
    if view.op(size.node) != "Size" or view.resolve(view.inputs(size.node)[0]) != ids:
        return None
    return (indices.node, *passed, column.node, *more, size.node)


def _match_ones(view: GraphView, weights: Tensor, ids: Tensor) -> tuple[str, ...] | None:
    """Explains the weights as 1 for each id: the nodes that make them."""
    if view.op(weights.node) != "Fill":
        return None
    shape, number = view.inputs(weights.node)
    value, measured = view.constant(number), view.resolve(shape)
    if value is None or value.ndim or value != 1 or view.op(measured.node) != "Shape":
        return None
    if view.resolve(view.inputs(measured.node)[0]) != ids:
        return None
    return (weights.node, *view.aliases(shape), measured.node)


def _match_entries(
    view: GraphView, reduction: Reduction, ids: Tensor, bags: _Bags
) -> tuple[Fill | None, Prune | None, IdSource] | NoMatch:
    """Explains the entries as those that another fused op pruned and filled, or as given ones."""
    anchor, front = reduction.anchor, ids.node
    ends_early = view.text_attr(anchor, "row_count") == "last_row"
    if view.op(front) not in _OUTPUTS:
        if not ends_early:
            return NoMatch("the entries are not those that a fused op pruned", front)
        dtype = view.type_attr(reduction.positions.node, "Tid")
        count = None
        entries = _entries(ids, bags.indices, reduction.weights, count, dtype)
        return None, None, _source(view, entries, None, None, ())
    fills = view.flag_attr(front, "fill_empty_row")
    if fills == ends_early:
        # Rows are counted up to the last that has an entry exactly where none is filled.
        return NoMatch("empty rows are neither filled nor left out", front)
    if not _belong_together(view, reduction, ids, bags):
        return NoMatch("the entries are not those that were pruned", front)
    entries, dense = _entries_before(view, front, reduction.weights is not None, ends_early)
    source = _source(view, entries, _buckets(view, front), dense, (front,))
    weighted = reduction.weights is not None
    prunes = view.flag_attr(front, "prune_invalid_id" if view.op(front) == PRE_V1 else "prune")
    prune = Prune(
        stage=Stage.IDS,
        nodes=(),
        entries=entries,
        by_id=prunes,
        by_weight=prunes and weighted and view.flag_attr(front, "prune_sparse_weights"),
    )
    if not fills:
        return None, prune, source
    fill = Fill(
        stage=Stage.IDS,
        nodes=(),
        entries=entries,
        default=max(view.int_attr(front, "default_id"), 0),
        default_weight=view.float_attr(front, "default_weight") if weighted else 1.0,
        is_row_empty=Tensor(front, _outputs(view, front).flags),
    )
    return fill, prune, source


def _belong_together(view: GraphView, reduction: Reduction, ids: Tensor, bags: _Bags) -> bool:
    """Whether the last op is given what the first one, `ids.node`, made, with equal attrs."""
    front, anchor = ids.node, reduction.anchor
    outputs = _outputs(view, front)
    inputs = view.inputs(front)
    dense = view.op(front) == PRUNE_DENSE
    shape = Tensor(front, 3) if dense else view.resolve(inputs[-2])
    weighted = reduction.weights is not None
    same = ["default_id"]
    same += [] if view.op(anchor) == POST_V1 else ["fill_empty_row"]
    same += [] if dense else ["use_sparse_weights"]
    same += ["row_count"] if view.op(front) == PRE_V1 else []
    return (
        ids.index == 0
        and bags.indices == Tensor(front, outputs.indices)
        and bags.flags == Tensor(front, outputs.flags)
        and bags.shape == shape
        and (not weighted or bags.weights == Tensor(front, outputs.weights))
        and all(view.attr(front, key) == view.attr(anchor, key) for key in same)
    )


def _entries_before(
    view: GraphView, front: str, weighted: bool, ends_early: bool
) -> tuple[Entries, DenseIds | None]:
    """Returns what the op that prunes is given."""
    inputs, dtype = view.inputs(front), view.type_attr(front, "Tid")
    if view.op(front) == PRUNE_DENSE:
        ignored = view.int_attr(front, "ignored_id")
        dense = DenseIds(
            values=view.resolve(inputs[0]),
            dtype=view.type_attr(front, "Tdense"),
            ignored=ignored if view.flag_attr(front, "use_ignored_id") else None,
            stride=view.int_attr(front, "column_stride"),
        )
        ids = Tensor(front)
        return _entries(ids, Tensor(front, 1), None, Tensor(front, 3), dtype), dense
    ids, indices, shape, weights = inputs[-4:]
    count = None if ends_early else shape
    return _entries(ids, indices, weights if weighted else None, count, dtype), None


def _entries(
    ids: Tensor, indices: Tensor, weights: Tensor | None, count: Tensor | None, dtype: int
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
    view: GraphView,
    entries: Entries,
    buckets: BucketsSpec | None,
    dense: DenseIds | None,
    nodes: tuple[str, ...],
) -> IdSource:
    splits = _row_splits(view, entries) if dense is None else None
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
        batch=None if entries.count is None else _batch(view, entries.count),
    )


def _row_splits(view: GraphView, entries: Entries) -> tuple[Tensor, RowSplits, str] | None:
    """Explains filled entries as those of a RaggedTensor that was made sparse."""
    assert entries.indices is not None
    name = view.resolve(entries.indices).node
    if view.op(name) != _TO_SPARSE or view.int_attr(name, "RAGGED_RANK") != 1:
        return None
    made = [Tensor(name, index) for index in range(3)]
    read = [entries.indices, entries.ids, entries.count]
    if [None if tensor is None else view.resolve(tensor) for tensor in read] != made:
        return None
    splits, values = view.inputs(name)
    return values, RowSplits(splits, view.type_attr(name, "Tsplits")), name


def _batch(view: GraphView, count: Tensor) -> Element:
    elements = ShapeMath(view).vector(count)
    return elements[0] if elements else Item(count, 0)


def _buckets(view: GraphView, front: str) -> BucketsSpec | None:
    count = view.int_attr(front, "num_buckets")
    return BucketsSpec(count, view.int_attr(front, "bucket_default")) if count else None
