"""Hashes and vocabularies of the ids of a fused lookup become one op."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fusion.passes.analysis.static_tables import StaticTables
from fusion.passes.emit.ids import emit_ids
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.reach import reached
from fusion.passes.graph.values import Node, Value, named
from fusion.passes.graph.view import GraphView
from fusion.passes.plan.safety import refuse_device
from fusion.passes.recognise.hashing import HashSpec, match_hash
from fusion.passes.recognise.vocabularies import FIND, VocabularySpec, match_vocabulary
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

#: What ids are made by, for which there is something better.
MAKERS = STOCK_HASHES.keys() | {FIND}


class _Found(NamedTuple):
    """What makes ids of a lookup, and what vocabularies are made of, which says which are equal."""

    hashes: list[HashSpec]
    vocabularies: list[VocabularySpec]
    contents: list[str]

    @property
    def gains(self) -> bool:
        """Whether one op is better."""
        numbers = any(spec.is_of_numbers for spec in self.hashes)
        return len(self.hashes) + len(self.vocabularies) > 1 or numbers


def group_ids(
    edit: GraphEdit, refusal: str, tasks: frozenset[str] | None, tables: StaticTables
) -> Iterator[IdsReport]:
    """Has one op make the ids of a fused lookup, which waits for all of them; yields reports.

    Args:
        edit: of the graph.
        refusal: why all of it has to stay as it is; "" if it need not.
        tasks: the processes that know the fused op; None: all.
        tables: what is the same in all runs.
    """
    view, taken = edit.view, set[str]()
    for node in named(view, GROUPED_IDS):
        attr = node.attr("vocabularies")
        found = sum(number >= 0 for number in attr.list.i) if attr is not None else 0
        columns = node.int_attr("num_columns")
        served = view.is_served(node.name)
        yield IdsReport(node.name, view.function, columns, found, fused_before=True, served=served)
    if refusal or view.has_loops or MAKERS.isdisjoint(view.ops):
        return
    for lookup in named(view, *_LOOKUPS):
        found = _found(lookup, taken, tasks, tables)
        if found.gains:
            taken |= {spec.node.name for spec in found.hashes}
            taken |= {spec.node.name for spec in found.vocabularies}
            name = emit_ids(edit, f"{lookup.name}/ids", *found)
            served, count = view.is_served(lookup.name), len(found.vocabularies)
            columns = len(found.hashes) + count
            yield IdsReport(name, view.function, columns, count, served=served)


def _found(
    lookup: Node, taken: set[str], tasks: frozenset[str] | None, tables: StaticTables
) -> _Found:
    """Returns what makes ids of a lookup that another op can do, each once."""
    view, found = lookup.view, _Found([], [], [])
    names = dict.fromkeys(_maker(value).name for value in lookup.inputs)
    specs = list[HashSpec | VocabularySpec]()
    for name in names:
        node = Node(view, name)
        spec = None if name in taken else match_hash(node) or match_vocabulary(node)
        if spec is not None and _is_free(spec, tasks):
            specs.append(spec)
    for spec in _independent(view, specs):
        if isinstance(spec, HashSpec):
            found.hashes.append(spec)
        else:
            parts = [tables.source(view, tensor) for tensor in spec.contents]
            if None not in parts:
                found.vocabularies.append(spec)
                found.contents.append("\0".join(map(str, parts)))
    return found


def _maker(ids: Value) -> Node:
    """Returns what makes ids, also behind an Identity that waits for a check of them."""
    node = ids.producer
    return node.input(0).producer if node.op == "Identity" else node


def _is_free(spec: HashSpec | VocabularySpec, tasks: frozenset[str] | None) -> bool:
    """Whether nothing else depends on how ids are made."""
    node, view = spec.node, spec.node.view
    if node.is_preserved or refuse_device(view, node.name, _DEVICES, tasks) is not None:
        return False
    if isinstance(spec, HashSpec):
        return not node.controls and not view.control_uses(node.name)
    # Of what is read elsewhere as well nothing is saved.
    inside = {*spec.nodes}
    inner = (use.node for name in inside - {node.name} for use in view.uses(name))
    return inside.issuperset(inner) and not inside & view.preserved


def _independent(
    view: GraphView, specs: list[HashSpec | VocabularySpec]
) -> list[HashSpec | VocabularySpec]:
    """Leaves out what others are computed from."""
    starts = [spec.values.node for spec in specs]
    before = reached(starts, view.before)
    return [spec for spec in specs if spec.node.name not in before]
