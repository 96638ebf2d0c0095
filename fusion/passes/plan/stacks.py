"""Stacks of tables whose lookups one stock gather computes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fusion.passes.analysis.variables import SparseWriters
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.plan.concats import slot_in_concat
from fusion.passes.plan.forms import can_stack, is_bare, is_joinable, is_small, reads_whole
from fusion.passes.plan.joins import MIN_LOOKUPS, groups_in_joins
from fusion.passes.plan.plan import Group, Lowering, Plan
from fusion.passes.plan.sizes import result_shape
from fusion.passes.recognise.lookup_match import LookupMatch
from fusion.runtime.tensorflow.private import dtypes
from fusion.schema.op_history import Release


def stock_plans(
    view: GraphView, lookups: Sequence[LookupMatch], writers: SparseWriters, runtime: Release
) -> Iterator[Plan]:
    """Yields plans with stock ops, the best one first."""
    alone = {
        lookup.anchor: Group(
            Lowering.STOCK, (lookup,), reads_whole=reads_whole(view, lookup, writers, runtime)
        )
        for lookup in lookups
        if not is_bare(lookup)
    }
    stacked = _stored_once(view, lookups, tuple(_stacks(view, lookups)))
    if stacked:
        taken = {lookup.anchor for group in stacked for lookup in group.lookups}
        rest = (group for anchor, group in alone.items() if anchor not in taken)
        yield Plan((*rest, *stacked))
    yield Plan(tuple(alone.values()))


def _stacks(view: GraphView, lookups: Sequence[LookupMatch]) -> Iterator[Group]:
    """Yields groups of lookups that stand side by side in what joins them, of the same dim."""
    vanishing = {node for lookup in lookups for node in lookup.nodes()}
    stackable = [
        lookup
        for lookup in lookups
        if can_stack(view, lookup.full_spec) and _only_read_by(view, lookup, vanishing)
    ]
    dims = {_dim(lookup): None for lookup in stackable}
    joined = [
        group
        for dim in dims
        for group in groups_in_joins(
            view, [lookup for lookup in stackable if _dim(lookup) == dim], set()
        )
    ]
    stacks = [replace(group, form=Lowering.STACKED) for group in joined]
    yield from filter(_pays, stacks)
    taken = {place.join for group in joined for place in group.places}
    members: dict[str, dict[int, LookupMatch]] = {}
    for lookup in stackable:
        if is_joinable(lookup):
            slot = slot_in_concat(view, lookup)
            if slot is not None:
                members.setdefault(slot[0], {})[slot[1]] = lookup
    for concat, columns in members.items():
        if concat in taken:
            continue
        count = len(view.inputs(concat)) - 1
        run: list[LookupMatch] = []
        for index in range(count + 1):
            one_more = columns.get(index)
            if run and (one_more is None or _dim(one_more) != _dim(run[0])):
                if len(run) >= MIN_LOOKUPS:
                    start, is_whole = index - len(run), len(run) == count
                    group = Group(Lowering.STACKED, tuple(run), concat, start, is_whole)
                    yield from [group] if _pays(group) else []
                run = []
            if one_more is not None:
                run.append(one_more)


_MIN_GATHERS = 8
_MAX_BYTES = 1 << 23
"""Of gathers that are better as one: 26 of 2,000 rows and 16 columns take 27 us for one id and 198
for 512, and 15 and 164 us as one; 4 take 23 us for 512 ids, and 31 as one; and 26 of 50,000 rows
165 us, and 194 as one, whose rows no cache holds."""
TOO_FEW = (
    "nothing to gain: one gather of fewer than 8 tables, of large ones or sequences takes longer "
    "(31 us for 4 tables and 512 ids, 23 us apart)"
)


def _pays(group: Group) -> bool:
    """Whether one gather is better than several, where these are all that lookups are."""
    if not any(map(is_bare, group.lookups)):
        return True
    shapes = [result_shape(lookup) for lookup in group.lookups]
    if any(shape is None or len([n for n in shape[:-1] if n != 1]) > 1 for shape in shapes):
        return False
    tables = {lookup.full_spec.table for lookup in group.lookups}
    sizes = (math.prod(n or 1 for n in t.shape) * dtypes.as_dtype(t.dtype).size for t in tables)
    return len(group.lookups) >= _MIN_GATHERS and sum(sizes) <= _MAX_BYTES


def _stored_once(
    view: GraphView, lookups: Sequence[LookupMatch], groups: tuple[Group, ...]
) -> tuple[Group, ...]:
    """Returns those of the groups after which the graph holds no large table twice.

    Groups of the same tables share their stack; any other reader needs a table once more.
    """

    def stack(group: Group) -> tuple[Tensor, ...]:
        return tuple(dict.fromkeys(_table(view, lookup) for lookup in group.lookups))

    while True:
        inside = {lookup.anchor for group in groups for lookup in group.lookups}
        readers: dict[Tensor, set[tuple[Tensor, ...]]] = {}
        for group in groups:
            for table in stack(group):
                readers.setdefault(table, set()).add(stack(group))
        for lookup in lookups:
            if lookup.anchor not in inside:
                readers.setdefault(_table(view, lookup), set()).add(())
        supported = tuple(
            group
            for group in groups
            if all(
                len(readers[_table(view, lookup)]) == 1 or _is_small(lookup)
                for lookup in group.lookups
            )
        )
        if len(supported) == len(groups):
            return groups
        groups = supported


def _is_small(lookup: LookupMatch) -> bool:
    table = lookup.full_spec.table
    return is_small(table.dtype, table.shape)


def _table(view: GraphView, lookup: LookupMatch) -> Tensor:
    return view.resolve(lookup.full_spec.table.shards[0].tensor)


def _dim(lookup: LookupMatch) -> int | None:
    return lookup.full_spec.table.shape[1]


def _only_read_by(view: GraphView, lookup: LookupMatch, vanishing: set[str]) -> bool:
    """Whether only lookups read the table, so that the graph need not hold it twice."""
    tensor = lookup.full_spec.table.shards[0].tensor
    names = (view.resolve(tensor).node, *view.aliases(tensor))
    if any(name in view.preserved for name in names):
        return False
    return all(use.node in {*vanishing, *names} for name in names for use in view.uses(name))
