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
from dataclasses import dataclass

from fusion.passes.analysis.ranks_by_use import is_multiplied
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node, Value, named
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import NoMatch, Stage, Whole
from fusion.passes.recognise.spec import RaggedIds, RowIds
from fusion.passes.recognise.stock.gathers import (
    Gathered,
    NoBag,
    is_table_gather,
    lookup_of,
    match_added,
    ones_like,
    source_gather,
)
from fusion.passes.recognise.stock.quotients import DIVISIONS, division_of
from fusion.passes.recognise.stock.ragged import RowSplits, match_row_splits
from fusion.passes.recognise.stock.rows import JOINS
from fusion.schema.attributes import HALF_TYPES
from fusion.schema.columns import Column

_SUM, _MAX = "UnsortedSegmentSum", "UnsortedSegmentMax"
_ASCENDING = {"SegmentMean": "mean", "SegmentSum": "sum"}
"""Reductions whose last row is that of the last entry, and their combiners."""

SEGMENT_REDUCTIONS = frozenset({_MAX, _SUM, "SegmentMean"})
"""All but SegmentSum, which feature columns end with, too: see `is_segment_sum`."""

_MEASURES = frozenset({"Rank", "Shape", "ShapeN", "Size"})
_MAX_DEPTH, _MAX_NODES = 6, 64
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
    weights: Value | None
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

    node: Node
    counts: Tensor | None = None
    width: int | None = 1
    nodes: tuple[str, ...] = ()


def ragged_sums(view: GraphView) -> Iterator[Node]:
    """Yields the segment sums and maxima of gathered rows, in file order."""
    return (
        node
        for node in named(view, *SEGMENT_REDUCTIONS)
        if source_gather(node.input(0)) is not None or computed_rows(node, only=True) is not None
    )


def is_segment_sum(node: Node) -> bool:
    """Whether a SegmentSum adds gathered rows as they are, and not those of distinct ids."""
    return node.op == "SegmentSum" and is_table_gather(node.input(0).producer)


def match_ragged_sum(reduction: Node, *, may_be_measured: bool = False) -> Whole | NoMatch:
    """Says what a segment sum or maximum of gathered rows looks up.

    Args:
        reduction: the sum or maximum.
        may_be_measured: whether others may ask for the shape of a sum that is divided.
    """
    if source_gather(reduction.input(0)) is None:
        computed = computed_rows(reduction, only=True)
        assert computed is not None, "an anchor reduces rows, or what is computed from them"
        return computed
    match = _match(reduction, may_be_measured)
    return NoBag.of(match, reduction) if isinstance(match, NoMatch) else match


def computed_rows(reduction: Node, *, only: bool) -> NoBag | None:
    """Says what computes the terms of a segment reduction from looked-up rows, if anything does.

    Args:
        reduction: its node.
        only: whether nothing else reads the rows, as a gradient would, nor joins them on the way.
    """
    data = reduction.input(0).producer
    level, seen = [data], {data}
    for depth in range(_MAX_DEPTH):
        gather = next(filter(is_table_gather, level), None)
        if gather is not None and depth:
            # An Identity may wait for checks, and computes nothing.
            by = data.output().origin.producer
            what = f"what {by.name} ({by.op}) computes from looked-up rows"
            why = f"{reduction.op} reduces {what}, and not the rows"
            return NoBag(why, by.name, gather.name)
        stops = _MEASURES | JOINS if only and depth else _MEASURES
        read = [one for node in level if node.op not in stops for one in node.inputs]
        if only:
            read = [one for one in read if _has_one_reader(one)]
        inputs = dict.fromkeys(one.producer for one in read)
        level = [node for node in inputs if node not in seen][:_MAX_NODES]
        seen.update(level)
    return None


def _has_one_reader(value: Value) -> bool:
    """Whether one node reads a tensor, or where it comes from; others may measure it."""
    view = value.view
    return all(
        sum(view.op(user) not in _MEASURES for user in {use.node for use in view.uses(name)}) == 1
        for name in value.path
    )


def _match(reduction: Node, may_be_measured: bool) -> Whole | NoMatch:
    terms = _match_terms(reduction.input(0))
    if isinstance(terms, NoMatch):
        return terms
    if reduction.op in _ASCENDING:
        return _match_ascending(reduction, terms)

    def refused(reason: str) -> NoMatch:
        return NoMatch(reason, reduction.name)

    gather, (_, rows, count) = terms.gather, reduction.inputs
    splits = match_row_splits(rows, count)
    if splits is None:
        return refused("the rows of entries are not those of row splits")
    is_max = reduction.op == _MAX
    if terms.weights is not None and is_max:
        return refused("it is the maximum of weighted rows")
    if terms.weights is not None and gather.dtype in HALF_TYPES:
        return refused("weighted sums of half types are rounded in another way")
    division = None
    if not is_max:
        division = _match_division(reduction, terms, splits, may_be_measured)
    output = (reduction if division is None else division.node).output()
    is_vector = len(gather.shape) == 2 if gather.shape is not None else is_multiplied(output)
    if not is_vector:
        return refused("the ids are not known to be a vector")
    ids = gather.ids
    spec = lookup_of(
        gather,
        reduction,
        RaggedIds(ids.values.tensor, splits.tensor, splits.dtype, ids.wraps),
        output,
        Column(
            combiner="max" if is_max else "sum" if division is None else "mean",
            fill_empty_row=True,
            use_sparse_weights=terms.weights is not None,
            divide_no_nan=division is None or DIVISIONS[division.node.op],
            sum_order="sequence",
        ),
        None if terms.weights is None else terms.weights.tensor,
    )
    of_ids = () if division is None else division.nodes
    divisions = [] if division is None else [division.node.name]
    nodes = (reduction.name, *terms.nodes, gather.node.name, *divisions)
    return RaggedSum(
        stage=Stage.OUTPUT,
        nodes=tuple(dict.fromkeys((*nodes, *of_ids))),
        front=ids.nodes,
        spec=spec,
        of_ids=of_ids,
        total=reduction.name,
        splits=splits,
        rows=rows.resolved.tensor,
        counts=None if division is None else division.counts,
        count_width=1 if division is None else division.width,
    )


def _match_ascending(reduction: Node, terms: _Terms) -> Whole | NoMatch:
    gather, rows = terms.gather, reduction.input(1).resolved
    if terms.weights is not None:
        return NoMatch("it is the segment sum of weighted rows", reduction.name)
    if gather.shape is None or len(gather.shape) != 2:
        return NoMatch("the ids are not known to be a vector", reduction.name)
    ids, rows_dtype = gather.ids, reduction.type_attr("Tindices")
    spec = lookup_of(
        gather,
        reduction,
        RowIds(ids.values.tensor, rows.tensor, rows_dtype, None, ids.wraps),
        reduction.output(),
        Column(combiner=_ASCENDING[reduction.op], sum_order="dense_segment"),
    )
    nodes = (reduction.name, *terms.nodes, gather.node.name)
    return Whole(stage=Stage.OUTPUT, nodes=tuple(dict.fromkeys(nodes)), front=ids.nodes, spec=spec)


def _match_terms(added: Value) -> _Terms | NoMatch:
    match = match_added(added)
    if isinstance(match, NoMatch):
        return match
    source, gather = match
    nodes = added.aliases
    if source == gather.node:
        return _Terms(gather, None, nodes)
    if source.op != "Mul":
        return NoMatch("rows are neither added as they are nor times weights", source.name)
    rows, by = source.inputs
    if rows.producer != gather.node:
        rows, by = by, rows
    nodes += (source.name, *rows.aliases)
    if _ones(by, gather):
        return _Terms(gather, None, nodes)
    weights = _weights(by)
    if weights is None:
        return NoMatch("the weights are not known to be one for each entry", source.name)
    return _Terms(gather, weights, nodes)


def _weights(column: Value) -> Value | None:
    """Returns the vector that a column [nnz, 1] is made of."""
    source = column.producer
    if source.op not in ("ExpandDims", "Reshape"):
        return None
    inner, how = source.inputs
    shape, value = inner.shape, how.constant
    if shape is None or len(shape) != 1 or value is None:
        return None
    wanted = ([1], [-1]) if source.op == "ExpandDims" else ([-1, 1],)
    return inner.resolved if value.reshape(-1).tolist() in wanted else None


def _ones(value: Value, gather: Gathered) -> tuple[str, ...]:
    """Returns the nodes that make a one for each entry, [nnz, 1] or [nnz, D]; () if none do."""
    if value.producer.op != "ExpandDims":
        return ones_like(value, {gather.node.output()})
    vector = _weights(value)
    ones = () if vector is None else ones_like(vector, gather.ids.same)
    return (*value.path, *value.producer.input(0).aliases, *ones) if ones else ()


def _match_division(
    reduction: Node, terms: _Terms, splits: RowSplits, may_be_measured: bool
) -> _Division | None:
    division = division_of(reduction, may_be_measured=may_be_measured)
    if division is None:
        return None
    total = division.input(1).producer
    if total.op != _SUM:
        return None
    added, rows, count = total.inputs
    if match_row_splits(rows, count) != splits:
        return None
    if terms.weights is not None:
        return _Division(division) if _weights(added) == terms.weights else None
    ones = _ones(added, terms.gather)
    if not ones:
        return None
    is_column = added.producer.op == "ExpandDims"
    shape = terms.gather.table.shards[0].shape
    width = 1 if is_column else None if shape is None else shape[1]
    return _Division(division, total.output().tensor, width, (total.name, *ones))
