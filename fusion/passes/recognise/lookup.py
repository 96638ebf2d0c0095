"""From the op that a lookup ends with to a `LookupSpec`: one recogniser after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from fusion.passes.graph.values import Node, named
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.backward.gradient import GradientSums, match_gradients
from fusion.passes.recognise.control_dependencies import helper_controls
from fusion.passes.recognise.fused.fused_chain import match_fused
from fusion.passes.recognise.fused.fused_op import match_whole
from fusion.passes.recognise.lookup_match import LookupMatch
from fusion.passes.recognise.match import NoMatch, Stage, Whole
from fusion.passes.recognise.parts import (
    Parts,
    has_positive_divisor,
    is_matrix,
    result_shape,
    spec_of,
)
from fusion.passes.recognise.stock.axis_sums import REDUCTIONS, axis_sums, match_axis_sum
from fusion.passes.recognise.stock.encodings import ENCODINGS
from fusion.passes.recognise.stock.entries import is_filled, match_entries, match_fill
from fusion.passes.recognise.stock.gathers import GATHERS, row_gathers
from fusion.passes.recognise.stock.grappler_forms import DistinctGathers, as_built
from fusion.passes.recognise.stock.id_source import match_source
from fusion.passes.recognise.stock.one_id_per_row import LAST, match_single, single_anchors
from fusion.passes.recognise.stock.output import Mask, match_mask, match_tail
from fusion.passes.recognise.stock.padded_sums import match_padded_sum, padded_sums, source_lookup
from fusion.passes.recognise.stock.products import (
    OTHER_PRODUCTS,
    PRODUCTS,
    SPARSE_PRODUCT,
    Product,
    match_product,
    match_sparse_product,
    products,
    sparse_products,
)
from fusion.passes.recognise.stock.prune import match_prune
from fusion.passes.recognise.stock.ragged_sums import (
    SEGMENT_REDUCTIONS,
    computed_rows,
    is_segment_sum,
    match_ragged_sum,
    ragged_sums,
)
from fusion.passes.recognise.stock.reduction import (
    ANCHORS,
    FUSED_ANCHORS,
    NoRows,
    anchors,
    match_reduction,
)
from fusion.passes.recognise.stock.rows import match_rows
from fusion.passes.recognise.stock.table import UNIQUES, match_table
from fusion.schema.names import SINGLE


@dataclass(frozen=True)
class _Shared:
    """What many lookups of a graph have in common.

    Attributes:
        is_step: whether it is about to run, and gradients may ask for shapes of results.
    """

    distinct: DistinctGathers
    sums: GradientSums
    is_step: bool

    @staticmethod
    def of(is_step: bool = False) -> _Shared:
        return _Shared(DistinctGathers(), GradientSums(), is_step)


@dataclass(frozen=True)
class LookupForm:
    """A form of lookups: how graphs that have some are detected, and how each is explained.

    Attributes:
        anchors: the ops that a lookup ends with.
        find: (view) -> the nodes that one may end with, in file order.
        match: (one of these, what lookups share) -> the lookup, as far as it is explained.
        beside: ops, one of which is also in each graph with such lookups; none: no such op.
    """

    anchors: frozenset[str]
    find: Callable[[GraphView], Iterable[Node]]
    match: Callable[[Node, _Shared], LookupMatch]
    beside: frozenset[str] = frozenset()

    @property
    def ops(self) -> tuple[frozenset[str], ...]:
        """Sets of ops: a graph with such lookups has an op of each set."""
        return (self.anchors, self.beside) if self.beside else (self.anchors,)


def recognise_all(view: GraphView, *, is_step: bool = False) -> tuple[LookupMatch, ...]:
    """Returns what is explained of each lookup, form by form, in file order.

    Args:
        view: the graph.
        is_step: whether it is about to run, and gradients may ask for shapes of results.
    """
    shared = _Shared.of(is_step)
    matches = [_explained(form, node, shared) for form in FORMS for node in form.find(view)]
    matches += _refused_encodings(matches)
    inside = {name for match in matches if match.spec for name in match.nodes()[1:]}
    # A gather that is a part of a lookup is none of its own.
    return tuple(match for match in matches if match.anchor not in inside or not match.has_few_ops)


def _refused_encodings(matches: Iterable[LookupMatch]) -> list[LookupMatch]:
    """Returns the encoded ids that stay beside others in products that are understood."""
    wholes = (match.parts.whole for match in matches)
    products = (whole for whole in wholes if isinstance(whole, Product))
    failures = {failure.node: failure for product in products for failure in product.refused}
    return [
        LookupMatch(node, Parts(), None, failure, node, has_few_ops=True)
        for node, failure in failures.items()
    ]


def outermost(lookups: Iterable[LookupMatch]) -> list[LookupMatch]:
    """Returns the lookups that are no parts of others that were explained."""
    lookups = list(lookups)
    inside = {name for one in lookups if one.spec for name in one.nodes() if name != one.anchor}
    return [lookup for lookup in lookups if lookup.anchor not in inside]


#: Whether errors of recognisers leave `recognise_all`, as in tests.
raises_errors = False


def _explained(form: LookupForm, anchor: Node, shared: _Shared) -> LookupMatch:
    """Returns a lookup for damaged graphs, too, whose errors cannot be listed."""
    try:
        return form.match(anchor, shared)
    except Exception as error:
        if raises_errors:
            raise
        what = f"{type(error).__name__}: {error}".partition("\n")[0]
        why = f"the graph around it makes no sense to fusion ({what})"
        failure = NoMatch(why, anchor.name)
        return LookupMatch(anchor.name, Parts(), None, failure, anchor.name)


def recognise(view: GraphView, anchor: str) -> LookupMatch:
    """Explains the lookup that ends with the segment reduction `anchor`, as far as it goes."""
    return _match_reduced(Node(view, anchor), _Shared.of())


def _match_reduced(anchor: Node, shared: _Shared) -> LookupMatch:
    """Explains a lookup that ends with a segment reduction, or with the fused op in its place."""
    if anchor.op in FUSED_ANCHORS:
        return _match_chain(anchor)
    parts = Parts()

    def stop(failure: NoMatch) -> LookupMatch:
        name = anchor.name if parts.table is None else parts.table.name
        return LookupMatch(anchor.name, parts, None, failure, name)

    reduction = match_reduction(anchor)
    if isinstance(reduction, NoMatch):
        return stop(reduction)
    reduction = as_built(shared.distinct, reduction)
    parts = Parts(reduction)
    table = match_table(reduction)
    if isinstance(table, NoMatch):
        return stop(table)
    parts = Parts(reduction, table)
    entries = match_entries(reduction, table)
    if isinstance(entries, NoMatch):
        return stop(entries)
    parts = Parts(reduction, table, entries)
    fill = match_fill(entries) if is_filled(entries) else None
    if isinstance(fill, NoMatch):
        return stop(fill)
    unfilled = entries if fill is None else fill.entries
    prune = None if unfilled.count is None else match_prune(unfilled)
    parts = Parts(reduction, table, entries, fill, prune)
    source = match_source(entries if prune is None else prune.entries)
    if isinstance(source, NoMatch):
        return stop(source)
    parts = Parts(reduction, table, entries, fill, prune, source)
    shape = result_shape(reduction, source, table)
    mask = match_mask(reduction.output, fill, shape)
    if isinstance(mask, NoMatch):
        return stop(mask)
    strange = next((s for s in table.shards if not mask.present and not is_matrix(s)), None)
    if strange is not None:
        return stop(NoMatch("the table is not known to be a matrix", strange.tensor.node))
    tail = match_tail(mask.output, shape)
    parts = Parts(reduction, table, entries, fill, prune, source, mask, tail)
    spec = spec_of(parts)
    positive = has_positive_divisor(reduction, fill, prune)
    is_distinct = table.unique is not None
    gradients = match_gradients(
        shared.sums, reduction, is_distinct, mask, tail.output, shape, positive
    )
    if gradients and entries.is_widened:
        why = "the ids are cast before the lookup, whose gradient has int64"
        return stop(NoMatch(why, anchor.name))
    deps = helper_controls(anchor.view, parts, spec)
    return LookupMatch(anchor.name, parts, spec, None, table.name, deps, gradients)


def _match_chain(anchor: Node) -> LookupMatch:
    """Explains a lookup of fused ops around a stock gather."""
    match = match_fused(anchor)
    if isinstance(match, NoMatch):
        return LookupMatch(anchor.name, Parts(), None, match, anchor.name, has_few_ops=True)
    reduction, table = match.reduction, match.table
    output = reduction.output
    mask = Mask(stage=Stage.OUTPUT, nodes=(), present=match.zeros, output=output)
    tail = match_tail(output, result_shape(reduction, match.source, table))
    parts = Parts(
        reduction, table, None, match.fill, match.prune, match.source, mask=mask, tail=tail
    )
    spec = spec_of(parts)
    deps = helper_controls(anchor.view, parts, spec)
    return LookupMatch(anchor.name, parts, spec, None, table.name, deps, has_few_ops=True)


def _at_once(match: Callable[[Node], Whole | NoMatch]) -> Callable[[Node, _Shared], LookupMatch]:
    """Returns what explains a lookup all at once, by its last node alone."""

    def explain(anchor: Node, shared: _Shared) -> LookupMatch:
        whole = match(anchor)
        if isinstance(whole, NoMatch):
            return LookupMatch(anchor.name, Parts(), None, whole, anchor.name, has_few_ops=True)
        parts, spec = Parts(whole=whole), whole.spec
        deps = helper_controls(anchor.view, parts, spec)
        return LookupMatch(anchor.name, parts, spec, None, spec.table.name, deps, has_few_ops=True)

    return explain


#: The ops that lookups of layers end with.
LAYER_ANCHORS = GATHERS.union(REDUCTIONS, SEGMENT_REDUCTIONS, PRODUCTS, [SPARSE_PRODUCT])


def _match_ragged(anchor: Node, shared: _Shared) -> LookupMatch:
    """Explains a lookup that ends with a reduction of gathered rows by row splits."""
    match = partial(match_ragged_sum, may_be_measured=shared.is_step)
    return _at_once(match)(anchor, shared)


def _match_segments(anchor: Node, shared: _Shared) -> LookupMatch:
    """Explains a lookup that ends with a segment reduction, of a layer or of a column."""
    if is_segment_sum(anchor):
        return _match_ragged(anchor, shared)
    match = _match_reduced(anchor, shared)
    if not isinstance(match.failure, NoRows):
        return match
    computed = computed_rows(anchor, only=False)
    # The gather of the rows has a reason of its own.
    why = match.failure if computed is None else NoMatch(computed.reason, computed.node)
    return replace(match, failure=why)


def _sums(view: GraphView) -> Iterator[Node]:
    """Yields the sums, means and maxima of rows or of results of lookups, in file order."""
    nodes = {*axis_sums(view), *padded_sums(view)}
    return (node for node in named(view, *REDUCTIONS) if node in nodes)


def _match_sum(anchor: Node, shared: _Shared) -> LookupMatch:
    """Explains a lookup that ends with a reduction over an axis, of rows or of what others are."""
    inner = source_lookup(anchor)
    if inner is None:
        return _at_once(match_axis_sum)(anchor, shared)
    lookup = _match_reduced(inner, shared)

    def match(anchor: Node) -> Whole | NoMatch:
        if lookup.failure is not None:
            return lookup.failure
        if lookup.gradients:
            return NoMatch("the lookup that is added up is trained", anchor.name)
        assert lookup.parts.table is not None
        return match_padded_sum(anchor, lookup.full_spec, lookup.parts.table, lookup.parts)

    return _at_once(match)(anchor, shared)


#: All forms that are known; what `enable` looks for in a graph follows from them.
FORMS: tuple[LookupForm, ...] = (
    LookupForm(ANCHORS, anchors, _match_segments),
    LookupForm(frozenset({LAST}), single_anchors, _at_once(match_single), beside=UNIQUES),
    LookupForm(REDUCTIONS, _sums, _match_sum, GATHERS),
    LookupForm(SEGMENT_REDUCTIONS, ragged_sums, _match_ragged, GATHERS),
    LookupForm(GATHERS, row_gathers, _at_once(match_rows)),
    LookupForm(PRODUCTS | OTHER_PRODUCTS, products, _at_once(match_product), ENCODINGS),
    LookupForm(frozenset({SPARSE_PRODUCT}), sparse_products, _at_once(match_sparse_product)),
    LookupForm(frozenset({SINGLE}), lambda view: named(view, SINGLE), _at_once(match_whole)),
)
