"""Where tensors of requests meet tensors of candidates: rules that keep them apart for longer.

A product of columns side by side is a sum of two products, a sum over them a sum of two sums. What
a rule returns is not there yet: its parts are, and are put together where an op without a rule
reads them. A rule returns None where it gains nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from tensorflow.core.framework import types_pb2

from fusion.passes.analysis.rows.elementwise import UNARY
from fusion.passes.analysis.rows.facts import Kind, Side
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node
from fusion.passes.requests.bits import depends_on_position
from fusion.passes.requests.values import ROWS, Assembled, Part, Sizes, Term, summed

if TYPE_CHECKING:
    from fusion.passes.requests.split import Splitter

Rule = Callable[["Splitter", Node], Assembled | None]

MEETINGS: dict[str, Rule] = {}

#: Fewer columns of a request are repeated in front of a product: another product costs more.
MIN_COLUMNS = 16
#: Sums of these are put together in another order.
_FLOATS = frozenset(
    {types_pb2.DT_FLOAT, types_pb2.DT_DOUBLE, types_pb2.DT_HALF, types_pb2.DT_BFLOAT16}
)
#: For so many runs of rows of weights a request has a product each.
MAX_RUNS = 4


def _rule(*ops: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        MEETINGS.update(dict.fromkeys(ops, rule))
        return rule

    return register


def _has_request(value: Assembled | None) -> bool:
    """Whether a part of a tensor is computed for requests."""
    return value is not None and any(term.of_request for p in value.parts for term in p.terms)


@_rule("ConcatV2")
def _concat(split: Splitter, node: Node) -> Assembled | None:
    operands = [value.tensor for value in node.inputs[:-1]]
    values = [split.assembled(tensor) for tensor in operands]
    sizes = split.sizes(node.output().tensor)
    if sizes is None or not any(map(_has_request, values)):
        return None
    axis = node.input(node.input_count - 1).item % len(sizes)
    parts: list[Part] = []
    for value in values:
        if value is None:
            return None
        if len(value.parts) > 1 and value.axis == axis:
            parts += value.parts
        elif len(value.parts) > 1:
            return None
        else:
            parts.append(Part(value.sizes[axis], value.parts[0].terms))
    return Assembled(sizes, axis, tuple(parts))


def _each_term(value: Assembled, compute: Callable[[Term], Term], sizes: Sizes) -> Assembled:
    """Returns what comes of each term by itself."""
    parts = [
        replace(part, terms=tuple(compute(term) for term in part.terms)) for part in value.parts
    ]
    return Assembled(sizes, value.axis, tuple(parts))


def _applied(split: Splitter, node: Node, inputs: Sequence[Tensor], of_request: bool) -> Tensor:
    """Writes a copy of a node with other operands."""
    write = split.writer
    name = write.free_name(f"{node.name}/{'request' if of_request else 'candidates'}")
    return Tensor(write.copy(node.view.nodes[node.name], name, inputs, ()))


@_rule(*UNARY)
def _unary(split: Splitter, node: Node) -> Assembled | None:
    """Of parts side by side; sums only where the op is linear."""
    value = split.assembled(node.input(0).tensor)
    sizes = split.sizes(node.output().tensor)
    if sizes is None or value is None or not _has_request(value):
        return None
    is_linear = node.op in ("Identity", "StopGradient", "PreventGradient", "Snapshot", "Neg")
    if node.op in ("EnsureShape", "Bitcast") or (split.exact and depends_on_position(node)):
        return None
    if len(value.parts) == 1 and len(value.parts[0].terms) > 1 and not is_linear:
        return None
    if not is_linear:
        value = _without_sums(split, value, node.input(0).tensor)

    def compute(term: Term) -> Term:
        return replace(term, tensor=_applied(split, node, [term.tensor], term.of_request))

    return _each_term(value, compute, sizes)


def _without_sums(split: Splitter, value: Assembled, like: Tensor) -> Assembled:
    """Adds up what is added up in parts side by side."""
    parts = []
    for part in value.parts:
        terms = part.terms
        if len(terms) > 1:
            whole = split.part_of_candidates(part, like)
            terms = (Term(whole, False, _part_sizes(value, part)),)
        parts.append(replace(part, terms=terms))
    return replace(value, parts=tuple(parts))


def _part_sizes(value: Assembled, part: Part) -> Sizes:
    """The sizes of a part of a tensor."""
    if len(value.parts) == 1:
        return value.sizes
    return (*value.sizes[: value.axis], part.size, *value.sizes[value.axis + 1 :])


@_rule("AddV2", "Add", "Sub")
def _added(split: Splitter, node: Node) -> Assembled | None:
    sizes = split.sizes(node.output().tensor)
    if sizes is None or split.exact or split.dtype(node.output().tensor) not in _FLOATS:
        return None
    terms: list[Term] = []
    constant = None
    for index, operand in enumerate(node.inputs):
        if not split.fact(operand.tensor).has_rows:
            constant = index
            continue
        value = split.assembled(operand.tensor)
        if value is None or len(value.parts) > 1 or len(value.sizes) != len(sizes):
            return None
        own = value.parts[0].terms
        if index and node.op == "Sub":
            own = tuple(_negative(split, term, operand.tensor) for term in own)
        terms += own
    if not any(term.of_request for term in terms):
        return None
    if constant is not None:
        return _with_constant(split, node, terms, constant, sizes)
    return summed(sizes, _merged(split, node, terms))


def _negative(split: Splitter, term: Term, like: Tensor) -> Term:
    name, types = f"{term.tensor.node}/negative", {"T": split.dtype(like)}
    return replace(term, tensor=split.writer.add(name, "Neg", [term.tensor], types))


def _merged(split: Splitter, node: Node, terms: Sequence[Term]) -> list[Term]:
    """Adds up terms of one side and of equal sizes."""
    merged: dict[tuple[bool, Sizes], list[Term]] = {}
    for term in terms:
        merged.setdefault((term.of_request, term.sizes), []).append(term)
    like = node.output().tensor
    return [replace(same[0], tensor=split.added_up(same, like)) for same in merged.values()]


def _with_constant(
    split: Splitter, node: Node, terms: Sequence[Term], index: int, sizes: Sizes
) -> Assembled | None:
    """Adds a constant to the smallest term that it does not make larger."""
    shape = node.input(index).shape
    if shape is None or None in shape or (node.op == "Sub" and index == 0):
        return None
    for term in sorted(terms, key=lambda term: not term.of_request):
        if _is_below(shape, term.sizes):
            operands = [term.tensor, split.on(node.input(index).tensor, Side.NEITHER)]
            operands = operands if index else operands[::-1]
            new = replace(term, tensor=_applied(split, node, operands, term.of_request))
            return summed(sizes, [new if one is term else one for one in terms])
    return None


def _is_below(shape: Sequence[int | None], sizes: Sizes) -> bool:
    """Whether a constant of this shape is broadcast to these sizes."""
    if len(shape) > len(sizes):
        return False
    behind = sizes[len(sizes) - len(shape) :]
    return all(own in (1, size) for own, size in zip(shape, behind, strict=True))


@_rule("BiasAdd")
def _biased(split: Splitter, node: Node) -> Assembled | None:
    value = split.assembled(node.input(0).tensor)
    sizes = split.sizes(node.output().tensor)
    if split.exact or sizes is None or value is None or not _has_request(value):
        return None
    if len(value.parts) > 1 or node.text_attr("data_format") == "NCHW":
        return None
    return _with_constant(split, node, value.parts[0].terms, 1, sizes)


@_rule("Mul", "RealDiv", "Maximum", "Minimum", "SquaredDifference", "Pow")
def _by_parts(split: Splitter, node: Node) -> Assembled | None:
    """Of two tensors with parts of equal sizes side by side, or of one and a number."""
    sizes = split.sizes(node.output().tensor)
    left, right = (operand.tensor for operand in node.inputs)
    if sizes is None or (split.exact and depends_on_position(node)):
        return None
    facts = [split.fact(tensor) for tensor in (left, right)]
    if not facts[1].has_rows:
        return _by_number(split, node, left, 0, sizes)
    if not facts[0].has_rows:
        return _by_number(split, node, right, 1, sizes)
    values = [split.assembled(tensor) for tensor in (left, right)]
    if any(value is None or value.sizes != sizes for value in values):
        return None
    one, other = (value for value in values if value is not None)
    if len(one.parts) < 2 or [p.size for p in one.parts] != [p.size for p in other.parts]:
        return None
    if one.axis != other.axis:
        return None
    parts = []
    for a, b in zip(one.parts, other.parts, strict=True):
        of_request = a.of_request and b.of_request
        operands = [
            split.added_up(part.terms, left) if of_request else split.part_of_candidates(part, left)
            for part in (a, b)
        ]
        new = _applied(split, node, operands, of_request)
        parts.append(Part(a.size, (Term(new, of_request, _part_sizes(one, a)),)))
    return Assembled(sizes, one.axis, tuple(parts))


def _by_number(
    split: Splitter, node: Node, tensor: Tensor, at: int, sizes: Sizes
) -> Assembled | None:
    value = split.assembled(tensor)
    number = node.input(1 - at)
    if value is None or not _has_request(value) or number.shape != ():
        return None
    is_sum = any(len(part.terms) > 1 for part in value.parts)
    if is_sum and (split.exact or node.op not in ("Mul", "RealDiv") or at):
        return None
    constant = split.on(number.tensor, Side.NEITHER)

    def compute(term: Term) -> Term:
        operands = [term.tensor, constant] if at == 0 else [constant, term.tensor]
        return replace(term, tensor=_applied(split, node, operands, term.of_request))

    return _each_term(value, compute, sizes)


@_rule("MatMul")
def _product(split: Splitter, node: Node) -> Assembled | None:
    left, weights = node.inputs
    value, sizes = split.assembled(left.tensor), split.sizes(node.output().tensor)
    if split.exact or sizes is None or value is None or not _has_request(value):
        return None
    if node.flag_attr("transpose_a") or node.flag_attr("transpose_b"):
        return None
    new = split.on(weights.tensor, Side.NEITHER)
    if len(value.parts) == 1:
        terms = value.parts[0].terms
        if any(term.sizes != value.sizes for term in terms):
            return None
        products = [
            Term(_applied(split, node, [t.tensor, new], t.of_request), t.of_request, sizes)
            for t in terms
        ]
        return summed(sizes, products)
    if value.axis != 1 or weights.shape is None:
        return None
    return _split_product(split, node, value, new, sizes)


def _split_product(
    split: Splitter, node: Node, value: Assembled, weights: Tensor, sizes: Sizes
) -> Assembled | None:
    """Multiplies what is of requests, and what is of candidates, by their rows of the weights."""
    starts = [0, *accumulate(part.size for part in value.parts)]
    columns: dict[bool, list[tuple[int, int, Tensor]]] = {True: [], False: []}
    for start, part in zip(starts, value.parts, strict=False):
        for term in part.terms:
            if term.sizes != _part_sizes(value, part):
                return None
            columns[term.of_request].append((start, part.size, term.tensor))
    if sum(size for _, size, _ in columns[True]) < MIN_COLUMNS:
        return None
    terms: list[Term] = []
    for of_request, parts in columns.items():
        terms += _products(split, node, weights, parts, sizes, of_request) if parts else ()
    return summed(sizes, terms)


def _products(
    split: Splitter,
    node: Node,
    weights: Tensor,
    parts: Sequence[tuple[int, int, Tensor]],
    sizes: Sizes,
    of_request: bool,
) -> list[Term]:
    """Multiplies columns by their rows of the weights.

    Rows that follow each other are read where they are. Of candidates, others are copied side by
    side for one product; of requests, which are few, each run of rows has a product.
    """
    write, dtype = split.writer, split.dtype(node.input(0).tensor)
    name = f"{node.name}/{'request' if of_request else 'candidates'}"
    runs: list[tuple[int, int, list[Tensor]]] = []
    for start, size, tensor in parts:
        if runs and sum(runs[-1][:2]) == start:
            first, before, tensors = runs.pop()
            runs.append((first, before + size, [*tensors, tensor]))
        else:
            runs.append((start, size, [tensor]))
    slices = [write.rows(name, weights, start, size, sizes[1], dtype) for start, size, _ in runs]
    if of_request and len(runs) <= MAX_RUNS:
        operands = [
            (write.concat(name, tensors, 1, dtype), rows)
            for (*_, tensors), rows in zip(runs, slices, strict=True)
        ]
    else:
        tensors = [tensor for *_, own in runs for tensor in own]
        operands = [(write.concat(name, tensors, 1, dtype), write.concat(name, slices, 0, dtype))]
    products = [_applied(split, node, pair, of_request) for pair in operands]
    total = write.sum_of(name, products, dtype)
    return [Term(total, of_request, sizes)]


@_rule("Sum")
def _summed(split: Splitter, node: Node) -> Assembled | None:
    value = split.assembled(node.input(0).tensor)
    sizes = split.sizes(node.output().tensor)
    if sizes is None or value is None or not _has_request(value):
        return None
    axes = node.input(1).constant
    if axes is None:
        return None
    rank = len(value.sizes)
    over = sorted({int(axis) % rank for axis in axes.reshape(-1)})
    if len(value.parts) == 1:
        return None
    if value.axis not in over:
        return None if split.exact else _inner_sums(split, node, value, over, sizes)
    if split.exact:
        return None
    write, dtype = split.writer, split.dtype(node.input(0).tensor)
    if any(len(p.terms) > 1 or p.terms[0].sizes != _part_sizes(value, p) for p in value.parts):
        return None
    terms = []
    for of_request in (True, False):
        own = [p.terms[0].tensor for p in value.parts if p.of_request is of_request]
        if own:
            name = f"{node.name}/{'request' if of_request else 'candidates'}"
            joined = write.concat(name, own, value.axis, dtype)
            axes_input = split.on(node.input(1).tensor, Side.NEITHER)
            new = _applied(split, node, [joined, axes_input], of_request)
            terms.append(Term(new, of_request, sizes))
    return summed(sizes, terms)


def _inner_sums(
    split: Splitter, node: Node, value: Assembled, over: Sequence[int], sizes: Sizes
) -> Assembled | None:
    """Sums inside of each part."""
    axes = split.on(node.input(1).tensor, Side.NEITHER)
    keeps = node.flag_attr("keep_dims")
    axis = value.axis if keeps else value.axis - sum(one < value.axis for one in over)
    parts = []
    for part in value.parts:
        if len(part.terms) > 1 or part.terms[0].sizes != _part_sizes(value, part):
            return None
        (term,) = part.terms
        new = _applied(split, node, [term.tensor, axes], term.of_request)
        own = (*sizes[:axis], part.size, *sizes[axis + 1 :])
        parts.append(Part(part.size, (Term(new, term.of_request, own),)))
    return Assembled(sizes, axis, tuple(parts))


@_rule("Reshape", "ExpandDims", "Squeeze")
def _reshaped(split: Splitter, node: Node) -> Assembled | None:
    """Of parts side by side: each is reshaped by itself, if no element changes its part."""
    value = split.assembled(node.input(0).tensor)
    sizes = split.sizes(node.output().tensor)
    if sizes is None or value is None or not _has_request(value):
        return None
    if any(t.sizes != _part_sizes(value, p) for p in value.parts for t in p.terms):
        return None
    fact = split.fact(node.input(0).tensor)
    if fact.kind is not Kind.ROWS or fact.factor != split.fact(node.output().tensor).factor:
        return None
    axis, ratio = (0, (1, 1)) if len(value.parts) == 1 else _new_axis(value, sizes)
    if axis is None:
        return None
    up, down = ratio
    dtype, parts = split.dtype(node.input(0).tensor), []
    for part in value.parts:
        if part.size * up % down:
            return None
        size = part.size * up // down
        own = sizes if len(value.parts) == 1 else (*sizes[:axis], size, *sizes[axis + 1 :])
        terms = tuple(
            Term(split.writer.reshape(node.name, t.tensor, own, dtype), t.of_request, own)
            for t in part.terms
        )
        parts.append(Part(size, terms))
    return Assembled(sizes, axis, tuple(parts))


def _new_axis(value: Assembled, sizes: Sizes) -> tuple[int | None, tuple[int, int]]:
    """Finds the axis along which parts lie after a reshape, and how their sizes change.

    Parts lie behind each other in each block of what is in front of their axis; so they do along
    another axis with the same sizes in front of it.
    """
    if ROWS not in value.sizes[: value.axis]:
        return None, (1, 1)
    before = _known(value.sizes[: value.axis])
    behind = math.prod(value.sizes[value.axis + 1 :])
    for axis in range(1, len(sizes)):
        if ROWS in sizes[:axis] and _known(sizes[:axis]) == before and sizes[axis] != 1:
            return axis, (behind, math.prod(sizes[axis + 1 :]))
    return None, (1, 1)


def _known(sizes: Sequence[int]) -> int:
    """The product of sizes without that of the rows."""
    return math.prod(size for size in sizes if size != ROWS)
