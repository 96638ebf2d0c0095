"""Groups of lookups that a concat puts side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from fusion.passes.graph.tensor import ALIAS_OPS, Tensor
from fusion.passes.graph.values import Value
from fusion.passes.graph.view import GraphView
from fusion.passes.plan.forms import is_joinable, is_shaped, placement
from fusion.passes.plan.joins import MIN_LOOKUPS, slot_of_join, slots_of
from fusion.passes.plan.plan import Group, Lowering
from fusion.passes.recognise.lookup_match import LookupMatch
from fusion.passes.recognise.match import NoMatch


def results_of(lookups: Iterable[LookupMatch]) -> set[Tensor]:
    """Returns the results of lookups, as far as they are matrices for certain."""
    return {
        lookup.spec.output
        for lookup in lookups
        if lookup.spec is not None and not is_shaped(lookup)
    }


def groups_in_concats(
    view: GraphView,
    lookups: Iterable[LookupMatch],
    single: Iterable[LookupMatch],
    joined: Sequence[Group],
    nested: bool,
    taken: set[str],
    unread: frozenset[str] = frozenset(),
    inferable: frozenset[Tensor] = frozenset(),
) -> tuple[Group, ...]:
    """Returns groups of lookups that only a concat side by side reads, and those of other joins.

    Args:
        view: the graph.
        lookups: all of them.
        single: those that one op can do, and that are in no group yet.
        joined: the groups of other joins.
        nested: whether a join that becomes an op may become a part of the concat that reads it.
        taken: concats that others have changed.
        unread: nodes that do not count.
        inferable: concats whose sizes need not be measured: what measures them is `unread`.
    """
    shared = {place.join for group in joined for place in group.places}
    members: dict[str, dict[int, LookupMatch | Group]] = {}
    for group in joined if nested else ():
        slot = slot_of_join(view, group)
        if slot is not None and slot.join not in taken | shared:
            inside = replace(group, places=(), whole=True)
            members.setdefault(slot.join, {})[slot.index] = inside
    for lookup in single:
        place = slot_in_concat(view, lookup, unread)
        if place is not None and place[0] not in taken:
            members.setdefault(place[0], {})[place[1]] = lookup
    matrices = results_of(lookups)
    groups: dict[str, tuple[Group, ...]] = {}
    # In order and without repeats: a concat of many others is looked at once they all have been.
    changed = dict.fromkeys(members)
    while changed:
        concat = next(iter(changed))
        del changed[concat]
        whole = concat not in shared
        groups[concat] = tuple(groups_of(view, concat, members[concat], matrices, whole=whole))
        if not nested or view.controls(concat) or view.control_uses(concat):
            continue
        dtype, device = view.type_attr(concat, "T"), view.nodes[concat].device
        result = Tensor(concat)
        ignored = unread if result in inferable else frozenset()
        outer = only_concat(view, result, dtype, device, ignored)
        for group in groups[concat]:
            if group.whole and outer is not None and outer[0] not in taken:
                members.setdefault(outer[0], {})[outer[1]] = group
                changed.pop(outer[0], None)
                changed[outer[0]] = None
    inner = {name for of_concat in groups.values() for group in of_concat for name in group.inner}
    outer_groups = (
        group for concat, of_concat in groups.items() if concat not in inner for group in of_concat
    )
    return (*(group for group in joined if group.concat not in inner), *outer_groups)


def slot_in_concat(
    view: GraphView, lookup: LookupMatch, unread: frozenset[str] = frozenset()
) -> tuple[str, int] | None:
    """Returns the concat of matrices that alone reads a lookup's result, see `only_concat`."""
    if not is_joinable(lookup):
        return None
    if is_shaped(lookup):
        slots = slots_of(view, lookup, unread)
        is_only = not isinstance(slots, NoMatch) and len(slots) == 1 and slots[0].is_matrix
        return (slots[0].join, slots[0].index) if is_only else None  # type: ignore[index]
    spec = lookup.full_spec
    device = view.nodes[spec.anchor].device
    return only_concat(view, spec.output, spec.table.dtype, device, unread)


def only_concat(
    view: GraphView,
    tensor: Tensor,
    dtype: int,
    device: str,
    unread: frozenset[str] = frozenset(),
) -> tuple[str, int] | None:
    """Returns the concat along axis 1 that alone reads a result, and the index among its inputs.

    It has to be on the same device, and of the same dtype. Nodes that are `unread` do not count.
    """
    while tensor.node not in view.preserved:
        uses = [use for use in view.uses(tensor.node) if use.node not in unread]
        if len(uses) != 1 or uses[0].tensor != tensor or uses[0].position < 0:
            return None
        user, index, _ = uses[0]
        if placement(view, view.nodes[user].device) != placement(view, device):
            return None
        if view.op(user) == "ConcatV2":
            axis = Value(view, view.inputs(user)[-1]).item
            fits = view.type_attr(user, "T") == dtype
            return (user, index) if fits and axis in (1, -1) else None
        if view.op(user) not in ALIAS_OPS or view.controls(user) or view.control_uses(user):
            return None
        tensor = Tensor(user)
    return None


def groups_of(
    view: GraphView,
    concat: str,
    members: Mapping[int, LookupMatch | Group],
    matrices: set[Tensor],
    form: Lowering = Lowering.GROUPED,
    *,
    whole: bool = True,
) -> Iterator[Group]:
    """Yields one group for all of the concat if all other inputs are matrices, else its runs.

    Args:
        view: the graph.
        concat: the concat.
        members: those of its inputs that are lookups, or groups that are all of another concat.
        matrices: results that are known to be matrices.
        form: of the groups.
        whole: whether a group may be all of the concat.
    """
    inputs = view.inputs(concat)[:-1]
    columns: list[LookupMatch | Tensor] = []
    inner: set[str] = set()
    for index, tensor in enumerate(inputs):
        member = members.get(index)
        if isinstance(member, Group):
            columns += member.columns
            inner |= {member.concat, *member.inner}
        elif member is not None:
            columns.append(member)
        elif _is_matrix(view, tensor, matrices):
            columns.append(tensor)
        else:
            whole = False
            break
    if whole:
        if sum(isinstance(column, LookupMatch) for column in columns) >= MIN_LOOKUPS:
            yield Group(form, tuple(columns), concat, whole=True, inner=frozenset(inner))
        return
    run: list[LookupMatch] = []
    for index in range(len(inputs) + 1):
        member = members.get(index)
        if isinstance(member, LookupMatch):
            run.append(member)
        else:
            if len(run) >= MIN_LOOKUPS:
                yield Group(form, tuple(run), concat, index - len(run))
            run = []


def _is_matrix(view: GraphView, tensor: Tensor, matrices: set[Tensor]) -> bool:
    shape = view.shape(tensor)
    return view.resolve(tensor) in matrices or (shape is not None and len(shape) == 2)
