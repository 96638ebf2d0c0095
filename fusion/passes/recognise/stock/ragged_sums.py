"""Bags of ragged ids: segment reductions of gathered rows, as reduce_sum of a RaggedTensor is one.

    UnsortedSegmentSum(rows [nnz, D], the row of each entry, B), with or without weights [nnz, 1]
    UnsortedSegmentMax(rows [nnz, D], the row of each entry, B)

and the quotient of such a sum and of that of ones, or of the weights. Rows of entries are those
that row splits say, but for

    SegmentSum(rows [nnz, D], the row of each entry)        and SegmentMean

which ask for ascending ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fusion.passes.analysis.ranks_by_use import is_multiplied
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.fused.fused_op import Whole
from fusion.passes.recognise.match import NoMatch, Stage
from fusion.passes.recognise.spec import Addition, RaggedIds, RowIds, WeightsSpec
from fusion.passes.recognise.stock.gathers import (
    Gathered,
    NoBag,
    gather_behind,
    is_table_gather,
    lookup_of,
    match_added,
    ones_like,
)
from fusion.passes.recognise.stock.quotients import DIVISIONS, division_of
from fusion.passes.recognise.stock.ragged import RowSplits, match_row_splits
from fusion.passes.recognise.stock.rows import JOINS
from fusion.schema.attributes import HALF_TYPES

_SUM, _MAX = "UnsortedSegmentSum", "UnsortedSegmentMax"
_ASCENDING = {"SegmentMean": "mean", "SegmentSum": "sum"}
"""Reductions whose last row is that of the last entry, and their combiners."""

SEGMENT_REDUCTIONS = frozenset({_MAX, _SUM, "SegmentMean"})
"""All but SegmentSum, which feature columns end with, too: see `is_segment_sum`."""

_MEASURES = frozenset({"Rank", "Shape", "ShapeN", "Size"})
_DEEPEST, _MOST = 6, 64
"""Ops between rows and what reduces them that are looked at, one after the other and abreast."""


@dataclass(frozen=True)
class _Terms:
    """What is added up.

    Attributes:
        gather: where the rows come from.
        weights: [nnz]; None: they are added as they are.
        nodes: what is between.
    """

    gather: Gathered
    weights: Tensor | None
    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RaggedSum(Whole):
    """A reduction of the rows of bags that row splits say.

    Attributes:
        total: the segment reduction, which a division may be behind.
        splits: where bags start and end.
        rows: the number of the bag of each entry, as stock computes it.
        counts: how many entries each bag has, as what the sum is divided by; None if it is not.
        count_width: how many columns of the same numbers these are; None if it is not known.
    """

    total: str
    splits: RowSplits
    rows: Tensor
    counts: Tensor | None
    count_width: int | None


@dataclass(frozen=True)
class _Division:
    """The division of a sum by the number of entries, or the sum of their weights.

    Attributes:
        node: the division.
        counts: what it divides by, where entries have no weights.
        width: the columns of `counts`.
        nodes: those that make `counts`, and nothing else.
    """

    node: str
    counts: Tensor | None = None
    width: int | None = 1
    nodes: tuple[str, ...] = ()


def ragged_sums(view: GraphView) -> Iterator[str]:
    """Yields the segment sums and maxima of gathered rows, in file order."""
    return (
        name
        for name in view.named(*SEGMENT_REDUCTIONS)
        if gather_behind(view, view.inputs(name)[0]) is not None
        or computed_rows(view, name, only=True) is not None
    )


def is_segment_sum(view: GraphView, name: str) -> bool:
    """Whether a SegmentSum adds gathered rows as they are, and not those of distinct ids."""
    return view.op(name) == "SegmentSum" and is_table_gather(
        view, view.resolve(view.inputs(name)[0]).node
    )


def match_ragged_sum(
    view: GraphView, reduction: str, *, may_be_measured: bool = False
) -> Whole | NoMatch:
    """Says what a segment sum or maximum of gathered rows looks up.

    Args:
        view: the graph.
        reduction: the sum or maximum.
        may_be_measured: whether others may ask for the shape of a sum that is divided.
    """
    if gather_behind(view, view.inputs(reduction)[0]) is None:
        computed = computed_rows(view, reduction, only=True)
        assert computed is not None, "an anchor reduces rows, or what is computed from them"
        return computed
    found = _match(view, reduction, may_be_measured)
    return NoBag.of(found, view, reduction) if isinstance(found, NoMatch) else found


def computed_rows(view: GraphView, reduction: str, *, only: bool) -> NoBag | None:
    """Says what computes the terms of a segment reduction from looked-up rows, if anything does.

    Args:
        view: the graph.
        reduction: its node.
        only: whether nothing else reads the rows, as a gradient would, nor joins them on the way.
    """
    data = view.resolve(view.inputs(reduction)[0]).node
    level, seen = [data], {data}
    for depth in range(_DEEPEST):
        gather = next((name for name in level if is_table_gather(view, name)), None)
        if gather is not None and depth:
            # An Identity may wait for checks, and computes nothing.
            by = view.origin(Tensor(data)).node
            what = f"what {by} ({view.op(by)}) computes from looked-up rows"
            return NoBag(f"{view.op(reduction)} reduces {what}, and not the rows", by, gather)
        stops = _MEASURES | JOINS if only and depth else _MEASURES
        read = [one for name in level if view.op(name) not in stops for one in view.inputs(name)]
        if only:
            read = [one for one in read if _has_one_reader(view, one)]
        inputs = dict.fromkeys(view.resolve(one).node for one in read)
        level = [name for name in inputs if name not in seen][:_MOST]
        seen.update(level)
    return None


def _has_one_reader(view: GraphView, tensor: Tensor) -> bool:
    """Whether one node reads a tensor, or where it comes from; others may measure it."""
    return all(
        sum(view.op(user) not in _MEASURES for user in {use.node for use in view.uses(name)}) == 1
        for name in (view.resolve(tensor).node, *view.aliases(tensor))
    )


def _match(view: GraphView, reduction: str, may_be_measured: bool) -> Whole | NoMatch:
    terms = _match_terms(view, view.inputs(reduction)[0])
    if isinstance(terms, NoMatch):
        return terms
    if view.op(reduction) in _ASCENDING:
        return _match_ascending(view, reduction, terms)
    gather, (_, rows, count) = terms.gather, view.inputs(reduction)
    splits = match_row_splits(view, rows, count)
    if splits is None:
        return NoMatch("the rows of entries are not those of row splits", reduction)
    is_max = view.op(reduction) == _MAX
    if terms.weights is not None and is_max:
        return NoMatch("it is the maximum of weighted rows", reduction)
    if terms.weights is not None and gather.dtype in HALF_TYPES:
        return NoMatch("weighted sums of half types are rounded in another way", reduction)
    division = None
    if not is_max:
        division = _match_division(view, reduction, terms, splits, may_be_measured)
    output = Tensor(reduction if division is None else division.node)
    is_vector = len(gather.shape) == 2 if gather.shape is not None else is_multiplied(view, output)
    if not is_vector:
        return NoMatch("the ids are not known to be a vector", reduction)
    weights = None if terms.weights is None else WeightsSpec(terms.weights, False, 1.0)
    ids = gather.ids
    spec = lookup_of(
        view,
        gather,
        reduction,
        RaggedIds(ids.values, splits.tensor, splits.dtype, ids.wraps),
        output,
        combiner="max" if is_max else "sum" if division is None else "mean",
        divide_no_nan=division is None or DIVISIONS[view.op(division.node)],
        weights=weights,
        addition=Addition("sequence"),
    )
    of_ids = () if division is None else division.nodes
    nodes = (reduction, *terms.nodes, gather.node, *([] if division is None else [division.node]))
    return RaggedSum(
        stage=Stage.OUTPUT,
        nodes=tuple(dict.fromkeys((*nodes, *of_ids))),
        front=ids.nodes,
        spec=spec,
        of_ids=of_ids,
        total=reduction,
        splits=splits,
        rows=view.resolve(rows),
        counts=None if division is None else division.counts,
        count_width=1 if division is None else division.width,
    )


def _match_ascending(view: GraphView, reduction: str, terms: _Terms) -> Whole | NoMatch:
    gather, rows = terms.gather, view.inputs(reduction)[1]
    if terms.weights is not None:
        return NoMatch("it is the segment sum of weighted rows", reduction)
    if gather.shape is None or len(gather.shape) != 2:
        return NoMatch("the ids are not known to be a vector", reduction)
    ids, rows_dtype = gather.ids, view.type_attr(reduction, "Tindices")
    spec = replace(
        lookup_of(
            view,
            gather,
            reduction,
            RowIds(ids.values, view.resolve(rows), rows_dtype, None, ids.wraps),
            Tensor(reduction),
            combiner=_ASCENDING[view.op(reduction)],
            addition=Addition("dense_segment"),
        ),
        fill=False,
    )
    nodes = (reduction, *terms.nodes, gather.node)
    return Whole(stage=Stage.OUTPUT, nodes=tuple(dict.fromkeys(nodes)), front=ids.nodes, spec=spec)


def _match_terms(view: GraphView, added: Tensor) -> _Terms | NoMatch:
    found = match_added(view, added)
    if isinstance(found, NoMatch):
        return found
    source, gather = found
    name = gather.node
    nodes = view.aliases(added)
    if source.node == name:
        return _Terms(gather, None, nodes)
    if view.op(source.node) != "Mul":
        return NoMatch("rows are neither added as they are nor times weights", source.node)
    one, other = view.inputs(source.node)
    rows, by = (one, other) if view.resolve(one).node == name else (other, one)
    nodes += (source.node, *view.aliases(rows))
    if _ones(view, by, gather):
        return _Terms(gather, None, nodes)
    weights = _weights(view, by)
    if weights is None:
        return NoMatch("the weights are not known to be one for each entry", source.node)
    return _Terms(gather, weights, nodes)


def _weights(view: GraphView, column: Tensor) -> Tensor | None:
    """Returns the vector that a column [nnz, 1] is made of."""
    source = view.resolve(column)
    if view.op(source.node) not in ("ExpandDims", "Reshape"):
        return None
    inner, how = view.inputs(source.node)
    shape, value = view.shape(inner), view.constant(how)
    if shape is None or len(shape) != 1 or value is None:
        return None
    wanted = ([1], [-1]) if view.op(source.node) == "ExpandDims" else ([-1, 1],)
    return view.resolve(inner) if value.reshape(-1).tolist() in wanted else None


def _ones(view: GraphView, tensor: Tensor, gather: Gathered) -> tuple[str, ...]:
    """Returns the nodes that make a one for each entry, [nnz, 1] or [nnz, D]; () if none do."""
    source = view.resolve(tensor)
    if view.op(source.node) != "ExpandDims":
        return ones_like(view, tensor, {Tensor(gather.node)})
    vector = _weights(view, source)
    ones = () if vector is None else ones_like(view, vector, gather.ids.same)
    inner = view.inputs(source.node)[0]
    return (*view.aliases(tensor), source.node, *view.aliases(inner), *ones) if ones else ()


def _match_division(
    view: GraphView, reduction: str, terms: _Terms, splits: RowSplits, may_be_measured: bool
) -> _Division | None:
    name = division_of(view, reduction, may_be_measured=may_be_measured)
    if name is None:
        return None
    total = view.resolve(view.inputs(name)[1])
    if view.op(total.node) != _SUM:
        return None
    added, rows, count = view.inputs(total.node)
    if match_row_splits(view, rows, count) != splits:
        return None
    if terms.weights is not None:
        return _Division(name) if _weights(view, added) == terms.weights else None
    ones = _ones(view, added, terms.gather)
    if not ones:
        return None
    is_column = view.op(view.resolve(added).node) == "ExpandDims"
    shape = terms.gather.table.shards[0].shape
    width = 1 if is_column else None if shape is None else shape[1]
    return _Division(name, total, width, (total.node, *ones))
