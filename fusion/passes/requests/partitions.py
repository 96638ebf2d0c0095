"""Sums over the entries of each row of ragged tensors, and their row splits, as wholes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fusion.passes.analysis.rows.facts import Kind
from fusion.passes.analysis.rows.walk import Bags
from fusion.passes.analysis.rows.widths import only_number
from fusion.passes.graph.idioms import pass_casts
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node, Value
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.stock.ragged import match_differences, match_row_splits

_REDUCTIONS = frozenset({"Sum", "Max", "Min", "Prod"})
_UNSORTED = frozenset(f"UnsortedSegment{name}" for name in _REDUCTIONS)


def partitions_of(view: GraphView) -> Iterator[Bags]:
    """Yields what is made of all entries of each row.

    Row numbers that TensorFlow counts from row splits, and splits that it counts from row numbers,
    take many ops, each of which goes over the rows.
    """
    for name in view.nodes:
        op = view.op(name)
        if op in _UNSORTED:
            found = _segments(Node(view, name))
        elif op == "RaggedBincount":
            found = _counts(Node(view, name))
        elif op == "DenseBincount":
            found = _lengths(Node(view, name))
        elif op == "Sub":
            found = _differences(Node(view, name))
        elif op == "ConcatV2":
            found = _splits(Node(view, name))
        else:
            continue
        if found is not None:
            yield found


def _segments(node: Node) -> Bags | None:
    """`tf.reduce_sum` and others of a ragged tensor along its ragged axis."""
    data, rows, count = node.inputs
    splits, shape = match_row_splits(rows.resolved, count.resolved), node.output().shape
    if splits is None or not shape:
        return None
    ids = ((data.tensor, Kind.ENTRIES), (splits.tensor, Kind.SPLITS))
    return Bags(node.output().tensor, ids, None, shape)


def _counts(node: Node) -> Bags | None:
    """`tf.math.bincount` of each row of a ragged tensor, of as many columns for any ids."""
    splits, ids, size, weights = node.inputs
    width = only_number(size)
    if width is None or weights.shape != (0,):
        return None
    parts = ((ids.tensor, Kind.ENTRIES), (splits.tensor, Kind.SPLITS))
    return Bags(node.output().tensor, parts, None, (None, width))


def _splits(node: Node) -> Bags | None:
    """`RowPartition.from_value_rowids`: 0 in front of the sums of the numbers of entries."""
    if node.input_count != 3 or node.input(2).scalar != 0:
        return None
    zero, sums = node.input(0).constant, node.input(1).producer
    is_zero = zero is not None and zero.shape == (1,) and not zero.any()
    if not is_zero or sums.op != "Cumsum" or sums.input(1).scalar != 0:
        return None
    if sums.flag_attr("exclusive") or sums.flag_attr("reverse"):
        return None
    lengths = _lengths(sums.input(0).producer)
    if lengths is None:
        return None
    return replace(lengths, output=node.output().tensor, kind=Kind.SPLITS)


def _lengths(node: Node) -> Bags | None:
    """How many entries each row has, counted from row numbers."""
    if node.op != "DenseBincount" or node.flag_attr("binary_output"):
        return None
    rows, size, weights = node.inputs
    numbers, count = _flattened(rows), _count(size)
    if numbers is None or count is None or weights.shape != (0,):
        return None
    ids = ((numbers, Kind.ROW_NUMBERS), (count, Kind.SIZES))
    return Bags(node.output().tensor, ids, None, (None,), counts_rows=True)


def _differences(node: Node) -> Bags | None:
    """How many entries each row has: the differences of row splits."""
    splits = match_differences(node.output())
    if splits is None:
        return None
    return Bags(node.output().tensor, ((splits.tensor, Kind.SPLITS),), None, (None,))


def _flattened(rows: Value) -> Tensor | None:
    """The row numbers that are counted; of a vector, a Reshape to [-1] changes nothing."""
    reshape = rows.producer
    if reshape.op == "Reshape":
        target = reshape.input(1).constant
        if target is None or target.reshape(-1).tolist() != [-1]:
            return None
        rows = reshape.input(0)
    return pass_casts(rows)[0].tensor


def _count(size: Value) -> Tensor | None:
    """The number of rows: it is the least and the greatest number of counts."""
    least = size.producer
    if least.op != "Minimum":
        return None
    for count, other in (least.inputs, least.inputs[::-1]):
        greatest, number = other.producer, pass_casts(count)[0]
        operands = [pass_casts(one)[0] for one in greatest.inputs]
        if greatest.op == "Maximum" and number in operands:
            return number.tensor
    return None
