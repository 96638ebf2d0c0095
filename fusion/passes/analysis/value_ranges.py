"""What a graph proves about ids: the smallest and the largest, and that they are in row order."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np
from tensorflow.core.framework import types_pb2

from fusion.passes.graph.idioms import is_integer_cast
from fusion.passes.graph.values import Node, Value
from fusion.schema.attributes import STOCK_CROSSES, STOCK_HASHES
from fusion.schema.names import (
    GROUPED_CROSS,
    GROUPED_IDS,
    GROUPED_SPLIT,
    PARSE_EXAMPLE,
    PARSE_SEQUENCE,
)

_DEPTH = 32
_INT32 = np.iinfo(np.int32)
_SAME_ELEMENTS = frozenset(
    [
        "ExpandDims",
        "Gather",
        "GatherNd",
        "GatherV2",
        "Reshape",
        "Slice",
        "Squeeze",
        "StridedSlice",
        "Tile",
        "Transpose",
    ]
)
"""Ops whose result has elements of their first input, and no others."""
_OF_TWO = {"Select": (1, 2), "SelectV2": (1, 2), "SparseToDense": (2, 3)}
"""Ops whose result has elements of two inputs."""
_CROSSES = STOCK_CROSSES.keys() | {GROUPED_CROSS}
_NUMBERED = STOCK_HASHES.keys() | _CROSSES | {GROUPED_IDS, GROUPED_SPLIT, "Bucketize"}
"""Ops whose results are numbers of buckets."""
_IN_ORDER = frozenset(
    {"Where", "RaggedTensorToSparse", "SparseReorder", "StringSplit", "StringSplitV2"}
).union(STOCK_CROSSES)
"""Ops whose first output is indices in row-major order."""
_PARSERS = {
    "ParseExample": "Nsparse",
    "ParseExampleV2": "num_sparse",
    PARSE_EXAMPLE: "num_sparse",
    "ParseSequenceExample": "Ncontext_sparse",
    "ParseSequenceExampleV2": "Ncontext_sparse",
    PARSE_SEQUENCE: "num_context_sparse",
}
"""Ops whose first outputs are indices in row-major order; the attr with their number."""


class Range(NamedTuple):
    """The bounds of the elements of a tensor, both inclusive; None where none is known."""

    low: int | None = None
    high: int | None = None

    def covers(self, other: Range) -> Range:
        """Returns the smallest range with the elements of both."""
        lows, highs = (self.low, other.low), (self.high, other.high)
        low = None if None in lows else min(number for number in lows if number is not None)
        high = None if None in highs else max(number for number in highs if number is not None)
        return Range(low, high)


def _hashed(hashes: Node, index: int) -> Range:
    """Returns the range of an output of an op that hashes."""
    if hashes.op not in (GROUPED_IDS, GROUPED_SPLIT):
        return Range(0, hashes.int_attr("num_buckets") - 1)
    attrs = [hashes.attr(key) for key in ("num_buckets", "vocabularies")]
    buckets, vocabularies = [[] if attr is None else [*attr.list.i] for attr in attrs]
    if index >= len(buckets):
        return Range()
    return Range() if vocabularies and vocabularies[index] >= 0 else Range(0, buckets[index] - 1)


def _numbered(node: Node, index: int) -> Range:
    """Returns the bounds of an output of an op that gives numbers of buckets."""
    if node.op in _CROSSES:
        return _crossed(node, index)
    if node.op == "Bucketize":
        attr = node.attr("boundaries")
        return Range(0, 0 if attr is None else len(attr.list.f))
    return _hashed(node, index)


#: Hashes of crosses without buckets are below it.
_CROSSES_END = 2**63 - 1


def _crossed(crosses: Node, index: int) -> Range:
    """Returns the bounds of an output of an op that crosses features."""
    buckets: int | None
    if crosses.op == GROUPED_CROSS:
        attr = crosses.attr("num_buckets")
        if attr is None or index >= len(attr.list.i):
            return Range()
        buckets = attr.list.i[index]
    elif index != 1 or crosses.output(1).dtype != types_pb2.DT_INT64:
        return Range()
    else:
        is_attr = crosses.op == "SparseCross"
        buckets = crosses.int_attr("num_buckets") if is_attr else crosses.inputs[-3].item
    return Range(0, (_CROSSES_END if not buckets or buckets < 0 else buckets) - 1)


def _parsed(parser: Node, index: int) -> Range:
    """Returns the range of what the fused parser gives of strings that it hashes."""
    buckets = {}
    for kind in ("sparse", "dense", "ragged"):
        attr = parser.attr(f"{kind}_buckets")
        buckets[kind] = [] if attr is None else [*attr.list.i]
    attr, rows = parser.attr("dense_outputs"), defaultdict[int, list[int]](list)
    outputs = [] if attr is None else [*attr.list.i]
    for number, count in zip(outputs, buckets["dense"], strict=True):
        rows[number].append(count)
    sparse = [0] * len(buckets["sparse"])
    dense = [max(counts) if all(counts) else 0 for counts in rows.values()]
    numbers = [*sparse, *buckets["sparse"], *sparse, *dense, *buckets["ragged"]]
    count = numbers[index] if index < len(numbers) else 0
    return Range(0, count - 1) if count else Range()


def range_of(value: Value, depth: int = _DEPTH) -> Range:
    """Returns the bounds of the elements of an integer tensor, looking at so many ops behind it."""
    value = value.resolved
    constant, node = value.constant, value.producer
    if constant is not None:
        return Range(int(constant.min()), int(constant.max())) if constant.size else Range()
    if not depth:
        return Range()
    op = node.op
    if op in _NUMBERED:
        return _numbered(node, value.index)
    if op == PARSE_EXAMPLE:
        return _parsed(node, value.index)
    if op in _SAME_ELEMENTS:
        return range_of(node.input(0), depth - 1)
    if is_integer_cast(node):
        return wrapped(range_of(node.input(0), depth - 1), node.type_attr("DstT"))
    if op in _OF_TWO:
        one, other = (range_of(node.input(index), depth - 1) for index in _OF_TWO[op])
        return one.covers(other)
    if op in ("Maximum", "Minimum", "FloorMod"):
        return _bounded(op, *(range_of(operand, depth - 1) for operand in node.inputs))
    if op == "RaggedTensorToSparse" and value.index == 1:
        return range_of(node.input(-1), depth - 1)
    return Range()


def _bounded(op: str, first: Range, second: Range) -> Range:
    if op == "FloorMod":
        divisor = second.high if second.low is not None and second.low > 0 else None
        return Range() if divisor is None else Range(0, divisor - 1)
    if op == "Minimum":
        highs = [high for high in (first.high, second.high) if high is not None]
        return Range(first.covers(second).low, min(highs) if highs else None)
    lows = [low for low in (first.low, second.low) if low is not None]
    return Range(max(lows) if lows else None, first.covers(second).high)


def wrapped(values: Range, dtype: int) -> Range:
    """Returns the range after a cast, which keeps numbers that the dtype has."""
    if dtype != types_pb2.DT_INT32:
        return values
    if values.low is None or values.high is None:
        return Range()
    return values if values.low >= _INT32.min and values.high <= _INT32.max else Range()


def is_in_row_order(indices: Value) -> bool:
    """Whether the rows of the indices of a SparseTensor provably ascend.

    TensorFlow asks for that, but stock lookups also take indices in another order.
    """
    node, index = indices.producer, indices.resolved.index
    if node.op == "SparseReshape" and index == 0:
        return is_in_row_order(node.input(0))
    if node.op in _PARSERS:
        return index < node.int_attr(_PARSERS[node.op])
    return node.op in _IN_ORDER and index == 0
