"""Where the rows of lookups go: to concats and packs that put them side by side, on any axis.

An AddN is one, too: it adds parts of what the op for many lookups writes, in its own order.

Between a lookup and a join stand reshapes, and slices that leave nothing out. Where the sizes of an
input from the axis of the join on are those of one row, D in all, memory has the rows of all inputs
side by side: a matrix with a row for each of the sizes before the axis. The op for many lookups
computes it, and a reshape gives it the shape. A row may go to several joins.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from fusion.passes.analysis.crossed_sizes import as_measured
from fusion.passes.analysis.rearrangements import rearranged
from fusion.passes.analysis.symbolic_shapes import Dim, Element, ShapeMath, Vector, product
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node, Value
from fusion.passes.graph.view import GraphView
from fusion.passes.plan.forms import is_bare, is_joinable, is_shaped, is_small, placement
from fusion.passes.plan.plan import Group, Lowering, Place
from fusion.passes.plan.sizes import known_shape, measured_by, numbers, result_shape, source_of
from fusion.passes.recognise.lookup_match import LookupMatch
from fusion.passes.recognise.match import NoMatch
from fusion.passes.recognise.stock.rows import JOINS
from fusion.runtime.tensorflow.private import dtypes
from fusion.schema.names import SINGLE

MIN_LOOKUPS = 2
"""Lookups that are worth an op of their own."""

_MAX_JOINS = 8
"""Joins of a lookup that are looked at."""

MEASURES = frozenset({"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"})
"""Ops that read the sizes of tensors, not their values."""


@dataclass(frozen=True)
class Slot:
    """An input of a join.

    Attributes:
        join: the ConcatV2, Pack or AddN.
        op: which of them.
        index: the input's.
        lead: the symbolic sizes before its axis.
        size: the size of that axis; None if the join makes it, a Pack.
        rest: the sizes behind it.
    """

    join: str
    op: str
    index: int
    lead: Vector
    size: Element | None
    rest: Vector

    @property
    def is_matrix(self) -> bool:
        """Whether the join is a concat of matrices, side by side."""
        return self.op == "ConcatV2" and len(self.lead) == 1 and not self.rest


Slots = tuple[Slot, ...]


def slots_of(
    view: GraphView, lookup: LookupMatch, unread: frozenset[str] = frozenset()
) -> Slots | NoMatch:
    """Returns the inputs of joins that a lookup's result becomes, if it becomes nothing else.

    Args:
        view: the graph.
        lookup: the lookup.
        unread: nodes that do not count.
    """
    return joined(view, lookup, unread)[0]


def joined(
    view: GraphView, lookup: LookupMatch, unread: frozenset[str] = frozenset()
) -> tuple[Slots | NoMatch, dict[Tensor, Vector]]:
    """Returns `slots_of`, and the shapes of all tensors between the lookup and them."""
    shape, spec = result_shape(lookup), lookup.full_spec
    if shape is None:
        return NoMatch("the shape of its ids is not known", lookup.anchor), {}
    search = _Search(view, lookup.anchor, spec.output, spec.table.dtype, unread)
    slots = search.slots(shape, spec.table.shape[1] or shape[-1])
    return slots, search.known


def slot_of_join(view: GraphView, group: Group) -> Slot | None:
    """Returns the input of a concat of matrices that all of a group's join becomes, if it does."""
    place, spec = group.places[0], group.lookups[0].full_spec
    join, sizes = place.join, [lookup.full_spec.table.shape[1] or 0 for lookup in group.lookups]
    if len(group.places) > 1 or not place.whole or place.shape is None or place.measured:
        return None
    if view.controls(join) or view.control_uses(join):
        return None
    # A row of the matrix has to be one of the join: all that is behind its first axis.
    width = math.prod(place.shape[1:])
    if not all(sizes) or width != sum(sizes):
        return None
    shape: Vector = (Dim(Tensor(join), 0), *place.shape[1:])
    search = _Search(view, join, Tensor(join), spec.table.dtype, frozenset())
    slots = search.slots(shape, width)
    if isinstance(slots, NoMatch) or len(slots) > 1 or not slots[0].is_matrix:
        return None
    return slots[0]


def why_alone(
    view: GraphView, lookup: LookupMatch, unread: frozenset[str] = frozenset()
) -> NoMatch:
    """Returns why a gather is not part of an op for many lookups."""
    slots = slots_of(view, lookup, unread)
    if isinstance(slots, NoMatch):
        return slots
    if known_shape(view, lookup) is None:
        return NoMatch("more than one size of its result is not known", lookup.anchor)
    if lookup.full_spec.table.shards[0].is_vector:
        few = f"for fewer than {_MIN_VECTORS} vectors gathers are as fast"
        costs = "(8 take 15 us for 64 ids, and 15 as one op)"
        return NoMatch(f"nothing to gain: {few} {costs}", slots[0].join)
    why = "nothing to gain: no other lookup is beside it in what joins its rows, and alone"
    return NoMatch(f"{why} a gather of 32 KiB is as fast (9 us) as one op (9 us)", slots[0].join)


_MIN_BYTES = 1 << 15
"""Of a gather that an op is better for though it does nothing else: 30 us for 256 KiB, where stock
takes 100; of fewer it takes as long, and of one row 6.5 us instead of 5.4."""


_MIN_VECTORS = 16
"""Of vectors side by side that one op is better for: 26 take 141 us for 512 ids, and 81 as one op,
but 25 and 30 us for one id; 8 take 11 and 14 us for one, 15 and 15 for 64."""


def worth_joining(
    view: GraphView, lookups: Iterable[LookupMatch], unread: frozenset[str] = frozenset()
) -> list[LookupMatch]:
    """Returns the lookups without those of vectors that have too few others beside them."""
    lookups = list(lookups)
    joins: dict[str, str] = {}
    for lookup in lookups:
        if lookup.full_spec.table.shards[0].is_vector:
            slots = slots_of(view, lookup, unread)
            joins[lookup.anchor] = "" if isinstance(slots, NoMatch) else slots[0].join
    counts = Counter(joins.values())
    few = {anchor for anchor, join in joins.items() if counts[join] < _MIN_VECTORS}
    return [lookup for lookup in lookups if lookup.anchor not in few]


def is_better_alone(view: GraphView, lookup: LookupMatch) -> bool:
    """Whether an op for a lookup is better than what it has, though nothing is beside it."""
    if view.op(lookup.anchor) == SINGLE:
        return False
    if not is_shaped(lookup):
        return True
    known = known_shape(view, lookup)
    if known is None or not is_bare(lookup):
        return known is not None
    table = lookup.full_spec.table
    # Sizes may not be known, and be 1.
    count = abs(math.prod(known[0])) * dtypes.as_dtype(table.dtype).size
    return count > _MIN_BYTES and not is_small(table.dtype, table.shape)


@dataclass(frozen=True)
class _Search:
    """Follows a tensor to where it is joined.

    Attributes:
        view: the graph.
        anchor: the node that is refused where it is not.
        output: the tensor.
        dtype: its DataType.
        unread: nodes that do not count.
        known: the shapes of the tensors that were followed.
    """

    view: GraphView
    anchor: str
    output: Tensor
    dtype: int
    unread: frozenset[str]
    known: dict[Tensor, Vector] = field(default_factory=dict)

    def slots(self, shape: Vector, width: Element) -> Slots | NoMatch:
        """See `slots_of`; `width` elements of the tensor are a row."""
        view, output = self.view, self.output
        self.known[output] = shape
        shapes = ShapeMath(self.known)
        join_slots: list[Slot] = []
        helpers: set[str] = set()
        others: list[str] = []
        stack = [output]
        while stack:
            tensor = stack.pop()
            if tensor.node in view.preserved:
                return NoMatch("its result is named outside the graph", tensor.node)
            for user, position, used in view.uses(tensor.node):
                if user in self.unread:
                    continue
                if position < 0 or used != tensor:
                    return NoMatch("its result is returned by the function", tensor.node)
                op = view.op(user)
                if op in JOINS:
                    slot = self._slot(user, position, shapes.known[tensor], width)
                    if isinstance(slot, NoMatch):
                        return slot
                    join_slots.append(slot)
                    continue
                moved = rearranged(shapes, Node(view, user), position, shapes.known[tensor])
                hows = [one for one in view.inputs(user) if one != used]
                if moved is None or self._is_ordered(shapes, user, hows):
                    others.append(user)
                    continue
                shapes.known[Tensor(user)] = moved
                roots = {Value(view, one) for one in shapes.known}
                for how in hows:
                    helpers.update(shapes.derived(Value(view, how), roots))
                stack.append(Tensor(user))
        outside = self._outside(shapes, helpers, others)
        if outside is not None:
            why = f"its rows are used by {outside} ({view.op(outside)}), not joined with others"
            return NoMatch(f"{why}; a single gather is the fastest already", self.anchor)
        if not join_slots or len(join_slots) > _MAX_JOINS:
            return NoMatch("its rows go to no concat, or to many", self.anchor)
        return tuple(sorted(join_slots, key=lambda slot: (slot.join, slot.index)))

    def _is_ordered(self, shapes: ShapeMath, user: str, hows: Iterable[Tensor]) -> bool:
        """Whether others wait for what hands on a tensor, or it for more than its inputs.

        It may do so by what says how, on which TensorFlow puts control edges.
        """
        view, inside = self.view, {tensor.node for tensor in shapes.known}
        if view.controls(user) or view.control_uses(user):
            return True
        names = {name for how in hows for name in (how.node, view.resolve(how).node)}
        waits = {before for name in names for before in view.controls(name)} - inside
        return any(map(view.has_effect, waits))

    def _outside(self, shapes: ShapeMath, helpers: set[str], others: list[str]) -> str | None:
        """Returns a node that reads what goes with the tensors that were followed.

        Args:
            shapes: of these tensors.
            helpers: what computes shapes to which they are reshaped.
            others: what reads them, and does not hand them on.
        """
        inside = {*helpers, *(tensor.node for tensor in shapes.known), *self.unread}
        measures = [name for name in helpers if self.view.op(name) in MEASURES]
        # Whatever is computed of measures that do not count does not count, either.
        readers = [] if self.unread.issuperset(measures) else helpers
        reading = (use.node for name in readers for use in self.view.uses(name))
        return next((name for name in (*others, *reading) if name not in inside), None)

    def _slot(self, join: str, position: int, shape: Vector, width: Element) -> Slot | NoMatch:
        view, device, shape = self.view, self.view.nodes[self.anchor].device, as_measured(shape)
        if placement(view, view.nodes[join].device) != placement(view, device):
            return NoMatch("its rows are joined on another device", join)
        if view.type_attr(join, "T") != self.dtype:
            return NoMatch("its rows are joined as another dtype", join)
        op = view.op(join)
        if op == "AddN":
            return self._summand(join, position, shape, width)
        is_pack = op == "Pack"
        at = _axis(view, join, len(shape) + is_pack)
        if at is None:
            return NoMatch("the axis along which its rows are joined is not known", join)
        if product(shape[at:]) != width:
            return NoMatch("its rows are not joined side by side, but one after the other", join)
        if is_pack:
            return Slot(join, op, position, shape[:at], None, shape[at:])
        return Slot(join, op, position, shape[:at], shape[at], shape[at + 1 :])

    def _summand(self, join: str, position: int, shape: Vector, width: Element) -> Slot | NoMatch:
        """Returns the place among matrices that are added, which stay apart in what is joined."""
        if len(shape) == 1:
            why = "gathers of numbers that are added are as fast (96 us for 26 of 512, and 105"
            return NoMatch(f"nothing to gain: {why} as one op)", join)
        if len(shape) != 2 or shape[1] != width or not isinstance(width, int):
            return NoMatch("its rows are not added as a matrix of known width", join)
        return Slot(join, "AddN", position, shape[:1], width, ())


def _axis(view: GraphView, join: str, rank: int) -> int | None:
    """Returns the axis of a join, from the front."""
    if view.op(join) == "Pack":
        at = view.int_attr(join, "axis")
    else:
        at = Value(view, view.inputs(join)[-1]).item
        if at is None:
            return None
    at += rank if at < 0 else 0
    return at if 0 <= at < rank else None


def groups_in_joins(
    view: GraphView,
    lookups: Iterable[LookupMatch],
    taken: set[str],
    unread: frozenset[str] = frozenset(),
) -> tuple[Group, ...]:
    """Returns groups of lookups beside each other in all joins that read them.

    Those that one concat of matrices reads, and nothing else, are left to `groups_in_concats`.

    Args:
        view: the graph.
        lookups: those that one op can do.
        taken: joins that others have changed.
        unread: nodes that do not count.
    """
    members: dict[Slots, LookupMatch] = {}
    for lookup in filter(is_joinable, lookups):
        slots = slots_of(view, lookup, unread)
        if isinstance(slots, NoMatch) or (len(slots) == 1 and slots[0].is_matrix):
            continue
        if taken.isdisjoint(slot.join for slot in slots):
            members[slots] = lookup
    places = {tuple((slot.join, slot.index) for slot in slots): slots for slots in members}
    firsts = [key for key in places if tuple((join, at - 1) for join, at in key) not in places]
    groups = (
        group
        for first in firsts
        for run in _runs(view, _chain(places, first))
        if (group := _group(view, run, members)) is not None
    )
    return tuple(groups)


def _chain(
    places: dict[tuple[tuple[str, int], ...], Slots], first: Sequence[tuple[str, int]]
) -> Iterator[Slots]:
    """Yields slots from the first on that are next to each other in all their joins."""
    key = tuple(first)
    while key in places:
        yield places[key]
        key = tuple((join, at + 1) for join, at in key)


def _runs(view: GraphView, chain: Iterable[Slots]) -> Iterator[list[Slots]]:
    """Yields parts of a chain whose rows fit each other."""
    run: list[Slots] = []
    for slots in chain:
        if run and not all(_fits(view, *pair) for pair in zip(run[0], slots, strict=True)):
            yield run
            run = []
        run.append(slots)
    if run:
        yield run


def _fits(view: GraphView, first: Slot, other: Slot) -> bool:
    """Whether two inputs of a join surely have the same sizes but for its axis.

    Or the op requires the same number of rows, which they have only if all sizes are the same; or
    the sizes can be measured in a run.
    """
    if first.rest != other.rest or len(first.lead) != len(other.lead):
        return False
    known = [
        (one, two)
        for one, two in zip(first.lead, other.lead, strict=True)
        if isinstance(one, int) and isinstance(two, int)
    ]
    if any(one != two or not one for one, two in known):
        return False
    if not _are_unsure([first, other]):
        return True
    leads = first.lead, other.lead
    return all(-1 not in numbers(lead) or source_of(view, lead) is not None for lead in leads)


def _are_unsure(slots: Sequence[Slot]) -> bool:
    """Whether some input of a join may differ from the first in more sizes than one."""
    first, *others = (slot.lead for slot in slots)
    pairs = (zip(first, other, strict=True) for other in others)
    return any(sum(one != two for one, two in pair) > 1 for pair in pairs)


def _group(
    view: GraphView, run: Sequence[Slots], members: dict[Slots, LookupMatch]
) -> Group | None:
    """Returns the group of lookups side by side, if something can be put in their place."""
    if len(run) < MIN_LOOKUPS:
        return None
    places = []
    lookups = tuple(members[slots] for slots in run)
    for slots in zip(*run, strict=True):
        join, op = slots[0].join, slots[0].op
        count = len(view.inputs(join)) - (op == "ConcatV2")
        is_whole = len(run) == count and op != "AddN"
        if op == "Pack" and not is_whole:
            return None
        if op == "AddN" and len({slot.size for slot in slots}) > 1:
            return None
        place = Place(join, slots[0].index, is_whole, None)
        if not slots[0].is_matrix and op != "AddN":
            shape, measured = _joined_shape(slots), None
            if shape is not None and (shape.count(-1) > 1 or _are_unsure(slots)):
                measured = measured_by(view, [slot.lead for slot in slots], lookups)
                shape = shape if measured is not None else None
            if shape is None:
                return None
            place = replace(place, shape=shape, measured=measured)
        places.append(place)
    return Group(Lowering.GROUPED, lookups, places[0].join, places=tuple(places))


def _joined_shape(slots: Sequence[Slot]) -> tuple[int, ...] | None:
    """Returns the shape of inputs of a join side by side, -1 for a size that is not known."""
    sizes = [slot.size for slot in slots]
    middle = (
        len(slots) if sizes[0] is None else sum(size for size in sizes if isinstance(size, int))
    )
    shape = (*_known_lead(slots), middle, *slots[0].rest)
    if any(not isinstance(size, int) for size in (*slots[0].rest, *filter(None, sizes))):
        return None
    return None if 0 in shape else numbers(shape)


def _known_lead(slots: Sequence[Slot]) -> Vector:
    """Returns the sizes before the axis, each from any input where it is known."""
    return tuple(
        next((size for size in sizes if isinstance(size, int)), sizes[0])
        for sizes in zip(*(slot.lead for slot in slots), strict=True)
    )
