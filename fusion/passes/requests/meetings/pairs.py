"""Products of pairs of vectors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node
from fusion.passes.requests.meetings.registry import rule
from fusion.passes.requests.new_graph import NewGraph
from fusion.passes.requests.values import ROWS, Assembled, Part, Term


@rule("GatherV2")
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
