"""For each op, along which axis the rows of its result lie; an op without a rule mixes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from fusion.passes.analysis.rows.counts import Count
from fusion.passes.analysis.rows.elementwise import ALIKE, BROADCAST, UNARY
from fusion.passes.analysis.rows.facts import CONSTANT, Fact, Kind, Mixes, Side, joined, rows
from fusion.passes.analysis.rows.operands import Operands, Rule, broadcast

RULES: dict[str, Rule] = {}

_INT32_MAX = 2**31 - 1


def _rule(*ops: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(ops, rule))
        return rule

    return register


@_rule(*UNARY)
def _unary(operands: Operands) -> Fact:
    fact, op = operands.facts[0], operands.node.op
    if fact.kind in (Kind.INDICES, Kind.SPLITS, Kind.ROW_NUMBERS, Kind.SPARSE_SHAPE):
        if op in ("Identity", "Snapshot", "StopGradient", "Cast"):
            return fact
        raise Mixes(f"{op} changes {fact.kind.value}")
    if fact.kind not in (Kind.ROWS, Kind.ENTRIES, Kind.SUMMARY):
        raise Mixes(f"{op} has {fact.kind.value}")
    if op == "EnsureShape" and fact.kind is not Kind.SUMMARY:
        # The graph of sizes has these already: a number of rows would not be the prime.
        size = operands.result_shape()[fact.axis]
        if size is not None and (size % operands.batch or fact.kind is Kind.ENTRIES):
            raise Mixes("EnsureShape says how many rows there are")
    if op == "Bitcast" and len(operands.result_shape()) <= fact.axis:
        raise Mixes("Bitcast joins rows")
    return fact


@_rule("IdentityN")
def _each(operands: Operands) -> Sequence[Fact]:
    return operands.facts


@_rule(*BROADCAST, *ALIKE)
def _broadcast(operands: Operands) -> Fact:
    kinds = {fact.kind for fact in operands.facts} - {Kind.CONSTANT}
    if kinds == {Kind.ENTRIES} or kinds == {Kind.SUMMARY}:
        (kind,) = kinds
        own = {fact for fact in operands.facts if fact.kind is kind}
        if len({fact.side for fact in own}) > 1:
            raise Mixes(f"{operands.node.op} has entries of requests and of candidates")
        if len({fact.source for fact in own}) > 1 and kind is Kind.ENTRIES:
            raise Mixes(f"{operands.node.op} has entries of two tensors")
        if kind is Kind.ENTRIES and any(
            fact.kind is Kind.CONSTANT and operands.rank(index) and operands.shape(index)[0] != 1
            for index, fact in enumerate(operands.facts)
        ):
            raise Mixes(f"{operands.node.op} has an operand for each entry")
        return own.pop()
    return broadcast(operands)


@_rule("Select")
def _select(operands: Operands) -> Fact:
    test = operands.facts[0]
    if operands.rank(0) != 1:
        return broadcast(operands)
    result = broadcast(operands, [1, 2])
    if test.kind is not Kind.ROWS or result.axis or result.layout != test.layout:
        raise Mixes("Select goes over the rows")
    return replace(result, side=joined(operands.facts))


@_rule("BiasAdd", "BiasAddV1")
def _bias(operands: Operands) -> Fact:
    operands.constant(1)
    fact, rank = operands.of_rows(0), operands.rank(0)
    channel = 1 if operands.node.text_attr("data_format") == "NCHW" else rank - 1
    return operands.apart(fact, channel)


@_rule("MatMul")
def _product(operands: Operands) -> Fact:
    if operands.facts[1].has_rows:
        raise Mixes("MatMul multiplies rows with each other")
    fact = operands.of_rows(0)
    if fact.axis != int(operands.node.flag_attr("transpose_a")):
        raise Mixes("MatMul adds up over the rows")
    return fact.moved(0)


@_rule("BatchMatMulV2", "BatchMatMul", "BatchMatMulV3")
def _batched_product(operands: Operands) -> Fact:
    ranks = [operands.rank(0), operands.rank(1)]
    rank = max(ranks)
    places, left = [], operands.facts[0]
    for index, fact in enumerate(operands.facts):
        if fact.kind is Kind.CONSTANT:
            continue
        own = operands.of_rows(index)
        if not own.factor:
            raise Mixes(f"{operands.node.op} has rows of an unknown number of elements")
        places.append((own.axis + rank - ranks[index], own.layout))
    transposed = operands.node.flag_attr("adj_x") or operands.node.flag_attr("transpose_x")
    if len(set(places)) > 1:
        raise Mixes(f"the rows of operands of {operands.node.op} lie along different axes")
    ((axis, (blocks, factor)),) = set(places)
    if axis < rank - 2:
        for index, fact in enumerate(operands.facts):
            at = axis - (rank - ranks[index])
            if fact.kind is Kind.CONSTANT and at >= 0 and operands.shape(index)[at] != 1:
                raise Mixes(f"{operands.node.op} has another matrix for each row")
        return rows(operands.side, axis, factor, blocks)
    is_row = axis == rank - (1 if transposed else 2)
    if left.kind is Kind.ROWS and not operands.facts[1].has_rows and is_row:
        return left.moved(rank - 2)
    raise Mixes(f"{operands.node.op} multiplies rows with each other")


@_rule("Einsum")
def _einsum(operands: Operands) -> Fact:
    equation = operands.node.text_attr("equation").replace(" ", "")
    terms, _, result = equation.partition("->")
    if "." in equation or "->" not in equation:
        raise Mixes(f"Einsum of {equation!r} is not understood")
    letters, layouts = set[str](), set[tuple[int, int]]()
    for index, (term, fact) in enumerate(zip(terms.split(","), operands.facts, strict=True)):
        if fact.kind is not Kind.CONSTANT:
            own = operands.of_rows(index)
            letters.add(term[own.axis])
            layouts.add(own.layout)
    if len(letters) > 1 or len(layouts) > 1:
        raise Mixes("the rows of operands of Einsum are different letters")
    (letter,) = letters
    if result.count(letter) != 1 or any(term.count(letter) > 1 for term in terms.split(",")):
        raise Mixes("Einsum adds up over the rows")
    for index, (term, fact) in enumerate(zip(terms.split(","), operands.facts, strict=True)):
        if fact.kind is not Kind.CONSTANT or letter not in term:
            continue
        if operands.shape(index)[term.index(letter)] != 1:
            raise Mixes("Einsum has another operand for each row")
    ((blocks, factor),) = layouts
    return rows(operands.side, result.index(letter), factor, blocks)


@_rule("Softmax", "LogSoftmax")
def _softmax(operands: Operands) -> Fact:
    return operands.apart(operands.of_rows(0), operands.rank(0) - 1)


@_rule("Sum", "Mean", "Prod", "Max", "Min", "All", "Any", "EuclideanNorm")
def _reduction(operands: Operands) -> Fact:
    operands.constant(1)
    if operands.facts[0].kind in (Kind.ENTRIES, Kind.SUMMARY):
        if operands.node.op in ("Max", "Min", "All", "Any"):
            return Fact(Kind.SUMMARY, operands.facts[0].side)
        raise Mixes(f"{operands.node.op} goes over the entries of all rows")
    fact, rank = operands.of_rows(0), operands.rank(0)
    axes = {axis + rank if axis < 0 else axis for axis in operands.integers(1)}
    if fact.axis in axes:
        if operands.node.op in ("Max", "Min", "All", "Any"):
            return Fact(Kind.SUMMARY, fact.side)
        raise Mixes(f"{operands.node.op} goes over the rows")
    if operands.node.flag_attr("keep_dims"):
        return fact
    return fact.moved(fact.axis - sum(axis < fact.axis for axis in axes))


@_rule("ArgMax", "ArgMin")
def _arg(operands: Operands) -> Fact:
    axis = operands.axis(1, operands.rank(0))
    fact = operands.apart(operands.of_rows(0), axis)
    return fact.moved(fact.axis - (axis < fact.axis))


@_rule("Cumsum", "Cumprod")
def _cumulative(operands: Operands) -> Fact:
    return operands.apart(operands.of_rows(0), operands.axis(1, operands.rank(0)))


@_rule("ReverseV2")
def _reversed(operands: Operands) -> Fact:
    rank = operands.rank(0)
    for axis in operands.integers(1):
        operands.apart(operands.of_rows(0), axis + rank if axis < 0 else axis)
    return operands.of_rows(0)


@_rule("Roll")
def _rolled(operands: Operands) -> Fact:
    operands.constant(1)
    rank = operands.rank(0)
    for axis in operands.integers(2):
        operands.apart(operands.of_rows(0), axis + rank if axis < 0 else axis)
    return operands.of_rows(0)


@_rule("Assert")
def _asserted(operands: Operands) -> Fact:
    if operands.facts[0].kind not in (Kind.CONSTANT, Kind.SUMMARY):
        raise Mixes(f"Assert checks {operands.facts[0].kind.value}")
    return Fact(Kind.SUMMARY, operands.side)


@_rule("TopKV2")
def _top(operands: Operands) -> Fact:
    operands.constant(*range(1, operands.count))
    return operands.apart(operands.of_rows(0), operands.rank(0) - 1)


def _alike(operands: Operands, indices: Iterable[int]) -> Fact:
    """The fact of operands that have their rows along the same axis of one rank."""
    facts = [operands.of_rows(index) for index in indices]
    if len({(fact.axis, fact.layout) for fact in facts}) > 1:
        raise Mixes(f"the rows of operands of {operands.node.op} lie along different axes")
    return replace(facts[0], side=joined(facts))


@_rule("ConcatV2")
def _concat(operands: Operands) -> Fact:
    if operands.facts[0].kind is Kind.SUMMARY:
        raise Mixes("ConcatV2 of what all rows have in common")
    axis = operands.axis(operands.count - 1, operands.rank(0))
    facts = [operands.of_rows(index) for index in range(operands.count - 1)]
    if any(fact.axis != axis for fact in facts):
        return operands.apart(_alike(operands, range(operands.count - 1)), axis)
    # All rows of one operand, then all of the next, as the heads of an attention.
    if len({fact.factor for fact in facts}) > 1 or not facts[0].factor:
        raise Mixes("ConcatV2 goes over the rows")
    return rows(joined(facts), axis, facts[0].factor, sum(fact.blocks for fact in facts))


@_rule("Pack")
def _pack(operands: Operands) -> Fact:
    fact, rank = _alike(operands, range(operands.count)), operands.rank(0)
    axis = operands.node.int_attr("axis")
    axis = axis + rank + 1 if axis < 0 else axis
    return fact.moved(fact.axis + (axis <= fact.axis))


@_rule("Unpack")
def _unpack(operands: Operands) -> Fact:
    axis = operands.node.int_attr("axis")
    axis = axis + operands.rank(0) if axis < 0 else axis
    fact = operands.apart(operands.of_rows(0), axis)
    return fact.moved(fact.axis - (axis < fact.axis))


@_rule("Split")
def _split(operands: Operands) -> Fact:
    fact, count = operands.of_rows(1), operands.node.int_attr("num_split")
    if fact.axis != operands.axis(0, operands.rank(1)):
        return fact
    if not fact.factor or fact.blocks % count:
        raise Mixes("Split goes over the rows")
    return replace(fact, blocks=fact.blocks // count)


@_rule("SplitV")
def _split_by_sizes(operands: Operands) -> Fact:
    operands.constant(1)
    return operands.apart(operands.of_rows(0), operands.axis(2, operands.rank(0)))


@_rule("ExpandDims")
def _expanded(operands: Operands) -> Fact:
    axis = operands.axis(1, operands.rank(0) + 1)
    fact = operands.facts[0]
    if fact.kind is Kind.SUMMARY:
        return fact
    fact = operands.of_rows(0)
    return fact.moved(fact.axis + (axis <= fact.axis))


@_rule("Squeeze")
def _squeezed(operands: Operands) -> Fact:
    fact, rank = operands.of_rows(0), operands.rank(0)
    attr = operands.node.attr("squeeze_dims")
    dims = [] if attr is None else [int(axis) for axis in attr.list.i]
    if not dims:
        raise Mixes("Squeeze without axes drops that of the rows where there is one row")
    axes = [axis + rank if axis < 0 else axis for axis in dims]
    for axis in axes:
        operands.apart(fact, axis)
    return fact.moved(fact.axis - sum(axis < fact.axis for axis in axes))


@_rule("Transpose")
def _transposed(operands: Operands) -> Fact:
    fact, order = operands.of_rows(0), operands.integers(1)
    return fact.moved(order.index(fact.axis))


@_rule("Reshape")
def _reshaped(operands: Operands) -> Fact:
    if operands.facts[1].kind not in (Kind.CONSTANT, Kind.SIZES):
        raise Mixes("Reshape to a shape that depends on values")
    if len(operands.counts(1)) > 1:
        raise Mixes("Reshape to a shape of two numbers of rows")
    fact, shape = operands.of_rows(0), operands.shape(0)
    before = shape[: fact.axis]
    if None in before:
        raise Mixes("Reshape of unknown sizes in front of the rows")
    prefix = math.prod(size or 0 for size in before) * fact.blocks
    result = operands.result_shape()
    found = operands.row_axis(result, prefix)
    if found is None:
        raise Mixes("Reshape does not keep the rows apart")
    axis, factor, blocks = found
    if factor == 0 and not _divides(result[axis + 1 :], shape[fact.axis + 1 :]):
        raise Mixes("Reshape is not known to keep the rows apart")
    return rows(fact.side, axis, factor, blocks)


def _divides(inner: Sequence[int | None], whole: Sequence[int | None]) -> bool:
    """Whether a row has a whole number of parts of these sizes."""
    if None in inner:
        return False
    known = math.prod(size for size in whole if size is not None)
    return known % math.prod(size or 0 for size in inner) == 0 if known else False


@_rule("Fill")
def _filled(operands: Operands) -> Fact:
    operands.constant(1)
    return _new_rows(operands, 0)


def _new_rows(operands: Operands, sizes: int) -> Fact:
    """The fact of a tensor that has equal rows, as many as an operand of sizes says."""
    like = _measured(operands, sizes) if operands.node.op != "Tile" else None
    if like is not None and like.factor:
        return replace(like, side=Side.NEITHER)
    shape = operands.result_shape()
    found = [axis for axis, size in enumerate(shape) if size and size % operands.batch == 0]
    if len(found) != 1 or None in shape or operands.counts(sizes) != found:
        raise Mixes(f"{operands.node.op} makes a tensor whose rows are not known")
    return rows(Side.NEITHER, found[0], (shape[found[0]] or 0) // operands.batch)


def _measured(operands: Operands, index: int) -> Fact | None:
    """The fact of the tensor with rows of which an operand is the shape."""
    producer = operands.node.input(index).producer
    if producer.op != "Shape":
        return None
    fact = operands.known.get(producer.input(0).tensor)
    return fact if fact is not None and fact.kind is Kind.ROWS else None


@_rule("BroadcastTo")
def _broadcast_to(operands: Operands) -> Fact:
    if operands.facts[1].kind not in (Kind.CONSTANT, Kind.SIZES):
        raise Mixes("BroadcastTo to a shape that depends on values")
    fact = operands.facts[0]
    if fact.kind is Kind.CONSTANT:
        return _new_rows(operands, 1)
    fact, shape, result = operands.of_rows(0), operands.shape(0), operands.result_shape()
    axis = fact.axis + len(result) - len(shape)
    if result[axis] is None or result[axis] != shape[fact.axis] or {*operands.counts(1)} - {axis}:
        raise Mixes("BroadcastTo makes more rows")
    return fact.moved(axis)


@_rule("Tile")
def _tiled(operands: Operands) -> Fact:
    fact = operands.facts[0]
    if operands.facts[1].kind not in (Kind.CONSTANT, Kind.SIZES):
        raise Mixes("Tile by numbers that depend on values")
    if fact.kind is Kind.CONSTANT:
        return _new_rows(operands, 1)
    fact, size = operands.of_rows(0), operands.result_shape()[fact.axis]
    own = operands.shape(0)[fact.axis]
    if operands.counts(1) or not fact.factor or not size or not own:
        raise Mixes("Tile makes more rows")
    return replace(fact, blocks=fact.blocks * (size // own))


@_rule("OneHot")
def _one_hot(operands: Operands) -> Fact:
    operands.constant(1, 2, 3)
    fact, rank = operands.of_rows(0), operands.rank(0)
    axis = operands.node.int_attr("axis")
    axis = rank if axis < 0 else axis
    return fact.moved(fact.axis + (axis <= fact.axis))


@_rule("GatherV2", "Gather")
def _gathered(operands: Operands) -> Fact:
    has_axis = operands.node.op == "GatherV2"
    axis = operands.axis(2, operands.rank(0)) if has_axis else 0
    batched = operands.node.int_attr("batch_dims") if has_axis else 0
    table, ids = operands.facts[0], operands.facts[1]
    if ids.kind is Kind.ENTRIES and table.kind is Kind.CONSTANT and not axis:
        return ids
    if table.kind is Kind.CONSTANT:
        fact = operands.of_rows(1)
        if batched:
            raise Mixes(f"{operands.node.op} has another table for each row")
        return fact.moved(fact.axis + axis)
    own = operands.of_rows(0)
    if ids.kind is Kind.CONSTANT:
        operands.apart(own, axis)
        if batched:
            raise Mixes(f"{operands.node.op} has other ids for each row")
        return own.moved(own.axis + (operands.rank(1) - 1 if axis < own.axis else 0))
    other = operands.of_rows(1)
    batched = batched + operands.rank(1) if batched < 0 else batched
    if own.axis != other.axis or own.axis >= batched or (own.factor, other.factor) != (1, 1):
        raise Mixes(f"{operands.node.op} looks up rows in each other")
    if own.blocks != other.blocks:
        raise Mixes(f"{operands.node.op} has rows in other blocks")
    return replace(own, side=operands.side)


@_rule("ResourceGather")
def _resource_gathered(operands: Operands) -> Fact:
    operands.constant(0)
    if operands.node.int_attr("batch_dims"):
        raise Mixes("ResourceGather has another table for each row")
    return operands.facts[1] if operands.facts[1].kind is Kind.ENTRIES else operands.of_rows(1)


@_rule("GatherNd")
def _gathered_elements(operands: Operands) -> Fact:
    table = operands.facts[0]
    depth = operands.shape(1)[-1]
    if depth is None:
        raise Mixes("GatherNd has indices of unknown depth")
    if table.kind is Kind.CONSTANT:
        return operands.apart(operands.of_rows(1), operands.rank(1) - 1)
    if operands.facts[1].kind is Kind.INDICES:
        fact = operands.of_rows(0)
        if fact.axis or fact.layout != (1, 1) or fact.side is not operands.facts[1].side:
            raise Mixes("GatherNd picks rows")
        return Fact(Kind.ENTRIES, fact.side, source=operands.facts[1].source)
    operands.constant(1)
    fact = operands.of_rows(0)
    if fact.axis < depth:
        raise Mixes("GatherNd picks rows")
    return fact.moved(fact.axis - depth + operands.rank(1) - 1)


@_rule("LookupTableFindV2", "LookupTableFind")
def _looked_up(operands: Operands) -> Fact:
    operands.constant(0, 2)
    return operands.facts[1] if operands.facts[1].kind is Kind.ENTRIES else operands.of_rows(1)


@_rule("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def _normalised(operands: Operands) -> Sequence[Fact]:
    fact = operands.of_rows(0)
    if operands.node.flag_attr("is_training"):
        if fact.axis != 1 or operands.node.text_attr("data_format") != "NCHW":
            raise Mixes("the moments are of all rows of the batch: it is in training mode")
        return _normalised_each(operands)
    operands.constant(1, 2, 3, 4)
    if fact.axis:
        raise Mixes(f"{operands.node.op} goes over the rows")
    return [fact, *([CONSTANT] * 5)]


def _normalised_each(operands: Operands) -> Sequence[Fact]:
    """The facts of a layer normalisation, for which the rows are channels."""
    operands.constant(3, 4)
    if {operands.shape(3), operands.shape(4)} != {(0,)}:
        raise Mixes("the moments are of batches before")
    fact = operands.facts[0]
    for index in (1, 2):
        of_rows = operands.of_rows(index)
        if of_rows.axis or of_rows.layout != fact.layout:
            raise Mixes(f"the rows of operands of {operands.node.op} lie along different axes")
    each = rows(operands.side, 0, fact.factor, fact.blocks)
    return [replace(fact, side=operands.side), *([each] * 5)]


@_rule("MatrixBandPart")
def _band(operands: Operands) -> Fact:
    operands.constant(1, 2)
    return _in_front(operands, 2)


@_rule("DenseBincount")
def _counted(operands: Operands) -> Fact:
    ids, size, weights = operands.facts
    if size.has_rows and (size.kind is not Kind.SUMMARY or size.side is not ids.side):
        raise Mixes("DenseBincount has as many columns as rows say")
    if operands.rank(0) != 2 or operands.of_rows(0).axis or not ids.factor:
        raise Mixes("DenseBincount counts ids of all rows")
    if not weights.has_rows and 0 in operands.shape(2):
        return ids
    return _alike(operands, (0, 2))


@_rule("SparseCross", "SparseCrossV2", "SparseCrossHashed")
def _crossed(operands: Operands) -> Sequence[Fact]:
    attr = operands.node.attr("sparse_types")
    sparse = 0 if attr is None else len(attr.list.type)
    attr = operands.node.attr("dense_types")
    dense = 0 if attr is None else len(attr.list.type)
    kinds = [Kind.INDICES, Kind.ENTRIES, Kind.SPARSE_SHAPE]
    columns = operands.facts[: 3 * sparse + dense]
    operands.constant(*range(len(columns), operands.count))
    wanted = [kind for kind in kinds for _ in range(sparse)] + [Kind.ROWS] * dense
    if [fact.kind for fact in columns] != wanted:
        raise Mixes(f"{operands.node.op} is not of columns of rows")
    if any(fact.axis or fact.layout != (1, 1) for fact in columns):
        raise Mixes(f"{operands.node.op} goes over the rows")
    for k in range(sparse):
        own = columns[k : 3 * sparse : sparse]
        if len({(fact.side, fact.source) for fact in own}) > 1:
            raise Mixes(f"{operands.node.op} is not of the parts of sparse tensors")
    return [Fact(kind, operands.side, source=operands.node.name) for kind in kinds]


@_rule("MatrixSetDiag", "MatrixSetDiagV2", "MatrixSetDiagV3")
def _with_diagonal(operands: Operands) -> Fact:
    operands.constant(*range(2, operands.count))
    if operands.facts[0].axis >= operands.rank(0) - 2:
        raise Mixes(f"{operands.node.op} goes over the rows")
    return _alike(operands, (0, 1))


@_rule("MatrixDiagPart", "MatrixDiagPartV2", "MatrixDiagPartV3")
def _diagonal(operands: Operands) -> Fact:
    operands.constant(*range(1, operands.count))
    return _in_front(operands, 2)


def _in_front(operands: Operands, behind: int) -> Fact:
    """The fact of an operand whose axis of rows is none of the last ones."""
    fact = operands.of_rows(0)
    if fact.axis >= operands.rank(0) - behind:
        raise Mixes(f"{operands.node.op} goes over the rows")
    return fact


@_rule("Conv2D", "DepthwiseConv2dNative", "MaxPool", "AvgPool", "LRN")
def _convolution(operands: Operands) -> Fact:
    operands.constant(*range(1, operands.count))
    fact = operands.of_rows(0)
    if fact.axis or not fact.factor:
        raise Mixes(f"{operands.node.op} goes over the rows")
    return fact


@_rule("Pad", "PadV2", "MirrorPad")
def _padded(operands: Operands) -> Fact:
    operands.constant(*range(1, operands.count))
    fact, amounts = operands.of_rows(0), operands.integers(1)
    if amounts[2 * fact.axis : 2 * fact.axis + 2] != [0, 0]:
        raise Mixes(f"{operands.node.op} makes more rows")
    return fact


@_rule("Slice")
def _sliced(operands: Operands) -> Fact:
    fact, begin = operands.of_rows(0), operands.integers(1)
    kept = operands.result_shape()[fact.axis] == operands.shape(0)[fact.axis]
    if begin[fact.axis] or operands.shape(0)[fact.axis] is None or not kept:
        raise Mixes("Slice takes some of the rows")
    if operands.facts[2].kind not in (Kind.CONSTANT, Kind.SIZES):
        raise Mixes("Slice of a size that depends on values")
    if {*operands.counts(2)} - {fact.axis}:
        raise Mixes("Slice of another size than rows depends on their number")
    return fact


@_rule("StridedSlice")
def _strided(operands: Operands) -> Fact:
    kinds = {fact.kind for fact in operands.facts[1:]}
    if operands.facts[0].kind is Kind.INDICES and kinds == {Kind.CONSTANT}:
        return _row_numbers(operands)
    if kinds - {Kind.CONSTANT, Kind.SIZES}:
        raise Mixes("StridedSlice by numbers that depend on values")
    fact, node = operands.of_rows(0), operands.node
    count = operands.shape(1)[0]
    if count is None or node.int_attr("ellipsis_mask").bit_count() > 1:
        raise Mixes("StridedSlice is not understood")
    position, axis = _specified(operands, count)
    for bound, mask in ((1, "begin_mask"), (2, "end_mask"), (3, "")):
        masked = node.int_attr(mask) if mask else 0
        if any(k != position and not masked >> k & 1 for k in operands.counts(bound)):
            raise Mixes("StridedSlice of another axis depends on the number of rows")
    if position is not None:
        _whole_axis(operands, position, axis)
    return fact.moved(axis)


def _specified(operands: Operands, count: int) -> tuple[int | None, int]:
    """Finds what a StridedSlice says of the axis of rows.

    Args:
        operands: of it.
        count: how many specifications it has.

    Returns:
        The specification of that axis, None if there is none; the axis in the result.
    """
    node, rows_axis = operands.node, operands.facts[0].axis
    new, shrunk = node.int_attr("new_axis_mask"), node.int_attr("shrink_axis_mask")
    ellipsis = node.int_attr("ellipsis_mask")
    taken = sum(1 for k in range(count) if not ((new | ellipsis) >> k) & 1)
    axis, result = 0, 0
    for k in range(count):
        if ellipsis >> k & 1:
            skipped = operands.rank(0) - taken
            if axis <= rows_axis < axis + skipped:
                return None, result + rows_axis - axis
            axis, result = axis + skipped, result + skipped
        elif new >> k & 1:
            result += 1
        elif axis == rows_axis:
            return k, result
        else:
            axis += 1
            result += not shrunk >> k & 1
    return None, result + rows_axis - axis


def _whole_axis(operands: Operands, k: int, result: int) -> None:
    """Checks that the specification `k` of a StridedSlice takes all of an axis."""
    node = operands.node
    if node.int_attr("shrink_axis_mask") >> k & 1:
        raise Mixes("StridedSlice picks a row")
    begin, end, stride = (
        None if elements is None else elements[k] for elements in map(operands.elements, (1, 2, 3))
    )
    if stride != 1 or not (begin == 0 or node.int_attr("begin_mask") >> k & 1):
        raise Mixes("StridedSlice takes some of the rows")
    size, whole = operands.result_shape()[result], operands.shape(0)[operands.facts[0].axis]
    is_last = end is Count.ROWS or (isinstance(end, int) and end >= _INT32_MAX)
    to_end = is_last and size is not None and size == whole
    if not (to_end or node.int_attr("end_mask") >> k & 1):
        raise Mixes("StridedSlice takes some of the rows")


def _row_numbers(operands: Operands) -> Fact:
    """The fact of a column of the indices of a sparse tensor."""
    node, fact = operands.node, operands.facts[0]
    begin = operands.integers(1)
    whole = node.int_attr("begin_mask") & 1 and node.int_attr("end_mask") & 1
    if len(begin) != 2 or not whole or not node.int_attr("shrink_axis_mask") & 2:
        raise Mixes("StridedSlice changes indices of a sparse tensor")
    kind = Kind.ENTRIES if begin[1] else Kind.ROW_NUMBERS
    return Fact(kind, fact.side, source=fact.source)


@_rule("SparseToDense")
def _dense(operands: Operands) -> Fact:
    operands.constant(3)
    kinds = [fact.kind for fact in operands.facts[:3]]
    parts = [*operands.facts[:3]]
    measured = _measured(operands, 1)
    if measured is not None and not measured.axis and measured.layout == (1, 1):
        kinds[1], parts[1] = Kind.SPARSE_SHAPE, parts[0]
    sources = {(fact.side, fact.source) for fact in parts}
    if kinds != [Kind.INDICES, Kind.SPARSE_SHAPE, Kind.ENTRIES] or len(sources) > 1:
        raise Mixes("SparseToDense is not of the parts of a sparse tensor")
    return rows(operands.facts[2].side)


@_rule("Where")
def _places(operands: Operands) -> Fact:
    """Which elements of a matrix are true: the indices of a sparse tensor."""
    fact = operands.of_rows(0)
    if fact.axis or fact.layout != (1, 1) or operands.rank(0) < 2:
        raise Mixes("Where goes over the rows")
    return Fact(Kind.INDICES, fact.side, source=operands.node.name)


@_rule("RaggedTensorToSparse")
def _ragged_as_sparse(operands: Operands) -> Sequence[Fact]:
    if operands.node.int_attr("RAGGED_RANK") != 1:
        raise Mixes("RaggedTensorToSparse of several ragged dimensions")
    splits, values = operands.facts
    if (splits.kind, values.kind) != (Kind.SPLITS, Kind.ENTRIES) or splits.side is not values.side:
        raise Mixes("RaggedTensorToSparse is not of the parts of a ragged tensor")
    kinds = (Kind.INDICES, Kind.ENTRIES, Kind.SPARSE_SHAPE)
    return [Fact(kind, splits.side, source=operands.node.name) for kind in kinds]


@_rule("RaggedTensorToTensor")
def _padded_rows(operands: Operands) -> Fact:
    attr = operands.node.attr("row_partition_types")
    types = [] if attr is None else [kind.decode() for kind in attr.list.s]
    shape, values, default, *partitions = operands.facts
    if types != ["ROW_SPLITS"] or partitions[0].kind is not Kind.SPLITS:
        raise Mixes("RaggedTensorToTensor is not of row splits")
    if shape.kind not in (Kind.CONSTANT, Kind.SIZES) or default.has_rows:
        raise Mixes("RaggedTensorToTensor to a shape that depends on values")
    source = (partitions[0].side, partitions[0].source)
    if values.kind is not Kind.ENTRIES or (values.side, values.source) != source:
        raise Mixes("RaggedTensorToTensor is not of the parts of a ragged tensor")
    if {*operands.counts(0)} - {0}:
        raise Mixes("RaggedTensorToTensor to a width that depends on the number of rows")
    return rows(values.side)


@_rule("ParseExampleV2")
def _parsed(operands: Operands) -> Sequence[Fact]:
    fact = operands.of_rows(0)
    operands.constant(*range(1, operands.count))
    if operands.rank(0) != 1:
        raise Mixes("ParseExampleV2 of one Example")
    node, side = operands.node, fact.side
    sparse, dense, ragged = (
        len(attr.list.type) if (attr := node.attr(key)) is not None else 0
        for key in ("sparse_types", "Tdense", "ragged_value_types")
    )
    sparse = node.int_attr("num_sparse")
    dense_facts = [rows(side)] * dense

    def parts(kind: Kind, name: str, count: int) -> list[Fact]:
        return [Fact(kind, side, source=f"{node.name}/{name}/{k}") for k in range(count)]

    found = [*parts(Kind.INDICES, "sparse", sparse), *parts(Kind.ENTRIES, "sparse", sparse)]
    found += [*parts(Kind.SPARSE_SHAPE, "sparse", sparse), *dense_facts]
    return [*found, *parts(Kind.ENTRIES, "ragged", ragged), *parts(Kind.SPLITS, "ragged", ragged)]
