"""Decides which ops each lookup becomes, and which lookups one op computes together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from fusion.passes.edit import GraphEdit
from fusion.passes.emit import emit
from fusion.passes.emit_stacked import can_stack
from fusion.passes.emit_table import can_share, is_small
from fusion.passes.graph_view import GraphView
from fusion.passes.op_arguments import clips_in_op
from fusion.passes.plan import Form, Group, Plan, Target, plan_each
from fusion.passes.plan_trained import plan_alone, plan_trained
from fusion.passes.recognise import Recognition
from fusion.passes.safety import loses_digits
from fusion.passes.sparse_writers import SparseWriters
from fusion.passes.spec import LookupSpec
from fusion.passes.tensor import ALIAS_OPS, Tensor

_FEWEST = 2
"""Lookups that are worth an op of their own."""


def settle(
    view: GraphView,
    lookups: Sequence[Recognition],
    writers: SparseWriters,
    forward: Sequence[Recognition] = (),
    target: Target = Target.FUSED,
) -> tuple[Plan, GraphEdit] | None:
    """Returns the first of the plans in which nothing would wait for itself, and its edit.

    The fewer ops, the more each of them waits for. None if not even one set of ops per lookup does.

    Args:
        forward: lookups whose gradients stay as they are.
        target: what to rewrite to.
    """
    if target is Target.STOCK:
        is_free = not _are_awaited(view, lookups)
        choices = list(_stock_plans(view, lookups, writers))
        if view.has_loops:
            # Their back edges are circles too; what is emitted alone waits for what it did.
            is_free, choices = True, choices[-1:]
        for plan in choices:
            edit = emit(view, plan)
            if is_free or not edit.is_circular():
                return plan, edit
        return None
    behind = plan_each(forward, Form.FORWARD).groups
    plans = (Plan((*plan.groups, *behind)) for plan in _plans(view, lookups, writers))
    if not _are_ordered(view, lookups) and not _are_awaited(view, forward):
        plan = next(plans)
        return plan, emit(view, plan)
    if view.has_loops:
        # Their back edges are circles too.
        plan = Plan((*_plan_split(lookups).groups, *behind))
        return (plan, emit(view, plan)) if plan.groups else None
    for plan in plans:
        if not plan.groups:
            continue
        edit = emit(view, plan)
        if not edit.is_circular():
            return plan, edit
    return None


def _stock_plans(
    view: GraphView, lookups: Sequence[Recognition], writers: SparseWriters
) -> Iterator[Plan]:
    """Yields plans with stock ops, the best one first."""
    alone = {
        one.anchor: Group(Form.STOCK, (one,), reads_whole=reads_table_well(view, one, writers))
        for one in lookups
    }
    stacked = _held_once(view, lookups, tuple(_stacks(view, lookups)))
    if stacked:
        taken = {one.anchor for group in stacked for one in group.lookups}
        rest = (group for anchor, group in alone.items() if anchor not in taken)
        yield Plan((*rest, *stacked))
    yield Plan(tuple(alone.values()))


def _stacks(view: GraphView, lookups: Sequence[Recognition]) -> Iterator[Group]:
    """Yields groups of lookups that stand side by side in a concat, of the same dim."""
    vanishing = {node for one in lookups for node in one.nodes()}
    members: dict[str, dict[int, Recognition]] = {}
    for one in lookups:
        if can_stack(view, one.full_spec) and _only_read_by(view, one, vanishing):
            found = _place_in_concat(view, one)
            if found is not None:
                members.setdefault(found[0], {})[found[1]] = one
    for concat, columns in members.items():
        count = len(view.inputs(concat)) - 1
        run: list[Recognition] = []
        for place in range(count + 1):
            one_more = columns.get(place)
            if run and (one_more is None or _dim(one_more) != _dim(run[0])):
                if len(run) >= _FEWEST:
                    start, is_whole = place - len(run), len(run) == count
                    yield Group(Form.STACKED, tuple(run), concat, start, is_whole)
                run = []
            if one_more is not None:
                run.append(one_more)


def _held_once(
    view: GraphView, lookups: Sequence[Recognition], groups: tuple[Group, ...]
) -> tuple[Group, ...]:
    """Returns those of the groups after which the graph holds no large table twice.

    Groups of the same tables share their stack; any other reader needs a table once more.
    """

    def stack(group: Group) -> tuple[Tensor, ...]:
        return tuple(dict.fromkeys(_table(view, one) for one in group.lookups))

    while True:
        inside = {one.anchor for group in groups for one in group.lookups}
        readers: dict[Tensor, set[tuple[Tensor, ...]]] = {}
        for group in groups:
            for table in stack(group):
                readers.setdefault(table, set()).add(stack(group))
        for one in lookups:
            if one.anchor not in inside:
                readers.setdefault(_table(view, one), set()).add(())
        kept = tuple(
            group
            for group in groups
            if all(len(readers[_table(view, one)]) == 1 or _is_small(one) for one in group.lookups)
        )
        if len(kept) == len(groups):
            return groups
        groups = kept


def _is_small(one: Recognition) -> bool:
    table = one.full_spec.table
    return is_small(table.dtype, table.shape)


def _table(view: GraphView, one: Recognition) -> Tensor:
    return view.resolve(one.full_spec.table.shards[0].tensor)


def _dim(one: Recognition) -> int | None:
    return one.full_spec.table.shape[1]


def _only_read_by(view: GraphView, one: Recognition, vanishing: set[str]) -> bool:
    """Whether nobody but lookups reads the table, so that the graph need not hold it twice."""
    tensor = one.full_spec.table.shards[0].tensor
    names = (view.resolve(tensor).node, *view.aliases(tensor))
    if any(name in view.preserved for name in names):
        return False
    return all(use.node in {*vanishing, *names} for name in names for use in view.uses(name))


def _are_ordered(view: GraphView, lookups: Iterable[Recognition]) -> bool:
    """Whether control edges lead into lookups or out of them, or may."""
    if any(one.gradients for one in lookups):
        # Groups may share an op that each of them would wait for.
        return True
    return _are_awaited(view, lookups)


def _are_awaited(view: GraphView, lookups: Iterable[Recognition]) -> bool:
    """Whether control edges lead into lookups or out of them."""
    if not view.has_controls:
        return False
    return any(one.waits(view) or any(map(view.control_uses, one.nodes())) for one in lookups)


def _plans(
    view: GraphView, lookups: Sequence[Recognition], writers: SparseWriters
) -> Iterator[Plan]:
    """Yields plans, the best one first."""
    trained = [one for one in lookups if one.gradients]
    rest = [one for one in lookups if not one.gradients]
    alone = plan_alone(trained)
    shared = alone
    if len(trained) >= _FEWEST:
        matrices = _results(lookups)
        shared = plan_trained(
            view,
            trained,
            lookups,
            lambda one, unread: _place_in_concat(view, one, unread),
            lambda concat, members: _groups_of(view, concat, members, matrices, Form.TRAINED),
        )
    taken = {group.concat for group in shared}
    for plan in _plans_of_rest(view, rest, writers, taken):
        yield Plan((*plan.groups, *shared))
    if shared != alone:
        for plan in _plans_of_rest(view, rest, writers, set()):
            yield Plan((*plan.groups, *alone))


def _plans_of_rest(
    view: GraphView, lookups: Sequence[Recognition], writers: SparseWriters, taken: set[str]
) -> Iterator[Plan]:
    """Yields plans for lookups that are not trained; `taken` are concats of others."""
    vanishing = {node for one in lookups for node in one.nodes()}
    single = [one for one in lookups if _fits_one_op(view, one, vanishing, writers)]
    names = {one.anchor for one in single}
    split = _plan_split(one for one in lookups if one.anchor not in names).groups
    before: tuple[Group, ...] = ()
    for nested in (True, False):
        groups = _groups(view, lookups, single, nested, taken)
        if groups != before:
            grouped = {one.anchor for group in groups for one in group.lookups}
            rest = (one for one in single if one.anchor not in grouped)
            yield Plan((*split, *plan_each(rest, Form.SINGLE).groups, *groups))
        before = groups
    if single:
        yield Plan((*split, *plan_each(single, Form.SINGLE).groups))
    yield _plan_split(lookups)


def _results(lookups: Iterable[Recognition]) -> set[Tensor]:
    return {one.spec.output for one in lookups if one.spec is not None}


def _plan_split(lookups: Iterable[Recognition]) -> Plan:
    """Returns a plan with ops around the stock gather; what has them already is left as it is."""
    return plan_each((one for one in lookups if not one.is_fused), Form.SPLIT)


def _fits_one_op(
    view: GraphView, one: Recognition, vanishing: set[str], writers: SparseWriters
) -> bool:
    """Whether one op can take the place of the lookup, and of those who read what it tells."""
    return shares_table(view, one, writers) and not _tells_empty_rows(view, one, vanishing)


def shares_table(view: GraphView, one: Recognition, writers: SparseWriters) -> bool:
    """Whether a fused op can read the table itself, in its place, without a copy of it.

    A variable has to be shared with those who change its rows: whether anybody does, in this
    process, no graph tells.
    """
    shard = one.full_spec.table.shards[0]
    if shard.kind == "resource" and not can_share(view, one.full_spec.table.dtype, shard.device):
        return False
    return reads_table_well(view, one, writers)


def reads_table_well(view: GraphView, one: Recognition, writers: SparseWriters) -> bool:
    """Whether an op that reads the table itself does what the lookup does, and no worse."""
    spec = one.full_spec
    table = spec.table
    if table.strategy or not (table.max_norm is None or clips_in_op(spec)):
        return False
    if not _is_beside_its_table(view, spec) or loses_digits(view, spec):
        return False
    return not writers.change(view, table.shards[0].tensor)


def _tells_empty_rows(view: GraphView, one: Recognition, vanishing: set[str]) -> bool:
    """Whether somebody who stays reads which rows were filled; no op in one piece tells."""
    flags = one.is_row_empty
    return flags is not None and any(
        use.position < 0 or (use.node not in vanishing and view.is_live(use.node))
        for use in view.tensor_uses(flags)
    )


def _is_beside_its_table(view: GraphView, spec: LookupSpec) -> bool:
    """Whether the table is where the lookup is. Else its rows travel, but not all of it."""
    shard = spec.table.shards[0]
    beside = (group.removeprefix("loc:@") for group in shard.colocation)
    names = (*beside, view.origin(shard.tensor).node)
    devices = (shard.device, *(view.nodes[name].device for name in names if name in view.nodes))
    home = next((device for device in devices if device), "")
    return _place(view, home) == _place(view, view.nodes[spec.anchor].device)


def _place(view: GraphView, device: str) -> str:
    """Returns what is left of a device's name without what goes without saying."""
    task, _, kind = device.replace("/cpu:", "/device:CPU:").partition("/device:")
    task = "" if task in ("/job:localhost/replica:0/task:0", "/job:localhost") else task
    return f"{task}/{'' if kind.upper() in (view.home_type, f'{view.home_type}:0') else kind}"


def _groups(
    view: GraphView,
    lookups: Iterable[Recognition],
    single: Iterable[Recognition],
    nested: bool,
    taken: set[str],
) -> tuple[Group, ...]:
    """Returns groups of lookups that only a concat side by side reads.

    Args:
        view: the graph.
        lookups: all of them.
        single: those that one op can do.
        nested: whether a concat that becomes an op may become a part of the one that reads it.
        taken: concats that others have changed.
    """
    members: dict[str, dict[int, Recognition | Group]] = {}
    for one in single:
        found = _place_in_concat(view, one)
        if found is not None and found[0] not in taken:
            members.setdefault(found[0], {})[found[1]] = one
    matrices = _results(lookups)
    groups: dict[str, tuple[Group, ...]] = {}
    # In order and without repeats: a concat of many others is looked at once they all have been.
    changed = dict.fromkeys(members)
    while changed:
        concat = next(iter(changed))
        del changed[concat]
        groups[concat] = tuple(_groups_of(view, concat, members[concat], matrices))
        if not nested or view.controls(concat) or view.control_uses(concat):
            continue
        dtype, device = view.type_attr(concat, "T"), view.nodes[concat].device
        outer = _only_concat(view, Tensor(concat), dtype, device)
        for group in groups[concat]:
            if group.whole and outer is not None and outer[0] not in taken:
                members.setdefault(outer[0], {})[outer[1]] = group
                changed.pop(outer[0], None)
                changed[outer[0]] = None
    inner = {name for found in groups.values() for group in found for name in group.inner}
    return tuple(
        group for concat, found in groups.items() if concat not in inner for group in found
    )


def _place_in_concat(
    view: GraphView, one: Recognition, unread: frozenset[str] = frozenset()
) -> tuple[str, int] | None:
    """Returns the concat that alone reads a lookup's result, see `_only_concat`."""
    spec = one.full_spec
    device = view.nodes[spec.anchor].device
    return _only_concat(view, spec.output, spec.table.dtype, device, unread)


def _only_concat(
    view: GraphView,
    tensor: Tensor,
    dtype: int,
    device: str,
    unread: frozenset[str] = frozenset(),
) -> tuple[str, int] | None:
    """Returns the concat along axis 1 that alone reads a result, and the place among its inputs.

    It has to be on the same device, and of the same dtype. Nodes that are `unread` do not count.
    """
    while tensor.node not in view.preserved:
        uses = [use for use in view.uses(tensor.node) if use.node not in unread]
        if len(uses) != 1 or uses[0].tensor != tensor or uses[0].position < 0:
            return None
        user, place, _ = uses[0]
        if _place(view, view.nodes[user].device) != _place(view, device):
            return None
        if view.op(user) == "ConcatV2":
            axis = view.constant(view.inputs(user)[-1])
            fits = view.type_attr(user, "T") == dtype
            is_beside = axis is not None and axis.size == 1 and int(axis.reshape(())) in (1, -1)
            return (user, place) if fits and is_beside else None
        if view.op(user) not in ALIAS_OPS or view.controls(user) or view.control_uses(user):
            return None
        tensor = Tensor(user)
    return None


def _groups_of(
    view: GraphView,
    concat: str,
    members: Mapping[int, Recognition | Group],
    matrices: set[Tensor],
    form: Form = Form.GROUPED,
) -> Iterator[Group]:
    """Yields one group for all of the concat if all other inputs are matrices, else its runs."""
    inputs = view.inputs(concat)[:-1]
    columns: list[Recognition | Tensor] = []
    inner: set[str] = set()
    for place, tensor in enumerate(inputs):
        member = members.get(place)
        if isinstance(member, Group):
            columns += member.columns
            inner |= {member.concat, *member.inner}
        elif member is not None:
            columns.append(member)
        elif _is_matrix(view, tensor, matrices):
            columns.append(tensor)
        else:
            break
    else:
        if sum(isinstance(column, Recognition) for column in columns) >= _FEWEST:
            yield Group(form, tuple(columns), concat, whole=True, inner=frozenset(inner))
        return
    run: list[Recognition] = []
    for place in range(len(inputs) + 1):
        member = members.get(place)
        if isinstance(member, Recognition):
            run.append(member)
        else:
            if len(run) >= _FEWEST:
                yield Group(form, tuple(run), concat, place - len(run))
            run = []


def _is_matrix(view: GraphView, tensor: Tensor, matrices: set[Tensor]) -> bool:
    shape = view.shape(tensor)
    return view.resolve(tensor) in matrices or (shape is not None and len(shape) == 2)
