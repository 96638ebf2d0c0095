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

from tensorflow.core.framework import types_pb2

from fusion.passes.analysis.rows.elementwise import BROADCAST, UNARY
from fusion.passes.analysis.rows.facts import Side
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node
from fusion.passes.requests.bits import depends_on_position
from fusion.passes.requests.new_graph import NewGraph
from fusion.passes.requests.values import ROWS, Assembled, Part, Sizes, Term, joined_sizes, plain

Rule = Callable[[NewGraph, Node], Assembled | None]

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


def _is_split(value: Assembled | None) -> bool:
    """Whether a tensor has parts of its own."""
    return value is not None and not value.is_plain


@_rule("ConcatV2")
def _concat(graph: NewGraph, node: Node) -> Assembled | None:
    values = [graph.assembled(value.tensor) for value in node.inputs[:-1]]
    sizes = graph.sizes(node.output().tensor)
    if sizes is None or not any(map(_is_split, values)):
        return None
    axis = node.input(node.input_count - 1).item % len(sizes)
    parts, before = list[Part](), 0
    in_order = all(value is None or value.is_in_order for value in values)
    for value in values:
        if value is None or (len(value.parts) > 1 and value.axis != axis):
            return None
        own = value.parts
        if len(own) == 1:
            own = (replace(own[0], size=value.sizes[axis]),)
        parts += own if in_order else _placed(own, before)
        before += value.sizes[axis]
    return Assembled(sizes, axis, tuple(parts), _factor(graph, node))


@_rule("Pack")
def _packed(graph: NewGraph, node: Node) -> Assembled | None:
    """Of tensors that are there: a part for each run of those of one side."""
    values = [graph.assembled(value.tensor) for value in node.inputs]
    sizes = graph.sizes(node.output().tensor)
    if sizes is None or not any(map(_is_split, values)):
        return None
    axis = node.int_attr("axis") % len(sizes)
    runs: list[list[Term]] = []
    for value in values:
        if value is None or len(value.terms) != 1 or not value.is_whole:
            return None
        (term,) = value.terms
        if runs and runs[-1][0].of_request is term.of_request:
            runs[-1].append(term)
        else:
            runs.append([term])
    parts = []
    for run in runs:
        own, tensors = (*sizes[:axis], len(run), *sizes[axis + 1 :]), [term.tensor for term in run]
        new = _stacked(graph, node, tensors, axis, _side(run[0]))
        parts.append(Part(len(run), (Term(new, run[0].of_request, own),)))
    return Assembled(sizes, axis, tuple(parts), _factor(graph, node))


def _stacked(
    graph: NewGraph, node: Node, tensors: Sequence[Tensor], axis: int, side: str
) -> Tensor:
    """Writes tensors along a new axis.

    One alone without a Pack: TensorFlow's optimizer ties that to the op in front of it, and then
    fuses no bias into a product.
    """
    write, dtype, name = graph.writer, graph.dtype(node.output().tensor), f"{node.name}/{side}"
    if len(tensors) > 1:
        attrs = {"N": len(tensors), "axis": axis}
        return write.add(name, "Pack", tensors, {"T": dtype}, attrs)
    inputs, types = (*tensors, write.constant(axis)), {"T": dtype, "Tdim": types_pb2.DT_INT32}
    return write.add(name, "ExpandDims", inputs, types)


def _side(term: Term) -> str:
    return "request" if term.of_request else "candidates"


def _placed(parts: Sequence[Part], before: int) -> list[Part]:
    """Returns parts whose elements have places, behind others."""
    placed, start = [], before
    for part in parts:
        places = [before + k for k in part.places] or range(start, start + part.size)
        placed.append(replace(part, places=tuple(places)))
        start += part.size
    return placed


def _factor(graph: NewGraph, node: Node) -> int:
    """How many elements of the axis of rows each row of a node's result has."""
    return graph.fact(node.output().tensor).factor


def _sum_of(value: Assembled, sizes: Sizes, terms: Sequence[Term]) -> Assembled:
    """Returns a sum of tensors with the rows of another one."""
    return Assembled(sizes, 0, (Part(0, tuple(terms)),), value.factor, value.is_flat)


def _each_term(value: Assembled, compute: Callable[[Term], Term], sizes: Sizes) -> Assembled:
    """Returns what comes of each term by itself."""
    parts = [
        replace(part, terms=tuple(compute(term) for term in part.terms)) for part in value.parts
    ]
    return replace(value, sizes=sizes, parts=tuple(parts))


def _applied(graph: NewGraph, node: Node, inputs: Sequence[Tensor], of_request: bool) -> Tensor:
    """Writes a copy of a node with other operands."""
    write = graph.writer
    name = write.free_name(f"{node.name}/{'request' if of_request else 'candidates'}")
    return Tensor(write.copy(node.view.nodes[node.name], name, inputs, ()))


@_rule(*UNARY)
def _unary(graph: NewGraph, node: Node) -> Assembled | None:
    """Of parts side by side; of sums only where the op is linear."""
    value = graph.assembled(node.input(0).tensor)
    sizes = graph.sizes(node.output().tensor)
    if sizes is None or value is None or value.is_plain:
        return None
    if node.op in ("EnsureShape", "Bitcast") or (graph.exact and depends_on_position(node)):
        return None
    if node.op not in ("Identity", "StopGradient", "PreventGradient", "Snapshot", "Neg"):
        if len(value.parts) == 1 and len(value.terms) > 1:
            return None
        value = _without_sums(graph, value, node.input(0).tensor)
    value = _neighbours_joined(graph, value, node.input(0).tensor)

    def compute(term: Term) -> Term:
        return replace(term, tensor=_applied(graph, node, [term.tensor], term.of_request))

    return _each_term(value, compute, sizes)


def _neighbours_joined(graph: NewGraph, value: Assembled, like: Tensor) -> Assembled:
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


def _without_sums(graph: NewGraph, value: Assembled, like: Tensor) -> Assembled:
    """Adds up what is added up in parts side by side."""
    parts = []
    for part in value.parts:
        terms = part.terms
        if len(terms) > 1:
            whole = graph.part_of_candidates(value, part, like)
            terms = (Term(whole, False, value.part_sizes(part)),)
        parts.append(replace(part, terms=terms))
    return replace(value, parts=tuple(parts))


@_rule("BroadcastTo", "Tile")
def _broadcast(graph: NewGraph, node: Node) -> Assembled | None:
    """Of a tensor along axes of one element: it stays as it is."""
    value, sizes = graph.assembled(node.input(0).tensor), graph.sizes(node.output().tensor)
    if value is None or sizes is None or len(value.parts) > 1 or len(sizes) != len(value.sizes):
        return None
    if any(own not in (1, size) for own, size in zip(value.sizes, sizes, strict=True)):
        return None
    return replace(value, sizes=sizes)


@_rule("AddV2", "Add", "Sub")
def _added(graph: NewGraph, node: Node) -> Assembled | None:
    sizes = graph.sizes(node.output().tensor)
    operands = [value.tensor for value in node.inputs]
    constants = [k for k, tensor in enumerate(operands) if not graph.fact(tensor).has_rows]
    is_float = graph.dtype(node.output().tensor) in _FLOATS
    if sizes is None or graph.exact or len(constants) > 1 or not is_float:
        return _small_operands(graph, node, sizes)
    values = [graph.assembled(one) for k, one in enumerate(operands) if k not in constants]
    if any(value is None or not value.terms or len(value.sizes) != len(sizes) for value in values):
        return _small_operands(graph, node, sizes)
    known = [value for value in values if value is not None]
    if not any(value.has_request for value in known):
        return _small_operands(graph, node, sizes)
    if constants:
        return _with_constant(graph, node, replace(known[0], sizes=sizes), constants[0])
    terms = [*known[0].terms]
    for value, operand in zip(known[1:], operands[1:], strict=True):
        negates = node.op == "Sub"
        terms += [_negative(graph, t, operand) if negates else t for t in value.terms]
    return _sum_of(known[0], sizes, _merged(graph, node, terms))


def _small_operands(graph: NewGraph, node: Node, sizes: Sizes | None) -> Assembled | None:
    """Broadcasts what is the same along an axis, or for all candidates, within the op."""
    if sizes is None:
        return None
    operands, own = list[Tensor](), list[Sizes]()
    is_smaller = False
    for operand in node.inputs:
        if not graph.fact(operand.tensor).has_rows:
            operands.append(graph.on(operand.tensor, Side.NEITHER))
            continue
        value = graph.assembled(operand.tensor)
        if value is None or len(value.sizes) != len(sizes) or len(value.terms) != 1:
            return None
        (term,), tensor = value.terms, value.terms[0].tensor
        term_sizes = term.sizes
        if term.of_request:
            if not graph.is_one_request or value.factor != 1:
                tensor = graph.of_candidates(operand.tensor)
                term_sizes = value.sizes
            else:
                tensor = graph.of_one_request(tensor, term.sizes, (1, 1), operand.tensor)
                term_sizes = tuple(1 if size == ROWS else size for size in term.sizes)
        is_smaller |= term_sizes != value.sizes
        operands.append(tensor)
        own.append(term_sizes)
    if not is_smaller or not own or joined_sizes(own) != sizes:
        return None
    new = Term(_applied(graph, node, operands, False), False, sizes)
    return plain(new, _factor(graph, node))


def _negative(graph: NewGraph, term: Term, like: Tensor) -> Term:
    name, types = f"{term.tensor.node}/negative", {"T": graph.dtype(like)}
    return replace(term, tensor=graph.writer.add(name, "Neg", [term.tensor], types))


def _merged(graph: NewGraph, node: Node, terms: Sequence[Term]) -> list[Term]:
    """Adds up terms of one side and of equal sizes."""
    merged: dict[tuple[bool, Sizes], list[Term]] = {}
    for term in terms:
        merged.setdefault((term.of_request, term.sizes), []).append(term)
    like = node.output().tensor
    return [replace(same[0], tensor=graph.added_up(same, like)[0]) for same in merged.values()]


def _with_constant(graph: NewGraph, node: Node, value: Assembled, index: int) -> Assembled | None:
    """Adds a constant to the smallest term that it does not make larger."""
    shape = node.input(index).shape
    if shape is None or None in shape or (node.op == "Sub" and index == 0):
        return None
    for term in sorted(value.terms, key=lambda term: not term.of_request):
        if _is_below(shape, term.sizes):
            operands = [term.tensor, graph.on(node.input(index).tensor, Side.NEITHER)]
            operands = operands if index else operands[::-1]
            new = replace(term, tensor=_applied(graph, node, operands, term.of_request))
            terms = [new if one is term else one for one in value.terms]
            return _sum_of(value, value.sizes, terms)
    return None


def _is_below(shape: Sequence[int | None], sizes: Sizes) -> bool:
    """Whether a constant of this shape is broadcast to these sizes."""
    if len(shape) > len(sizes):
        return False
    behind = sizes[len(sizes) - len(shape) :]
    return all(own in (1, size) for own, size in zip(shape, behind, strict=True))


@_rule("BiasAdd")
def _biased(graph: NewGraph, node: Node) -> Assembled | None:
    value = graph.assembled(node.input(0).tensor, may_be_flat=True)
    if graph.exact or value is None or value.is_plain or not value.terms:
        return None
    if node.text_attr("data_format") == "NCHW" or not value.has_request:
        return None
    return _with_constant(graph, node, value, 1)


@_rule(*(BROADCAST - {"AddV2", "Add", "Sub", "ClipByValue"}))
def _by_parts(graph: NewGraph, node: Node) -> Assembled | None:
    """Of two tensors with parts of equal sizes side by side, or of one and a number."""
    sizes = graph.sizes(node.output().tensor)
    if sizes is None or node.input_count != 2:
        return _small_operands(graph, node, sizes)
    left, right = (operand.tensor for operand in node.inputs)
    if graph.exact and depends_on_position(node):
        return _small_operands(graph, node, sizes)
    facts = [graph.fact(tensor) for tensor in (left, right)]
    if not facts[1].has_rows:
        return _by_number(graph, node, left, 0, sizes)
    if not facts[0].has_rows:
        return _by_number(graph, node, right, 1, sizes)
    values = [graph.assembled(tensor) for tensor in (left, right)]
    if any(value is None or value.sizes != sizes for value in values):
        return _small_operands(graph, node, sizes)
    one, other = (value for value in values if value is not None)
    joined = [
        _neighbours_joined(graph, one, left),
        _neighbours_joined(graph, other, right),
    ]
    if len({tuple(part.size for part in value.parts) for value in joined}) == 1:
        one, other = joined
    layouts = [[(part.size, part.places) for part in value.parts] for value in (one, other)]
    if len(one.parts) < 2 or layouts[0] != layouts[1]:
        return _small_operands(graph, node, sizes)
    if one.axis != other.axis:
        return None
    parts = []
    for a, b in zip(one.parts, other.parts, strict=True):
        of_request = a.of_request and b.of_request
        sides = ((one, a, left), (other, b, right))
        operands = [
            graph.request_part(*side) if of_request else graph.part_of_candidates(*side)
            for side in sides
        ]
        new = _applied(graph, node, operands, of_request)
        parts.append(replace(a, terms=(Term(new, of_request, one.part_sizes(a)),)))
    return Assembled(sizes, one.axis, tuple(parts), one.factor)


def _by_number(
    graph: NewGraph, node: Node, tensor: Tensor, at: int, sizes: Sizes
) -> Assembled | None:
    value = graph.assembled(tensor)
    number = node.input(1 - at)
    if value is None or value.is_plain or number.shape != ():
        return None
    is_sum = any(len(part.terms) > 1 for part in value.parts)
    if is_sum and (graph.exact or node.op not in ("Mul", "RealDiv") or at):
        return None
    constant = graph.on(number.tensor, Side.NEITHER)
    value = _neighbours_joined(graph, value, tensor)

    def compute(term: Term) -> Term:
        operands = [term.tensor, constant] if at == 0 else [constant, term.tensor]
        return replace(term, tensor=_applied(graph, node, operands, term.of_request))

    return _each_term(value, compute, sizes)


@_rule("MatMul")
def _product(graph: NewGraph, node: Node) -> Assembled | None:
    left, weights = node.inputs
    value = graph.assembled(left.tensor, may_be_flat=True)
    shape = weights.shape
    if graph.exact or value is None or value.is_plain or shape is None or None in shape:
        return None
    if node.flag_attr("transpose_a") or node.flag_attr("transpose_b") or not value.has_request:
        return None
    if value.row_axis or (len(value.parts) > 1 and value.axis != len(value.sizes) - 1):
        return None
    if not value.is_flat and len(value.sizes) != 2:
        return None
    return _split_product(graph, node, value, int(shape[1] or 0))


Columns = list[tuple[Sequence[int], Tensor]]
"""The columns of each part, and the part."""


def _split_product(graph: NewGraph, node: Node, value: Assembled, width: int) -> Assembled | None:
    """Multiplies what is of requests, and what is of candidates, by their rows of the weights."""
    last = value.sizes[-1]
    parts = value.parts if len(value.parts) > 1 else (replace(value.parts[0], size=last),)
    groups: dict[tuple[bool, Sizes], Columns] = {}
    for start, part in zip([0, *accumulate(part.size for part in parts)], parts, strict=False):
        for term in part.terms:
            if term.sizes[-1] != part.size:
                return None
            key = (term.of_request, term.sizes[:-1])
            places = part.places or range(start, start + part.size)
            groups.setdefault(key, []).append((places, term.tensor))
    sizes = (*value.sizes[:-1], width)
    of_request = sum(len(places) for (own, _), c in groups.items() if own for places, _ in c)
    if of_request < MIN_COLUMNS and len(parts) > 1:
        return None
    terms = []
    for (own, lead), columns in groups.items():
        total = _products(graph, node, columns, lead, width, own)
        terms.append(Term(total, own, (*lead, width)))
    return _sum_of(value, sizes, terms)


def _products(
    graph: NewGraph, node: Node, columns: Columns, lead: Sizes, width: int, of_request: bool
) -> Tensor:
    """Multiplies columns by their rows of the weights.

    Rows that follow each other are read where they are. Of candidates, others are copied side by
    side for one product; of requests, which are few, each run of rows has a product.
    """
    write, dtype = graph.writer, graph.dtype(node.input(0).tensor)
    weights = graph.on(node.input(1).tensor, Side.NEITHER)
    name = f"{node.name}/{'request' if of_request else 'candidates'}"
    whole, axis = (node.input(1).shape or (None,))[0], len(lead)
    runs = _runs(columns)
    are_slices = all(run[-1] - run[0] + 1 == len(run) for run, _ in runs)
    if are_slices and len(runs) <= MAX_RUNS:
        slices = [
            weights
            if len(run) == whole
            else write.rows(name, weights, run[0], len(run), width, dtype)
            for run, _ in runs
        ]
        operands = [
            (len(run), write.concat(name, tensors, axis, dtype), rows)
            for (run, tensors), rows in zip(runs, slices, strict=True)
        ]
        if not of_request and len(operands) > 1:
            joined = write.concat(name, [left for _, left, _ in operands], axis, dtype)
            total = sum(size for size, *_ in operands)
            operands = [(total, joined, write.concat(name, slices, 0, dtype))]
    else:
        places = write.constant([place for run, _ in runs for place in run], "int64")
        tensors = [tensor for _, own in runs for tensor in own]
        joined = write.concat(name, tensors, axis, dtype)
        total = sum(len(run) for run, _ in runs)
        operands = [(total, joined, write.gather(name, weights, places, 0, dtype))]
    products = []
    for size, left, rows in operands:
        flat = left if axis == 1 else write.reshape(name, left, [-1, size], dtype)
        products.append(_applied(graph, node, [flat, rows], of_request))
    result = write.sum_of(name, products, dtype)
    return result if axis == 1 else write.reshape(name, result, (*lead, width), dtype)


def _runs(columns: Columns) -> list[tuple[list[int], list[Tensor]]]:
    """Joins parts whose columns follow each other."""
    runs: list[tuple[list[int], list[Tensor]]] = []
    for places, tensor in columns:
        if runs and runs[-1][0][-1] + 1 == places[0]:
            runs[-1] = ([*runs[-1][0], *places], [*runs[-1][1], tensor])
        else:
            runs.append(([*places], [tensor]))
    return runs


@_rule("BatchMatMulV2", "BatchMatMul")
def _weighted_rows(graph: NewGraph, node: Node) -> Assembled | None:
    """A matrix of one request, multiplied from the left by one of each candidate: one product."""
    left, right = (operand.tensor for operand in node.inputs)
    sizes = graph.sizes(node.output().tensor)
    values = [graph.assembled(tensor) for tensor in (left, right)]
    if graph.exact or not graph.is_one_request or sizes is None or None in values:
        return None
    rows, matrix = (value for value in values if value is not None)
    is_matrix = len(matrix.terms) == 1 and matrix.terms[0].of_request and matrix.is_whole
    flags = [node.flag_attr("adj_x"), node.flag_attr("adj_y")]
    if not is_matrix or rows.has_request or flags[0] or len(sizes) != 3:
        return None
    if (rows.row_axis, matrix.row_axis, rows.factor, matrix.factor) != (0, 0, 1, 1):
        return None
    write, dtype, inner = graph.writer, graph.dtype(left), rows.sizes[-1]
    name = f"{node.name}/candidates"
    flat = write.reshape(name, graph.of_candidates(left), [-1, inner], dtype)
    own = write.reshape(name, matrix.terms[0].tensor, matrix.sizes[1:], dtype)
    attrs = {"transpose_a": False, "transpose_b": flags[1]}
    product = write.add(name, "MatMul", (flat, own), {"T": dtype}, attrs)
    new = write.reshape(name, product, sizes, dtype)
    return plain(Term(new, False, sizes), 1)


@_rule("GatherV2")
def _pairs(graph: NewGraph, node: Node) -> Assembled | None:
    """Products of pairs of vectors, as DLRM takes them of all: those of a request once.

    The vectors are [rows, F, D], their products [rows, F, F], of which some are taken as columns.
    """
    sizes, picked = graph.sizes(node.output().tensor), node.input(1).constant
    flat = node.input(0).producer
    if sizes is None or picked is None or picked.ndim != 1 or flat.op != "Reshape":
        return None
    product = flat.input(0).producer
    if node.input(2).scalar not in (1, -1) or product.op not in ("BatchMatMulV2", "BatchMatMul"):
        return None
    left, right = (operand.resolved.tensor for operand in product.inputs)
    value = graph.assembled(left)
    if left != right or not product.flag_attr("adj_y") or product.flag_attr("adj_x"):
        return None
    if graph.exact or value is None or len(value.parts) < 2 or value.axis != 1:
        return None
    fields = value.sizes[1]
    is_plain = value.is_whole and value.is_in_order and len(value.sizes) == 3
    if not is_plain or any(len(part.terms) > 1 for part in value.parts) or value.row_axis:
        return None
    if graph.sizes(flat.output().tensor) != (ROWS, fields * fields) or value.factor != 1:
        return None
    wanted = [divmod(int(pair), fields) for pair in picked]
    return _products_of_pairs(graph, node, value, wanted, left)


def _products_of_pairs(
    graph: NewGraph, node: Node, value: Assembled, wanted: Sequence[tuple[int, int]], like: Tensor
) -> Assembled | None:
    write, dtype, name = graph.writer, graph.dtype(like), node.name
    starts = [0, *accumulate(part.size for part in value.parts)]
    numbers: dict[bool, list[int]] = {True: [], False: []}
    tensors: dict[bool, list[Tensor]] = {True: [], False: []}
    for start, part in zip(starts, value.parts, strict=False):
        numbers[part.of_request] += range(start, start + part.size)
        tensors[part.of_request].append(part.terms[0].tensor)
    inner = value.sizes[2]
    request, candidates = (write.concat(name, tensors[own], 1, dtype) for own in (True, False))
    repeated = request
    if not graph.is_one_request:
        own_sizes = (ROWS, len(numbers[True]), inner)
        repeated = graph.repeated(request, own_sizes, (1, 1), like)
    sides = {
        (True, True): (request, request),
        (False, True): (candidates, repeated),
        (False, False): (candidates, candidates),
    }
    place = {n: (own, k) for own, of_side in numbers.items() for k, n in enumerate(of_side)}
    blocks: dict[tuple[bool, bool], list[tuple[int, int]]] = {key: [] for key in sides}
    for column, (a, b) in enumerate(wanted):
        first, second = sorted((place[a], place[b]))
        blocks[first[0], second[0]].append((first[1] * len(numbers[second[0]]) + second[1], column))
    parts = []
    for key, columns in blocks.items():
        if not columns:
            continue
        width = len(numbers[key[1]])
        if key == (False, True) and graph.is_one_request:
            rows = write.reshape(name, candidates, [-1, inner], dtype)
            one = graph.of_one_request(request, (ROWS, width, inner), (1, 1), like)
            matrix = write.reshape(name, one, [width, inner], dtype)
            attrs = {"transpose_a": False, "transpose_b": True}
            product = write.add(name, "MatMul", (rows, matrix), {"T": dtype}, attrs)
        else:
            attrs = {"adj_x": False, "adj_y": True}
            product = write.add(name, "BatchMatMulV2", sides[key], {"T": dtype}, attrs)
        flat = write.reshape(name, product, [-1, len(numbers[key[0]]) * width], dtype)
        pairs = [pair for pair, _ in sorted(columns)]
        taken = flat
        if pairs != [*range(len(numbers[key[0]]) * width)]:
            taken = write.gather(name, flat, write.constant(pairs, "int64"), 1, dtype)
        of_request = key == (True, True)
        term = Term(taken, of_request, (ROWS, len(columns)))
        places = tuple(column for _, column in sorted(columns))
        parts.append(Part(len(columns), (term,), places))
    return Assembled((ROWS, len(wanted)), 1, tuple(parts))


@_rule("Sum")
def _summed(graph: NewGraph, node: Node) -> Assembled | None:
    value = graph.assembled(node.input(0).tensor)
    sizes = graph.sizes(node.output().tensor)
    axes = node.input(1).constant
    if sizes is None or value is None or len(value.parts) == 1 or axes is None:
        return None
    if not value.is_whole or any(len(part.terms) > 1 for part in value.parts):
        return None
    rank = len(value.sizes)
    over = sorted({int(axis) % rank for axis in axes.reshape(-1)})
    if value.axis not in over:
        return _inner_sums(graph, node, value, over, sizes)
    if graph.exact:
        return None
    write, dtype = graph.writer, graph.dtype(node.input(0).tensor)
    own_axes = graph.on(node.input(1).tensor, Side.NEITHER)
    terms = []
    for of_request in (True, False):
        own = [p.terms[0].tensor for p in value.parts if p.of_request is of_request]
        if own:
            name = f"{node.name}/{'request' if of_request else 'candidates'}"
            joined = write.concat(name, own, value.axis, dtype)
            new = _applied(graph, node, [joined, own_axes], of_request)
            terms.append(Term(new, of_request, sizes))
    return _sum_of(value, sizes, terms)


def _inner_sums(
    graph: NewGraph, node: Node, value: Assembled, over: Sequence[int], sizes: Sizes
) -> Assembled | None:
    """Sums inside of each part."""
    value = _neighbours_joined(graph, value, node.input(0).tensor)
    axes = graph.on(node.input(1).tensor, Side.NEITHER)
    keeps = node.flag_attr("keep_dims")
    axis = value.axis if keeps else value.axis - sum(one < value.axis for one in over)
    parts = []
    for part in value.parts:
        (term,) = part.terms
        new = _applied(graph, node, [term.tensor, axes], term.of_request)
        own = (*sizes[:axis], part.size, *sizes[axis + 1 :])
        parts.append(replace(part, terms=(Term(new, term.of_request, own),)))
    return Assembled(sizes, axis, tuple(parts), value.factor)


@_rule("Reshape", "ExpandDims", "Squeeze")
def _reshaped(graph: NewGraph, node: Node) -> Assembled | None:
    """Of parts side by side: each is reshaped by itself, if no element changes its part."""
    value = graph.assembled(node.input(0).tensor, may_be_flat=True)
    sizes = graph.sizes(node.output().tensor)
    if sizes is None or value is None or value.is_plain:
        return None
    factor = _factor(graph, node)
    if value.is_flat:
        return replace(value, is_flat=False) if sizes == value.sizes else None
    if factor != value.factor:
        return _flattened(value, sizes, factor)
    if not value.is_whole or not value.is_in_order:
        return None
    axis, ratio = (0, (1, 1)) if len(value.parts) == 1 else _new_axis(value, sizes)
    if axis is None:
        return None
    up, down = ratio
    dtype, parts = graph.dtype(node.input(0).tensor), []
    for part in value.parts:
        if part.size * up % down:
            return None
        size = part.size * up // down
        own = sizes if len(value.parts) == 1 else (*sizes[:axis], size, *sizes[axis + 1 :])
        terms = tuple(
            Term(graph.writer.reshape(node.name, t.tensor, own, dtype), t.of_request, own)
            for t in part.terms
        )
        parts.append(Part(size, terms))
    return Assembled(sizes, axis, tuple(parts), factor)


def _flattened(value: Assembled, sizes: Sizes, factor: int) -> Assembled | None:
    """Notes that all axes but the last are one, as in front of a product of three axes."""
    inner, last = value.sizes[1:-1], len(value.sizes) - 1
    is_flat = len(sizes) == 2 and sizes == (ROWS, value.sizes[-1]) and value.factor == 1
    if not is_flat or value.row_axis or factor != math.prod(inner):
        return None
    if len(value.parts) > 1 and value.axis != last:
        return None
    return replace(value, is_flat=True)


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
