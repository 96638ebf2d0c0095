"""Hashes and vocabularies of the ids of a fused lookup become one op."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from fusion.passes.analysis.results import ELSEWHERE, is_needed_with, results_of
from fusion.passes.analysis.static_tables import StaticTables
from fusion.passes.emit.ids import Ids, emit_ids
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.reach import reached
from fusion.passes.graph.values import Node, named
from fusion.passes.graph.view import GraphView
from fusion.passes.plan.safety import IN_LOOP, refuse_device
from fusion.passes.recognise.hashing import HashSpec, match_hash
from fusion.passes.recognise.match import NoMatch
from fusion.passes.recognise.vocabularies import ID_MAKERS, VocabularySpec, match_vocabulary
from fusion.passes.report.front import IdsReport
from fusion.passes.split_texts import read_parts, with_splits
from fusion.schema.names import GROUPED_IDS, GROUPED_SPLIT, ID_READERS, VOCABULARY_INDEX

#: Between ids and lookups. An Identity may wait for a check of the ids.
_PASSED = frozenset(
    {"Add", "AddV2", "Cast", "ExpandDims", "Identity", "Maximum", "Minimum", "Mul"}
    | {"RaggedTensorToSparse", "Reshape", "Select", "SelectV2", "SparseToDense", "Squeeze", "Sub"}
)
_MAX_PASSED = 6

_NO_OP = "there is no fused op for what it does"
_ALONE = "one op for the ids of one column gains nothing"
_OTHER_OPS = "other ops are between its ids and the fused lookup"
_UNREAD = "no fused lookup reads its ids"
_BEFORE = "one op makes other ids of the lookup already"
_UNKNOWN_TABLE = "its table may change, or may not be the same in all calls"


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
    view, taken = edit.view, {*edit.removed}  # which parsers do
    for node in named(view, GROUPED_IDS, GROUPED_SPLIT):
        attr = node.attr("vocabularies")
        found = sum(number >= 0 for number in attr.list.i) if attr is not None else 0
        of = node.name, view.function, node.int_attr("num_columns"), found
        is_split, served = node.op == GROUPED_SPLIT, view.is_served(node.name)
        yield IdsReport(*of, split=is_split, fused_before=True, served=served)
    if ID_MAKERS.isdisjoint(view.ops):
        return
    refusal = refusal or (IN_LOOP if view.has_loops else "")
    refused = dict[str, str]()
    lookups = [] if refusal else [*named(view, *ID_READERS)]
    whole = dict[str, NoMatch]()
    for lookup in lookups:
        found = _found(lookup, taken, refused, tasks, tables)
        of_lookup = [*with_splits(lookup, found, tasks)]
        columns = [one for one in of_lookup if isinstance(one, Ids)]
        for is_split in (False, True):
            group = [one for one in columns if (one.split is not None) == is_split]
            if not _gains(group):
                refused |= {one.spec.node.name: _ALONE for one in group}
                continue
            taken |= {name for one in group for name in one.nodes}
            name = emit_ids(edit, f"{lookup.name}/{'parts' if is_split else 'ids'}", group)
            read_parts(edit, group)
            count = sum(isinstance(one.spec, VocabularySpec) for one in group)
            of = name, view.function, len(group), count
            yield IdsReport(*of, split=is_split, served=view.is_served(lookup.name))
        whole |= {one.node: one for one in of_lookup if isinstance(one, NoMatch)}
    for name, why in whole.items():
        served = view.is_served(name)
        yield IdsReport(
            name, view.function, 1, split=True, reason=why.reason, node=name, served=served
        )
    taken |= reached(view.named(VOCABULARY_INDEX), view.before).keys()  # what fills one
    rest = [Node(view, name) for name in view.named(*ID_MAKERS) if name not in taken]
    if rest:
        before = reached([lookup.name for lookup in lookups], view.before)
        inside = {
            part: why
            for name, why in refused.items()
            if (spec := _match(Node(view, name))) is not None
            for part in spec.nodes
        }
        yield from _stays(rest, dict.fromkeys(before, _OTHER_OPS) | inside, refusal)


def _gains(columns: Sequence[Ids]) -> bool:
    """Whether one op is better."""
    special = any(
        one.split is not None or (isinstance(one.spec, HashSpec) and one.spec.is_of_numbers)
        for one in columns
    )
    return len(columns) > 1 or special


def _stays(rest: Iterable[Node], reasons: Mapping[str, str], refusal: str) -> Iterator[IdsReport]:
    """Yields why nodes stay as they are, those with one reason together.

    Args:
        rest: the nodes.
        reasons: why each of them stays, if it can be replaced and a lookup reads its ids.
        refusal: why all stay; "" if they need not.
    """
    groups = defaultdict[tuple[str, bool], list[Node]](list)
    for node in rest:
        reason = _NO_OP if _match(node) is None else reasons.get(node.name, _UNREAD)
        groups[refusal or reason, node.view.is_served(node.name)].append(node)
    for (reason, served), (first, *others) in groups.items():
        of = first.name, first.view.function, 1 + len(others)
        yield IdsReport(*of, served=served, reason=reason, node=first.name)


def _found(
    lookup: Node,
    taken: set[str],
    refused: dict[str, str],
    tasks: frozenset[str] | None,
    tables: StaticTables,
) -> list[Ids]:
    """Returns ids of a lookup that another op can make, each once, those of vocabularies last.

    Args:
        lookup: a fused one.
        taken: nodes that other lookups' ops replace.
        refused: gets why others are not among them.
        tasks: see `group_ids`.
        tables: likewise.
    """
    view, hashes, vocabularies = lookup.view, list[Ids](), list[Ids]()
    specs, results = list[HashSpec | VocabularySpec](), results_of(view, lookup.name)
    front = [*_front(lookup)]
    is_grouped = any(node.op in (GROUPED_IDS, GROUPED_SPLIT) for node in front)
    for name in (node.name for node in front):
        spec = None if name in taken else _match(Node(view, name))
        if spec is None:
            continue
        if is_grouped:
            refused[name] = _BEFORE
        elif (why := _refuse(spec, tasks)) is not None:
            refused[name] = why
        elif not is_needed_with(view, name, lookup.name, results):
            refused[name] = ELSEWHERE
        else:
            specs.append(spec)
    first = _before(view, specs)
    for spec in specs:
        name = spec.node.name
        if name in first:
            refused[name] = "other ids of the lookup are computed from its ids"
        elif isinstance(spec, HashSpec):
            hashes.append(Ids(spec))
        else:
            parts = [tables.source(view, tensor) for tensor in spec.contents]
            if None in parts:
                refused[name] = _UNKNOWN_TABLE
                continue
            vocabularies.append(Ids(spec, "\0".join(map(str, parts))))
    return [*hashes, *vocabularies]


def _front(lookup: Node) -> Iterator[Node]:
    """Yields the nodes that may make ids of a lookup, each once, and what is behind them."""
    seen = set[str]()
    stack = [(value.producer, _MAX_PASSED) for value in reversed(lookup.inputs)]
    while stack:
        node, left = stack.pop()
        if node.name in seen:
            continue
        seen.add(node.name)
        yield node
        if left and node.op in _PASSED and _match(node) is None:
            stack += [(value.producer, left - 1) for value in reversed(node.inputs)]


def _match(node: Node) -> HashSpec | VocabularySpec | None:
    return match_hash(node) or match_vocabulary(node)


def _refuse(spec: HashSpec | VocabularySpec, tasks: frozenset[str] | None) -> str | None:
    """Returns why ids are made as before: something else depends on how they are made."""
    node, view = spec.node, spec.node.view
    if node.is_preserved:
        return "its ids are fetched"
    if (device := refuse_device(view, node.name, tasks)) is not None:
        return device.reason
    if isinstance(spec, HashSpec):
        waits = node.controls or view.control_uses(node.name)
        return "there is a control dependency" if waits else None
    inside = {*spec.nodes}
    for name in inside - {node.name}:
        if name in view.preserved or any(use.node not in inside for use in view.uses(name)):
            return "what is looked up is read elsewhere as well"
    return None


def _before(view: GraphView, specs: list[HashSpec | VocabularySpec]) -> dict[str, None]:
    """Returns what the values of some ids are computed from."""
    return reached([spec.values.node for spec in specs], view.before)
