"""Hashes of the ids of a fused lookup become one op."""

from __future__ import annotations

from collections.abc import Iterator

from fusion.passes.emit.ids import emit_ids
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.reach import reached
from fusion.passes.graph.values import Node, named
from fusion.passes.graph.view import GraphView
from fusion.passes.plan.safety import refuse_device
from fusion.passes.recognise.hashing import HashSpec, match_hash
from fusion.passes.report.front import IdsReport
from fusion.schema.attributes import STOCK_HASHES
from fusion.schema.names import (
    GROUPED,
    GROUPED_IDS,
    GROUPED_KEYED,
    GROUPED_KEYED_PRE,
    GROUPED_PRE,
    SINGLE,
)

_LOOKUPS = (GROUPED, GROUPED_PRE, GROUPED_KEYED, GROUPED_KEYED_PRE, SINGLE)
_DEVICES = frozenset({"CPU"})


def group_ids(
    edit: GraphEdit, refusal: str, tasks: frozenset[str] | None
) -> Iterator[IdsReport]:
    """Has one op hash the ids of a fused lookup, which waits for all of them; yields reports.

    Args:
        edit: of the graph.
        refusal: why all of it has to stay as it is; "" if it need not.
        tasks: the processes that know the fused op; None: all.
    """
    view, taken = edit.view, set[str]()
    for node in named(view, GROUPED_IDS):
        yield IdsReport(node.name, view.function, node.int_attr("num_columns"), fused_before=True)
    if refusal or view.has_loops or STOCK_HASHES.keys().isdisjoint(view.ops):
        return
    for lookup in named(view, *_LOOKUPS):
        specs = [spec for spec in _hashes(lookup, tasks) if spec.node.name not in taken]
        specs = _independent(view, specs)
        if len(specs) > 1 or any(spec.is_of_numbers for spec in specs):
            taken |= {spec.node.name for spec in specs}
            name = emit_ids(edit, f"{lookup.name}/hashes", specs)
            yield IdsReport(name, view.function, len(specs))


def _hashes(lookup: Node, tasks: frozenset[str] | None) -> Iterator[HashSpec]:
    """Yields the hashes of a lookup's ids that another op can do, each once."""
    view, names = lookup.view, dict[str, None]()
    for value in lookup.inputs:
        names[value.producer.name] = None
    for name in names:
        node = Node(view, name)
        spec = match_hash(node)
        if spec is None or node.is_preserved or node.controls or view.control_uses(name):
            continue
        if refuse_device(view, name, _DEVICES, tasks) is None:
            yield spec


def _independent(view: GraphView, specs: list[HashSpec]) -> list[HashSpec]:
    """Leaves out hashes that others are computed from."""
    starts = [spec.values.node for spec in specs]
    before = reached(starts, view.before)
    return [spec for spec in specs if spec.node.name not in before]
