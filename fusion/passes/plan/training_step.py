"""What a training step asks of lookups whose gradients it computes from their ids alone.

The gradient of a gather reads no row, only the sizes of the gathered rows. These follow from the
ids, so that nothing needs the rows themselves. And the step changes tables: an op that reads them
later than stock did has to be done before anything may change them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fusion.passes.analysis.handles import VARIABLE_OPS, shared_name
from fusion.passes.analysis.order import Order
from fusion.passes.analysis.symbolic_shapes import Dim, Element, ShapeMath, Vector
from fusion.passes.analysis.variables import writers, writes_rows
from fusion.passes.graph.idioms import is_row_gather
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node, Value
from fusion.passes.graph.view import GraphView
from fusion.passes.plan.forms import is_shaped
from fusion.passes.plan.joins import MEASURES, joined
from fusion.passes.recognise.lookup_match import LookupMatch
from fusion.passes.recognise.match import NoMatch
from fusion.passes.recognise.spec import DenseIds
from fusion.passes.recognise.stock.ragged_sums import RaggedSum


@dataclass(frozen=True)
class TrainingStep:
    """What is found of the lookups of a graph that is about to run.

    Attributes:
        measures: nodes that read sizes of results, all of them inferable from other tensors.
        unread: these, and nodes that no signature runs and that read what signatures compute: they
            go on reading stock ops.
        inferable: results, and concats of them, whose shapes can be inferred from other tensors.
        refused: why lookups cannot be read later than stock does, by anchor.
        is_any: whether a table is changed in the graph.
    """

    measures: frozenset[str] = frozenset()
    unread: frozenset[str] = frozenset()
    inferable: frozenset[Tensor] = frozenset()
    refused: dict[str, NoMatch] = field(default_factory=dict)
    is_any: bool = False

    @staticmethod
    def of(view: GraphView, matches: Sequence[LookupMatch], *, runs: bool) -> TrainingStep:
        """Returns what is found of lookups without gradients of their own.

        Args:
            view: the graph.
            matches: the lookups.
            runs: whether the graph is about to run, see `FuseLookups`.
        """
        lookups = [one for one in matches if one.spec is not None and not one.gradients]
        measures, inferable = _measures(view, lookups)
        if not runs:
            return TrainingStep(measures, measures, inferable)
        changed = {lookup.anchor: tuple(_writers(view, lookup)) for lookup in lookups}
        if view.fetched is not None:
            changed = _run_together(view, lookups, changed)
        changed = {anchor: nodes for anchor, nodes in changed.items() if nodes}
        unread = measures | _unserved_readers(view)
        refused = _unordered(view, lookups, measures, unread, changed)
        return TrainingStep(measures, unread, inferable, refused, bool(changed))


NO_STEP = TrainingStep()


def shapes_between(
    view: GraphView, lookup: LookupMatch, unread: frozenset[str]
) -> dict[Tensor, Vector]:
    """Returns the shapes of what goes with a lookup: its rows, its result, and what moves that.

    Args:
        view: the graph.
        lookup: the lookup.
        unread: nodes that do not count among those that read the result.
    """
    known, spec = joined(view, lookup, unread)[1], lookup.full_spec
    size = _rows_of(lookup)
    if size is not None:
        rows: dict[Element, Dim] = {Dim(spec.output, 0): size}
        known = {
            tensor: tuple(rows.get(one, one) for one in shape) for tensor, shape in known.items()
        }
    if lookup.parts.whole is not None:
        known = {**rows_inside(view, lookup), **known}
    return known


def _rows_of(lookup: LookupMatch) -> Dim | None:
    """Returns the size of another tensor that is the number of rows of a result, a matrix."""
    ids, whole = lookup.full_spec.ids, lookup.parts.whole
    if isinstance(whole, RaggedSum):
        return None if whole.splits.lengths is None else Dim(whole.splits.lengths, 0)
    return Dim(ids.values, 0) if isinstance(ids, DenseIds) and not is_shaped(lookup) else None


def shapes_of_concats(view: GraphView, known: Mapping[Tensor, Vector]) -> dict[Tensor, Vector]:
    """Returns the shapes of concats of matrices side by side that rows of lookups go to.

    Args:
        view: the graph.
        known: the shapes of what goes with lookups.
    """
    shapes, concats = dict(known), dict[Tensor, Vector]()
    stack = [*known]
    while stack:
        for use in view.tensor_uses(stack.pop()):
            whole = Tensor(use.node)
            if view.op(use.node) != "ConcatV2" or whole in shapes:
                continue
            *inputs, axis = view.inputs(use.node)
            parts = [shapes.get(tensor) or view.shape(tensor) or () for tensor in inputs]
            widths = [part[1] for part in parts if len(part) == 2 and isinstance(part[1], int)]
            is_by_columns = Value(view, axis).item in (1, -1)
            if is_by_columns and len(widths) == len(inputs):
                rows = next(shapes[tensor][0] for tensor in inputs if tensor in shapes)
                shapes[whole] = concats[whole] = (rows, sum(widths))
                stack.append(whole)
    return concats


def rows_inside(view: GraphView, lookup: LookupMatch) -> dict[Tensor, Vector]:
    """Returns the shapes of the rows that are gathered inside of a lookup, and of their sum."""
    shapes: dict[Tensor, Vector] = {}
    whole, width, count = lookup.parts.whole, lookup.full_spec.table.shape[1], _rows_of(lookup)
    if isinstance(whole, RaggedSum) and count is not None and width is not None:
        shapes[Tensor(whole.total)] = (count, width)
    for name in lookup.nodes():
        op = view.op(name)
        if op != "ResourceGather" and not is_row_gather(Node(view, name)):
            continue
        table, ids = view.inputs(name)[:2]
        of_table = view.variable_shape(table) if op == "ResourceGather" else view.shape(table)
        of_ids = ShapeMath().shape_of(Value(view, ids))
        if of_ids is None and isinstance(whole, RaggedSum):
            of_ids = (Dim(view.resolve(ids), 0),)
        if of_table is not None and of_ids is not None and None not in of_table[1:]:
            shapes[Tensor(name)] = (*of_ids, *(size for size in of_table[1:] if size is not None))
    return shapes


def dtype_of(view: GraphView, tensor: Tensor) -> int:
    """Returns the DataType of a tensor; 0 if it is not known."""
    types = view.signatures.output_types(view.nodes[tensor.node])
    return types[tensor.index] if tensor.index < len(types) else 0


def _is_inferable(view: GraphView, vector: Vector, between: Collection[Tensor]) -> bool:
    """Whether sizes are numbers, or sizes of other tensors than those `between`."""

    def is_known(size: Element) -> bool:
        if not isinstance(size, Dim):
            return isinstance(size, int)
        return size.tensor not in between and dtype_of(view, size.tensor) != 0

    return all(map(is_known, vector))


def _measures(
    view: GraphView, lookups: Sequence[LookupMatch]
) -> tuple[frozenset[str], frozenset[Tensor]]:
    """Returns `measures` and `inferable` of `TrainingStep`."""
    nodes = {name for name in view.named(*MEASURES) if _is_free(view, name)}
    if not nodes:
        return frozenset(), frozenset()
    shapes: dict[Tensor, Vector] = {}
    inferable: set[Tensor] = set()
    for lookup in lookups:
        known = shapes_between(view, lookup, frozenset(nodes))
        shapes |= known
        inferable |= {one for one, shape in known.items() if _is_inferable(view, shape, known)}
    left = shapes.keys() - inferable
    inside = {tensor: shapes[tensor] for tensor in inferable}
    concats = shapes_of_concats(view, inside)
    between = shapes | concats
    inferable |= {one for one, shape in concats.items() if _is_inferable(view, shape, between)}
    measures = frozenset(
        name
        for name in nodes
        if not left.intersection(inputs := view.inputs(name)) and not inferable.isdisjoint(inputs)
    )
    return measures, frozenset(inferable)


def _unserved_readers(view: GraphView) -> frozenset[str]:
    """Returns the nodes that no signature runs and that read what signatures compute."""
    if view.fetched is None:
        return frozenset()
    return frozenset(
        name
        for name in view.nodes
        if not view.is_served(name) and any(view.is_served(t.node) for t in view.inputs(name))
    )


def _is_free(view: GraphView, name: str) -> bool:
    is_named = name in view.preserved or name in view.awaited
    return not (is_named or view.controls(name) or view.control_uses(name))


def _writers(view: GraphView, lookup: LookupMatch) -> Iterator[str]:
    """Yields the nodes that may change the table of a lookup."""
    for shard in lookup.full_spec.table.shards:
        handle = view.read_handle(shard.tensor)
        source = view.origin(shard.tensor if handle is None else handle)
        sources = [source]
        if view.op(source.node) in VARIABLE_OPS:
            own = shared_name(view, source.node)
            others = (name for name in view.named(view.op(source.node)) if name != source.node)
            sources += (Tensor(name) for name in others if shared_name(view, name) == own)
        is_value = handle is None and shard.kind != "resource"
        for one in sources:
            # Of a value only what takes a reference may change it.
            yield from (
                name
                for name in writers(view, one)
                if not is_value or view.signatures.is_stateful(view.op(name))
            )


def _run_together(
    view: GraphView, lookups: Sequence[LookupMatch], changed: dict[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Returns the nodes that change a table after stock has read rows of it, in the same run.

    A graph from which signatures are run has others, too: what initializes and restores variables.
    """
    starts = {one.anchor: frozenset(one.nodes()) for one in lookups if changed[one.anchor]}
    order = Order(view, starts.values())
    return {
        anchor: tuple(name for name in changed[anchor] if order.may_be_before(start, name))
        for anchor, start in starts.items()
    }


def _unordered(
    view: GraphView,
    lookups: Sequence[LookupMatch],
    measures: frozenset[str],
    unread: frozenset[str],
    changed: dict[str, tuple[str, ...]],
) -> dict[str, NoMatch]:
    """Returns why lookups cannot be read as late as just before what reads their results."""
    checked: list[LookupMatch] = []
    ends: list[str] = []
    for lookup in lookups:
        if lookup.anchor not in changed:
            continue
        slots, known = joined(view, lookup, unread)[0], shapes_between(view, lookup, unread)
        is_measured = any(
            use.node in measures for tensor in known for use in view.tensor_uses(tensor)
        )
        is_read = view.read_handle(lookup.full_spec.table.shards[0].tensor) is not None
        if is_read and not is_measured and not _are_rows_written(view, changed[lookup.anchor]):
            continue  # the stock read stays, and all that waits for it
        checked.append(lookup)
        end = lookup.full_spec.output.node if isinstance(slots, NoMatch) else slots[0].join
        ends.append(end)
    # A control edge from a gather does not count: in the end it may lead from its table's read.
    # Of a loop it is not enough to know the order in its first iteration.
    order = Order(view, ends, without={*measures, *(lookup.anchor for lookup in checked)})
    refused: dict[str, NoMatch] = {}
    for lookup, end in zip(checked, ends, strict=True):
        early = (
            one for one in changed[lookup.anchor] if view.has_loops or not order.is_before(end, one)
        )
        if (writer := next(early, None)) is not None:
            why = f"its table is changed by {writer} ({view.op(writer)}), which may not wait for it"
            refused[lookup.anchor] = NoMatch(why, lookup.anchor)
    return refused


def _are_rows_written(view: GraphView, nodes: Sequence[str]) -> bool:
    return any(writes_rows(view, name) for name in nodes)
