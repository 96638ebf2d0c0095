"""Products with weights, of which each side has its rows, and of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from fusion.passes.analysis.rows.facts import Side
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node
from fusion.passes.requests.meetings.registry import applied, rule, sum_of
from fusion.passes.requests.new_graph import NewGraph
from fusion.passes.requests.values import Assembled, Sizes, Term, plain

#: Fewer columns of a request are repeated in front of a product: another product costs more.
MIN_COLUMNS = 16
#: For so many runs of rows of weights a request has a product each.
MAX_RUNS = 4


@rule("MatMul")
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
    return sum_of(value, sizes, terms)


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
        products.append(applied(graph, node, [flat, rows], of_request))
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


@rule("BatchMatMulV2", "BatchMatMul")
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
