"""From a segment reduction to a `LookupSpec`: runs the recognisers one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from fusion.passes.analysis.symbolic_shapes import Dim, Vector
from fusion.passes.graph.tensor import ARG_OP, Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.backward.gradient import Gradient, GradientSums, match_gradients
from fusion.passes.recognise.control_dependencies import helper_waits
from fusion.passes.recognise.fused.fused_chain import match_fused
from fusion.passes.recognise.fused.fused_op import WHOLE, match_whole
from fusion.passes.recognise.match import Match, NoMatch, Stage
from fusion.passes.recognise.spec import (
    BucketsSpec,
    DenseIds,
    IdsSpec,
    LookupSpec,
    RaggedIds,
    RowIds,
    SparseIds,
    WeightsSpec,
)
from fusion.passes.recognise.stock.entries import Fill, match_entries, match_fill
from fusion.passes.recognise.stock.grappler_forms import DistinctGathers, as_built
from fusion.passes.recognise.stock.id_source import Source, match_source
from fusion.passes.recognise.stock.one_id_per_row import LAST, match_single, single_anchors
from fusion.passes.recognise.stock.output import Mask, Tail, match_mask, match_tail
from fusion.passes.recognise.stock.prune import Prune, match_prune
from fusion.passes.recognise.stock.reduction import (
    FUSED_ANCHORS,
    Reduction,
    anchors,
    match_reduction,
)
from fusion.passes.recognise.stock.table import Shard, Table, match_table, table_spec

_PASSED_IN = frozenset({ARG_OP, "Placeholder"})
#: What explains all of a lookup at once, by the op of its last node.
_IN_ONE_PART = {WHOLE: match_whole, LAST: match_single}


@dataclass(frozen=True)
class Recognition:
    """How far a segment reduction was explained.

    Attributes:
        anchor: the segment reduction.
        parts: what was explained, in the order of explanation.
        spec: the whole lookup, if all of it was.
        failure: else the reason and the place.
        helper_waits: what each stage waits for by constants and the like, see `ordering`.
        name: for people: the table, where it was found.
        gradients: of the gathered rows, where the graph has them; or why one is none.
        is_fused: whether the lookup has few ops already: it is a fused one, or has some around a
            stock gather, or looks up one id per row. Only an op in one piece is better then.
    """

    anchor: str
    parts: tuple[Match, ...]
    spec: LookupSpec | None
    failure: NoMatch | None
    name: str
    helper_waits: Mapping[Stage, tuple[str, ...]] = field(default_factory=dict)
    gradients: tuple[Gradient | NoMatch, ...] = ()
    is_fused: bool = False

    def nodes(self, stage: Stage | None = None) -> tuple[str, ...]:
        """Returns the explained nodes whose values vanish, of one stage or of all."""
        return self._nodes[stage]

    @cached_property
    def _nodes(self) -> dict[Stage | None, tuple[str, ...]]:
        return {
            stage: tuple(n for p in self.parts if stage in (None, p.stage) for n in p.nodes)
            for stage in (None, *Stage)
        }

    def waits(self, view: GraphView) -> frozenset[str]:
        """Returns all that the lookup waits for, by its own control edges and by its helpers'."""
        if not view.has_controls:
            return frozenset()
        own = {*self.nodes(), *self.front()}
        direct = {before for name in own for before in view.controls(name)} - {*self.nodes()}
        return frozenset(direct).union(*self.helper_waits.values())

    @property
    def is_row_empty(self) -> Tensor | None:
        """Which rows were filled, a value that others may use; None if none are.

        Fused ops in one piece do not tell.
        """
        if self.is_fused:
            return None
        return next((part.is_row_empty for part in self.parts if isinstance(part, Fill)), None)

    @property
    def full_spec(self) -> LookupSpec:
        """The spec of a lookup that was explained to the end; others are not planned."""
        assert self.spec is not None, "only fully recognised lookups are planned"
        return self.spec

    @property
    def backward(self) -> tuple[Gradient, ...]:
        """The gradients that were understood."""
        return tuple(found for found in self.gradients if isinstance(found, Gradient))

    @property
    def unique(self) -> str:
        """The node that finds the distinct ids; "" if there is none."""
        return next((part.unique for part in self.parts if isinstance(part, Table)), "")

    @property
    def rows(self) -> Tensor:
        """The matrix whose rows are reduced: gathered ones of distinct ids, or the table."""
        return next(part.rows for part in self.parts if isinstance(part, Reduction))

    def front(self) -> tuple[str, ...]:
        """Returns the explained nodes that only compute the lookup's inputs."""
        return tuple(n for p in self.parts for n in p.front)


def recognise_all(view: GraphView, whole: bool = False) -> tuple[Recognition, ...]:
    """Returns one recognition per segment reduction, in file order.

    Args:
        view: the graph.
        whole: whether to add those of lookups that are one fused op.
    """
    shared = _Shared(DistinctGathers(view), GradientSums(view))
    names = (*anchors(view), *single_anchors(view), *(view.named(WHOLE) if whole else ()))
    return tuple(_recognised(view, anchor, shared) for anchor in names)


@dataclass(frozen=True)
class _Shared:
    """What many lookups of a graph have in common."""

    distinct: DistinctGathers
    sums: GradientSums


def _recognised(view: GraphView, anchor: str, shared: _Shared) -> Recognition:
    """Gives a verdict also on damaged graphs, of which there are endless kinds."""
    try:
        return _recognise(view, anchor, shared)
    except Exception as error:
        what = f"{type(error).__name__}: {error}".partition("\n")[0]
        failure = NoMatch(f"the graph around it makes no sense to fusion ({what})", anchor)
        return Recognition(anchor, (), None, failure, anchor)


def recognise(view: GraphView, anchor: str) -> Recognition:
    """Explains the lookup around the segment reduction `anchor`, as far as it goes."""
    return _recognise(view, anchor, _Shared(DistinctGathers(view), GradientSums(view)))


def _recognise(view: GraphView, anchor: str, shared: _Shared) -> Recognition:
    if view.op(anchor) in _IN_ONE_PART:
        return _recognise_whole(view, anchor)
    if view.op(anchor) in FUSED_ANCHORS:
        return _recognise_fused(view, anchor)
    parts: list[Match] = []

    def stop(failure: NoMatch) -> Recognition:
        table = next((part for part in parts if isinstance(part, Table)), None)
        return Recognition(anchor, tuple(parts), None, failure, table.name if table else anchor)

    reduction = match_reduction(view, anchor)
    if isinstance(reduction, NoMatch):
        return stop(reduction)
    reduction = as_built(shared.distinct, reduction)
    parts.append(reduction)
    table = match_table(view, reduction)
    if isinstance(table, NoMatch):
        return stop(table)
    parts += [table] if table.clip is None else [table, table.clip]
    entries = match_entries(view, reduction, table)
    if isinstance(entries, NoMatch):
        return stop(entries)
    parts.append(entries)
    fill = match_fill(view, entries)
    if isinstance(fill, NoMatch):
        return stop(fill)
    parts += [] if fill is None else [fill]
    prune = None if fill is None else match_prune(view, fill.entries)
    parts += [] if prune is None else [prune]
    source = match_source(view, entries if prune is None else prune.entries)
    if isinstance(source, NoMatch):
        return stop(source)
    parts.append(source)
    shape = _result_shape(reduction, source, table)
    mask = match_mask(view, reduction.output, fill, shape)
    if isinstance(mask, NoMatch):
        return stop(mask)
    strange = next((s for s in table.shards if not mask.present and not _is_matrix(view, s)), None)
    if strange is not None:
        return stop(NoMatch("the table is not known to be a matrix", strange.tensor.node))
    tail = match_tail(view, mask.output, shape)
    parts += [mask, tail]
    spec = _Specifier(view, reduction, table, fill, prune, source, mask, tail).spec()
    waits = helper_waits(view, parts, spec)
    positive = _has_positive_divisor(reduction, fill, prune)
    gradients = match_gradients(
        shared.sums, reduction, table.unique, mask, tail.output, shape, positive
    )
    return Recognition(anchor, tuple(parts), spec, None, table.name, waits, gradients)


def _recognise_whole(view: GraphView, anchor: str) -> Recognition:
    found = _IN_ONE_PART[view.op(anchor)](view, anchor)
    if isinstance(found, NoMatch):
        return Recognition(anchor, (), None, found, anchor, is_fused=True)
    waits = helper_waits(view, [found], found.spec)
    name = found.spec.table.name
    return Recognition(anchor, (found,), found.spec, None, name, waits, is_fused=True)


def _recognise_fused(view: GraphView, anchor: str) -> Recognition:
    found = match_fused(view, anchor)
    if isinstance(found, NoMatch):
        return Recognition(anchor, (), None, found, anchor, is_fused=True)
    reduction, table, fill, source = found.reduction, found.table, found.fill, found.source
    output = reduction.output
    mask = Mask(stage=Stage.OUTPUT, nodes=(), present=found.zeros, output=output)
    tail = match_tail(view, output, _result_shape(reduction, source, table))
    parts = (reduction, table, table.clip, fill, found.prune, source, mask, tail)
    spec = _Specifier(view, reduction, table, fill, found.prune, source, mask, tail).spec()
    known = tuple(part for part in parts if part is not None)
    waits = helper_waits(view, known, spec)
    return Recognition(anchor, known, spec, None, table.name, waits, is_fused=True)


def _has_positive_divisor(reduction: Reduction, fill: Fill | None, prune: Prune | None) -> bool:
    """Whether the weights of each bag that has any add up to more than 0; their squares may not."""
    is_filled = fill is None or fill.default_weight > 0
    is_pruned = prune is not None and prune.by_weight
    return reduction.combiner == "mean" and is_pruned and is_filled


def _is_matrix(view: GraphView, shard: Shard) -> bool:
    """Whether the table is a matrix, or a variable from outside of unknown shape: it counts as one.

    A mask proves that the rows are vectors, because it has to fit them; without one nothing does.
    """
    if shard.shape is not None:
        return True
    source = view.resolve(shard.tensor)
    is_variable = shard.is_resource
    if (handle := view.read_handle(source)) is not None:
        source, is_variable = handle, True
    return is_variable and view.op(view.origin(source).node) in _PASSED_IN


def _result_shape(reduction: Reduction, source: Source, table: Table) -> Vector:
    """Returns the symbolic [B, D] of the reduced rows: filled rows make it exactly B."""
    dims = [shard.shape[1] for shard in table.shards if shard.shape is not None]
    dim = next((dim for dim in dims if dim is not None), None)
    output = reduction.output
    batch = source.batch if source.batch is not None else Dim(output, 0)
    return (batch, Dim(output, 1) if dim is None else dim)


@dataclass(frozen=True)
class _Specifier:
    """Makes the spec of what the recognisers found."""

    view: GraphView
    reduction: Reduction
    table: Table
    fill: Fill | None
    prune: Prune | None
    source: Source
    mask: Mask
    tail: Tail

    def spec(self) -> LookupSpec:
        reduction, source = self.reduction, self.source
        default_id = None
        if self.fill is not None and not self.mask.present:
            default_id = self.fill.default
        return LookupSpec(
            anchor=reduction.anchor,
            ids=self._ids(),
            dtype=source.entries.dtype,
            buckets=self._buckets(),
            weights=self._weights(),
            table=table_spec(self.view, self.table, self.reduction.dtype),
            prune=self.prune is not None and self.prune.by_id,
            fill=self.fill is not None,
            default_id=default_id,
            combiner=reduction.combiner,
            divide_no_nan=reduction.divide_no_nan,
            output=self.tail.output,
        )

    def _buckets(self) -> BucketsSpec | None:
        buckets = self.source.buckets
        return None if buckets is None else BucketsSpec(buckets.count, buckets.default)

    def _ids(self) -> IdsSpec:
        source, entries = self.source, self.source.entries
        if (dense := source.dense) is not None:
            return DenseIds(dense.ids, dense.dtype, dense.ignored, dense.stride, dense.hashed)
        if entries.indices is not None:
            given = entries.ids, entries.indices, entries.count
            return SparseIds(*given, source.flattened, source.checked)
        if (splits := source.row_splits) is not None:
            return RaggedIds(entries.ids, splits.tensor, splits.dtype)
        assert entries.rows is not None, "entries have indices or rows"
        return RowIds(entries.ids, entries.rows, entries.rows_dtype, entries.count)

    def _weights(self) -> WeightsSpec | None:
        weights = self.source.entries.weights
        if weights is None:
            return None
        default = 1.0 if self.fill is None else self.fill.default_weight
        by_weight = self.prune is not None and self.prune.by_weight
        return WeightsSpec(self.view.resolve(weights), by_weight, default)
