"""Pruning: which entries of a batch are dropped before they are looked up."""

from __future__ import annotations

from dataclasses import dataclass

from fusion.passes.graph.idioms import compares_with
from fusion.passes.graph.values import Node, Value
from fusion.passes.recognise.match import Match, Stage
from fusion.passes.recognise.stock.boolean_mask import Levels, peel
from fusion.passes.recognise.stock.entries import Entries


@dataclass(frozen=True, kw_only=True)
class Prune(Match):
    """Only valid entries are kept.

    Attributes:
        entries: those before.
        by_id: whether entries with id < 0 are dropped.
        by_weight: whether entries whose weight is not > 0 are dropped.
    """

    entries: Entries
    by_id: bool
    by_weight: bool


def match_prune(entries: Entries) -> Prune:
    """Explains the entries as the valid ones of others, as far as they are."""
    values = {"ids": entries.ids, "rows": entries.rows_in}
    if entries.weights is not None:
        values["weights"] = entries.weights
    if entries.weight_rows is not None:
        values["weight_rows"] = entries.weight_rows
    levels = {key: peel(value) for key, value in values.items()}
    by_id = by_weight = False
    nodes: tuple[str, ...] = ()
    front: tuple[str, ...] = ()
    depth = 0
    while (step := _match_step(levels, depth)) is not None:
        by_id |= step.by_id
        by_weight |= step.by_weight
        # The last condition is one of the entries that are kept in the graph, those before are not.
        nodes += (*front, *step.nodes)
        front = step.front
        depth += 1
    if by_weight and not by_id:
        # No op drops entries by weight alone: they are taken as they are given.
        depth, by_weight, nodes, front = 0, False, (), ()
    source = {key: level.tensors[depth] for key, level in levels.items()}
    passed = tuple(name for level in levels.values() for name in level.aliases[depth])
    before = Entries(
        stage=Stage.IDS,
        nodes=(),
        front=tuple(dict.fromkeys(passed)),
        ids=source["ids"],
        indices=source["rows"] if entries.indices is not None else None,
        rows=source["rows"] if entries.indices is None else None,
        weights=source.get("weights"),
        count=entries.count,
        dtype=entries.dtype,
        rows_dtype=entries.rows_dtype,
    )
    return Prune(
        stage=Stage.IDS,
        nodes=tuple(dict.fromkeys(nodes)),
        front=tuple(dict.fromkeys(front)),
        entries=before,
        by_id=by_id,
        by_weight=by_weight,
    )


@dataclass(frozen=True)
class _Step:
    by_id: bool
    by_weight: bool
    nodes: tuple[str, ...]
    front: tuple[str, ...]


def _match_step(levels: dict[str, Levels], depth: int) -> _Step | None:
    """Explains the gather `depth` of all tensors as the valid ones of the entries behind it."""
    if any(len(level.conditions) <= depth for level in levels.values()):
        return None
    condition = levels["ids"].conditions[depth]
    if any(level.conditions[depth] != condition for level in levels.values()):
        return None
    by_id = by_weight = False
    front: tuple[str, ...] = ()
    pending = [condition]
    while pending:
        value = pending.pop()
        test = value.producer
        front += value.path
        if test.op == "LogicalAnd":
            pending += test.inputs
        elif test.op == "Fill" and (measured := _match_all_true(test, levels, depth)) is not None:
            front += measured
        elif test.op == "GreaterEqual" and _compares(test, levels["ids"], depth):
            by_id = True
            front += test.input(0).aliases
        elif (
            test.op == "Greater"
            and "weights" in levels
            and _compares(test, levels["weights"], depth)
        ):
            by_weight = True
            front += test.input(0).aliases
        else:
            return None
    if not by_id and not by_weight:
        return None
    nodes = (n for level in levels.values() for n in (*level.aliases[depth], *level.nodes[depth]))
    return _Step(by_id, by_weight, tuple(nodes), front)


def _compares(test: Node, levels: Levels, depth: int) -> bool:
    """Whether the comparison is that of the entries behind gather `depth` with 0."""
    return compares_with(test, 0) and _is_source(test.input(0), levels, depth)


def _is_source(value: Value, levels: Levels, depth: int) -> bool:
    """Whether the tensor is what gather `depth` reads."""
    own = peel(value)
    rest = levels.conditions[depth + 1 :]
    return own.tensors[-1] == levels.tensors[-1] and own.conditions == rest


def _match_all_true(fill: Node, levels: dict[str, Levels], depth: int) -> tuple[str, ...] | None:
    """Explains a Fill as a condition that holds for each entry behind gather `depth`."""
    shape, number = fill.inputs
    measured = shape.producer
    if not number.scalar or measured.op != "Shape":
        return None
    of = measured.input(0)
    keys = levels.keys() & {"ids", "weights"}
    return shape.path if any(_is_source(of, levels[key], depth) for key in keys) else None
