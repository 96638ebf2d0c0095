"""The table of rules, one for each op, and what several of them ask."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from fusion.passes.analysis.rows.facts import Fact, Kind, Mixes, joined
from fusion.passes.analysis.rows.operands import Operands, Rule
from fusion.passes.graph.idioms import pass_casts

RULES: dict[str, Rule] = {}


def rule(*ops: str) -> Callable[[Rule], Rule]:
    """Registers the rule of some ops."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(ops, rule))
        return rule

    return register


def alike(operands: Operands, indices: Iterable[int]) -> Fact:
    """The fact of operands that have their rows along the same axis of one rank."""
    facts = [operands.of_rows(index) for index in indices]
    if len({(fact.axis, fact.layout) for fact in facts}) > 1:
        raise Mixes(f"the rows of operands of {operands.node.op} lie along different axes")
    return replace(facts[0], side=joined(facts))


def measured(operands: Operands, index: int) -> Fact | None:
    """The fact of the tensor with rows of which an operand is the shape."""
    producer = operands.node.input(index).producer
    if producer.op != "Shape":
        return None
    fact = operands.known.get(producer.input(0).tensor)
    return fact if fact is not None and fact.kind is Kind.ROWS else None


def counted(operands: Operands, index: int) -> str:
    """The sparse tensor whose number of rows an operand is; "" if it may be another number."""
    value, _ = pass_casts(operands.node.input(index))
    fact = operands.known.get(value.tensor)
    return fact.source if fact is not None and fact.kind is Kind.SIZES else ""
