"""The table of rules, and what several of them do with parts and terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node
from fusion.passes.requests.new_graph import NewGraph
from fusion.passes.requests.values import Assembled, Part, Sizes, Term

Rule = Callable[[NewGraph, Node], Assembled | None]

MEETINGS: dict[str, Rule] = {}


def rule(*ops: str) -> Callable[[Rule], Rule]:
    """Registers the rule of some ops."""

    def register(rule: Rule) -> Rule:
        MEETINGS.update(dict.fromkeys(ops, rule))
        return rule

    return register


def is_split(value: Assembled | None) -> bool:
    """Whether a tensor has parts of its own."""
    return value is not None and not value.is_plain


def side_of(term: Term) -> str:
    """Returns the side of a term, as names of nodes have it."""
    return "request" if term.of_request else "candidates"


def factor_of(graph: NewGraph, node: Node) -> int:
    """How many elements of the axis of rows each row of a node's result has."""
    return graph.fact(node.output().tensor).factor


def sum_of(value: Assembled, sizes: Sizes, terms: Sequence[Term]) -> Assembled:
    """Returns a sum of tensors with the rows of another one."""
    return Assembled(sizes, 0, (Part(0, tuple(terms)),), value.factor, value.is_flat)


def each_term(value: Assembled, compute: Callable[[Term], Term], sizes: Sizes) -> Assembled:
    """Returns what comes of each term by itself."""
    parts = [
        replace(part, terms=tuple(compute(term) for term in part.terms)) for part in value.parts
    ]
    return replace(value, sizes=sizes, parts=tuple(parts))


def applied(graph: NewGraph, node: Node, inputs: Sequence[Tensor], of_request: bool) -> Tensor:
    """Writes a copy of a node with other operands."""
    write = graph.writer
    name = write.free_name(f"{node.name}/{'request' if of_request else 'candidates'}")
    return Tensor(write.copy(node.view.nodes[node.name], name, inputs, ()))


def neighbours_joined(graph: NewGraph, value: Assembled, like: Tensor) -> Assembled:
    """Joins parts of one side that lie side by side, so that an op on each part is one op."""
    if not value.is_in_order or not value.is_whole:
        return value
    runs: list[list[Part]] = []
    for part in value.parts:
        before = runs[-1][-1] if runs else None
        is_next = before is not None and before.of_request is part.of_request
        if is_next and len(part.terms) == len(runs[-1][-1].terms) == 1:
            runs[-1].append(part)
        else:
            runs.append([part])
    if len(runs) == 1:  # of sums, or there is nothing to join
        return value
    parts = [run[0] if len(run) == 1 else _joined(graph, value, run, like) for run in runs]
    return replace(value, parts=tuple(parts))


def _joined(graph: NewGraph, value: Assembled, run: Sequence[Part], like: Tensor) -> Part:
    whole = Part(sum(part.size for part in run), run[0].terms)
    tensors = [part.terms[0].tensor for part in run]
    name = f"{like.node}/{'request' if whole.of_request else 'candidates'}"
    tensor = graph.writer.concat(name, tensors, value.axis, graph.dtype(like))
    return replace(whole, terms=(Term(tensor, whole.of_request, value.part_sizes(whole)),))


def without_sums(graph: NewGraph, value: Assembled, like: Tensor) -> Assembled:
    """Adds up what is added up in parts side by side."""
    parts = []
    for part in value.parts:
        terms = part.terms
        if len(terms) > 1:
            whole = graph.part_of_candidates(value, part, like)
            terms = (Term(whole, False, value.part_sizes(part)),)
        parts.append(replace(part, terms=terms))
    return replace(value, parts=tuple(parts))
