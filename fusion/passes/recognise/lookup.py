"""From the op that a lookup ends with to a `LookupSpec`: one recogniser after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.backward.gradient import Gradient, GradientSums, match_gradients
from fusion.passes.recognise.control_dependencies import helper_controls
from fusion.passes.recognise.fused.fused_chain import match_fused
from fusion.passes.recognise.fused.fused_op import Whole, match_whole
from fusion.passes.recognise.match import NoMatch, Stage
from fusion.passes.recognise.parts import (
    Parts,
    has_positive_divisor,
    is_matrix,
    result_shape,
    spec_of,
)
from fusion.passes.recognise.spec import LookupSpec
from fusion.passes.recognise.stock.axis_sums import REDUCTIONS, axis_sums, match_axis_sum
from fusion.passes.recognise.stock.encodings import ENCODINGS
from fusion.passes.recognise.stock.entries import is_filled, match_entries, match_fill
from fusion.passes.recognise.stock.gathers import GATHERS, row_gathers
from fusion.passes.recognise.stock.grappler_forms import DistinctGathers, as_built
from fusion.passes.recognise.stock.id_source import match_source
from fusion.passes.recognise.stock.one_id_per_row import LAST, match_single, single_anchors
from fusion.passes.recognise.stock.output import Mask, match_mask, match_tail
from fusion.passes.recognise.stock.padded_sums import (
    lookup_behind,
    match_padded_sum,
    padded_sums,
)
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
class LookupMatch:
    """How far a lookup was explained.

    Attributes:
        anchor: the op that it ends with, such as a segment reduction.
        parts: what was explained.
        spec: the whole lookup, if all of it was.
        failure: else the reason and the node.
        name: for people: the table, where it was found.
        control_deps: what each stage waits for by constants and the like, see
            `control_dependencies`.
        gradients: of the gathered rows, where the graph has them; or why one is none.
        has_few_ops: whether it is a fused lookup, or has fused ops around a stock gather, or looks
            up one id per row. Only one op for all of it is better then.
    """

    anchor: str
    parts: Parts
    spec: LookupSpec | None
    failure: NoMatch | None
    name: str
    control_deps: Mapping[Stage, tuple[str, ...]] = field(default_factory=dict)
    gradients: tuple[Gradient | NoMatch, ...] = ()
    has_few_ops: bool = False

    def nodes(self, stage: Stage | None = None) -> tuple[str, ...]:
        """Returns the explained nodes whose values vanish, of one stage or of all."""
        return self._nodes[stage]

    @cached_property
    def _nodes(self) -> dict[Stage | None, tuple[str, ...]]:
        return {
            stage: tuple(n for p in self.parts if stage in (None, p.stage) for n in p.nodes)
            for stage in (None, *Stage)
        }

    def control_inputs(self, view: GraphView) -> frozenset[str]:
        """Returns all that the lookup waits for, by its own control edges and by its helpers'."""
        if not view.has_controls:
            return frozenset()
        own = {*self.nodes(), *self.front()}
        direct = {before for name in own for before in view.controls(name)} - {*self.nodes()}
        return frozenset(direct).union(*self.control_deps.values())

    @property
    def is_row_empty(self) -> Tensor | None:
        """Which rows were filled, a value that others may use; None if none are.

        Ops for whole lookups do not output it.
        """
        fill = self.parts.fill
        return None if self.has_few_ops or fill is None else fill.is_row_empty

    @property
    def full_spec(self) -> LookupSpec:
        """The spec of a lookup that was explained to the end; others are not planned."""
        assert self.spec is not None, "only fully recognised lookups are planned"
        return self.spec

    @property
    def backward(self) -> tuple[Gradient, ...]:
        """The gradients that were understood."""
        return tuple(gradient for gradient in self.gradients if isinstance(gradient, Gradient))

    @property
    def unique(self) -> str:
        """The node that finds the distinct ids; "" if there is none."""
        return "" if self.parts.table is None else self.parts.table.unique

    @property
    def rows(self) -> Tensor:
        """The matrix whose rows are reduced: gathered ones of distinct ids, or the table."""
        assert self.parts.reduction is not None, "only lookups with a reduction have these rows"
        return self.parts.reduction.rows

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """The matrices or handles of the table's shards, where it was found."""
        if self.parts.table is not None:
            return tuple(shard.tensor for shard in self.parts.table.shards)
        return () if self.spec is None else tuple(s.tensor for s in self.spec.table.shards)

    def front(self) -> tuple[str, ...]:
        """Returns the explained nodes that only compute the lookup's inputs."""
        return tuple(n for p in self.parts for n in p.front)


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
    def of(view: GraphView, is_step: bool = False) -> _Shared:
        return _Shared(DistinctGathers(view), GradientSums(view), is_step)


@dataclass(frozen=True)
class LookupForm:
    """A form of lookups: how graphs that have some are detected, and how each is explained.

    Attributes:
        anchors: the ops that a lookup ends with.
        find: (view) -> the nodes that one may end with, in file order.
        match: (view, one of these, what lookups share) -> the lookup, as far as it is explained.
        beside: ops, one of which is also in each graph with such lookups; none: no such op.
    """

    anchors: frozenset[str]
    find: Callable[[GraphView], Iterable[str]]
    match: Callable[[GraphView, str, _Shared], LookupMatch]
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
    shared = _Shared.of(view, is_step)
    matches = [_explained(form, view, name, shared) for form in FORMS for name in form.find(view)]
    matches += _refused_beside(matches)
    inside = {name for match in matches if match.spec for name in match.nodes()[1:]}
    # A gather that is a part of a lookup is none of its own.
    return tuple(match for match in matches if match.anchor not in inside or not match.has_few_ops)


def _refused_beside(matches: Iterable[LookupMatch]) -> list[LookupMatch]:
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


def _explained(form: LookupForm, view: GraphView, anchor: str, shared: _Shared) -> LookupMatch:
    """Returns a lookup for damaged graphs, too, whose errors cannot be listed."""
    try:
        return form.match(view, anchor, shared)
    except Exception as error:
        if raises_errors:
            raise
        what = f"{type(error).__name__}: {error}".partition("\n")[0]
        failure = NoMatch(f"the graph around it makes no sense to fusion ({what})", anchor)
        return LookupMatch(anchor, Parts(), None, failure, anchor)


def recognise(view: GraphView, anchor: str) -> LookupMatch:
    """Explains the lookup that ends with the segment reduction `anchor`, as far as it goes."""
    return _match_reduced(view, anchor, _Shared.of(view))


def _match_reduced(view: GraphView, anchor: str, shared: _Shared) -> LookupMatch:
    """Explains a lookup that ends with a segment reduction, or with the fused op in its place."""
    if view.op(anchor) in FUSED_ANCHORS:
        return _match_chain(view, anchor)
    parts = Parts()

    def stop(failure: NoMatch) -> LookupMatch:
        name = anchor if parts.table is None else parts.table.name
        return LookupMatch(anchor, parts, None, failure, name)

    reduction = match_reduction(view, anchor)
    if isinstance(reduction, NoMatch):
        return stop(reduction)
    reduction = as_built(shared.distinct, reduction)
    parts = replace(parts, reduction=reduction)
    table = match_table(view, reduction)
    if isinstance(table, NoMatch):
        return stop(table)
    parts = replace(parts, table=table)
    entries = match_entries(view, reduction, table)
    if isinstance(entries, NoMatch):
        return stop(entries)
    parts = replace(parts, entries=entries)
    fill = match_fill(view, entries) if is_filled(view, entries) else None
    if isinstance(fill, NoMatch):
        return stop(fill)
    kept = entries if fill is None else fill.entries
    prune = None if kept.count is None else match_prune(view, kept)
    parts = replace(parts, fill=fill, prune=prune)
    source = match_source(view, entries if prune is None else prune.entries)
    if isinstance(source, NoMatch):
        return stop(source)
    parts = replace(parts, source=source)
    shape = result_shape(reduction, source, table)
    mask = match_mask(view, reduction.output, fill, shape)
    if isinstance(mask, NoMatch):
        return stop(mask)
    strange = next((s for s in table.shards if not mask.present and not is_matrix(view, s)), None)
    if strange is not None:
        return stop(NoMatch("the table is not known to be a matrix", strange.tensor.node))
    parts = replace(parts, mask=mask, tail=match_tail(view, mask.output, shape))
    spec = spec_of(view, parts)
    positive = has_positive_divisor(reduction, fill, prune)
    gradients = match_gradients(
        shared.sums, reduction, table.unique, mask, spec.output, shape, positive
    )
    if gradients and entries.is_widened:
        return stop(NoMatch("the ids are cast before the lookup, whose gradient has int64", anchor))
    deps = helper_controls(view, parts, spec)
    return LookupMatch(anchor, parts, spec, None, table.name, deps, gradients)


def _match_chain(view: GraphView, anchor: str) -> LookupMatch:
    """Explains a lookup of fused ops around a stock gather."""
    match = match_fused(view, anchor)
    if isinstance(match, NoMatch):
        return LookupMatch(anchor, Parts(), None, match, anchor, has_few_ops=True)
    reduction, table = match.reduction, match.table
    output = reduction.output
    mask = Mask(stage=Stage.OUTPUT, nodes=(), present=match.zeros, output=output)
    tail = match_tail(view, output, result_shape(reduction, match.source, table))
    parts = Parts(
        reduction, table, None, match.fill, match.prune, match.source, mask=mask, tail=tail
    )
    spec = spec_of(view, parts)
    deps = helper_controls(view, parts, spec)
    return LookupMatch(anchor, parts, spec, None, table.name, deps, has_few_ops=True)


def _at_once(
    match: Callable[[GraphView, str], Whole | NoMatch],
) -> Callable[[GraphView, str, _Shared], LookupMatch]:
    """Returns what explains a lookup all at once, by its last node alone."""

    def explain(view: GraphView, anchor: str, shared: _Shared) -> LookupMatch:
        whole = match(view, anchor)
        if isinstance(whole, NoMatch):
            return LookupMatch(anchor, Parts(), None, whole, anchor, has_few_ops=True)
        parts, spec = Parts(whole=whole), whole.spec
        deps = helper_controls(view, parts, spec)
        return LookupMatch(anchor, parts, spec, None, spec.table.name, deps, has_few_ops=True)

    return explain


#: The ops that lookups of layers end with.
LAYER_ANCHORS = GATHERS.union(REDUCTIONS, SEGMENT_REDUCTIONS, PRODUCTS, [SPARSE_PRODUCT])


def _match_ragged(view: GraphView, anchor: str, shared: _Shared) -> LookupMatch:
    """Explains a lookup that ends with a reduction of gathered rows by row splits."""
    match = partial(match_ragged_sum, may_be_measured=shared.is_step)
    return _at_once(match)(view, anchor, shared)


def _match_segments(view: GraphView, anchor: str, shared: _Shared) -> LookupMatch:
    """Explains a lookup that ends with a segment reduction, of a layer or of a column."""
    if is_segment_sum(view, anchor):
        return _match_ragged(view, anchor, shared)
    match = _match_reduced(view, anchor, shared)
    if not isinstance(match.failure, NoRows):
        return match
    computed = computed_rows(view, anchor, only=False)
    # The gather of the rows has a reason of its own.
    why = match.failure if computed is None else NoMatch(computed.reason, computed.node)
    return replace(match, failure=why)


def _sums(view: GraphView) -> Iterator[str]:
    """Yields the sums, means and maxima of rows or of results of lookups, in file order."""
    found = {*axis_sums(view), *padded_sums(view)}
    return (name for name in view.named(*REDUCTIONS) if name in found)


def _match_sum(view: GraphView, anchor: str, shared: _Shared) -> LookupMatch:
    """Explains a lookup that ends with a reduction over an axis, of rows or of what others are."""
    inner = lookup_behind(view, anchor)
    if not inner:
        return _at_once(match_axis_sum)(view, anchor, shared)
    lookup = _match_reduced(view, inner, shared)

    def match(view: GraphView, anchor: str) -> Whole | NoMatch:
        if lookup.failure is not None:
            return lookup.failure
        if lookup.gradients:
            return NoMatch("the lookup that is added up is trained", anchor)
        assert lookup.parts.table is not None
        return match_padded_sum(view, anchor, lookup.full_spec, lookup.parts.table, lookup.parts)

    return _at_once(match)(view, anchor, shared)


#: All forms that are known; what `enable` looks for in a graph follows from them.
FORMS: tuple[LookupForm, ...] = (
    LookupForm(ANCHORS, anchors, _match_segments),
    LookupForm(frozenset({LAST}), single_anchors, _at_once(match_single), beside=UNIQUES),
    LookupForm(REDUCTIONS, _sums, _match_sum, GATHERS),
    LookupForm(SEGMENT_REDUCTIONS, ragged_sums, _match_ragged, GATHERS),
    LookupForm(GATHERS, row_gathers, _at_once(match_rows)),
    LookupForm(PRODUCTS | OTHER_PRODUCTS, products, _at_once(match_product), ENCODINGS),
    LookupForm(frozenset({SPARSE_PRODUCT}), sparse_products, _at_once(match_sparse_product)),
    LookupForm(frozenset({SINGLE}), lambda view: view.named(SINGLE), _at_once(match_whole)),
)
