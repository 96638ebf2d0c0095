"""Ragged parts of texts that become a SparseTensor again have the indices that their split gave.

    StringSplitV2 -> row splits -> RaggedTensorToSparse     becomes     StringSplitV2

This is `tf.strings.split(texts, sep).to_sparse()`, also with hashes or a vocabulary between: row
splits are counted from the indices of a SparseTensor, and new indices are made of these.
"""

from __future__ import annotations

from fusion.passes.analysis.symbolic_shapes import Item, ShapeMath
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.idioms import pass_casts
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node, Value, named
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.hashing import match_hash
from fusion.passes.recognise.splitting import INDICES, PARTS, SHAPE
from fusion.passes.recognise.stock.gathers import GATHERS
from fusion.passes.recognise.vocabularies import match_vocabulary
from fusion.schema.attributes import STOCK_SPLITS

_TO_SPARSE = "RaggedTensorToSparse"
#: Ops of one input, beside hashes and vocabularies between parts and a SparseTensor.
_ELEMENTWISE = frozenset(
    {"Cast", "StringLower", "StringStrip", "StringUpper", "StaticRegexReplace"}
)
_MAX_DEPTH = 8


def with_sparse_parts(view: GraphView) -> GraphEdit | None:
    """Returns a graph of lookups without such ragged tensors; None if there are none."""
    if view.ops.isdisjoint(GATHERS):
        return None
    edit, is_changed = GraphEdit(view), False
    for node in named(view, _TO_SPARSE):
        split = _split_of(node)
        if split is None:
            continue
        is_changed = True
        new = Tensor(split.name, INDICES), node.inputs[-1].tensor, Tensor(split.name, SHAPE)
        for index, tensor in enumerate(new):
            edit.replace(Tensor(node.name, index), tensor)
        edit.remove([node.name], split.name)
    return edit if is_changed else None


def _split_of(node: Node) -> Node | None:
    """Returns the split whose parts a node makes a SparseTensor of; None if they are of another."""
    if node.input_count != 2 or node.is_preserved or node.name in node.view.awaited:
        return None
    if node.controls or node.view.control_uses(node.name):
        return None
    splits, values = node.inputs
    for _ in range(_MAX_DEPTH):
        values = _before(values.resolved)
    split = values.resolved.producer
    if split.op not in STOCK_SPLITS or values.resolved.index != PARTS:
        return None
    return split if _counts_rows(splits, split) else None


def _before(values: Value) -> Value:
    """Returns what values are made of, one of one: itself if that is not known."""
    node = values.producer
    if node.op in _ELEMENTWISE:
        return node.input(0)
    found = match_vocabulary(node)
    if found is not None:
        # Of others each value has several numbers.
        return found.values if found.find.input(2).shape == () else values
    hashed = match_hash(node)
    return values if hashed is None else hashed.values


def _counts_rows(splits: Value, split: Node) -> bool:
    """Whether row splits are those of the rows of parts: sums of how often each row comes."""
    joined = splits.producer
    if joined.op != "ConcatV2" or joined.input_count != 3 or joined.input(0).item != 0:
        return False
    sums = joined.input(1).producer
    if sums.op != "Cumsum" or sums.flag_attr("exclusive") or sums.flag_attr("reverse"):
        return False
    counts = sums.input(0).producer
    if counts.op != "DenseBincount" or counts.flag_attr("binary_output"):
        return False
    rows, size, weights = counts.inputs
    if weights.constant is None or weights.constant.size:
        return False
    return _is_column(rows, split) and _is_row_count(size, split)


def _is_column(rows: Value, split: Node) -> bool:
    """Whether these are the first column of the indices."""
    rows, _ = pass_casts(rows)
    if rows.producer.op == "Reshape":  # to a vector, which it is
        rows, _ = pass_casts(rows.producer.input(0))
    column = rows.producer
    if column.op != "StridedSlice" or column.input(0).resolved.tensor != Tensor(
        split.name, INDICES
    ):
        return False
    masks = [column.int_attr(f"{key}_mask") for key in ("begin", "end", "shrink_axis")]
    others = [column.int_attr(f"{key}_mask") for key in ("ellipsis", "new_axis")]
    begin, _, strides = (value.elements for value in column.inputs[1:])
    is_first = isinstance(begin, list) and begin[-1:] == [0] and strides == [1, 1]
    return masks == [1, 1, 2] and not any(others) and is_first


def _is_row_count(size: Value, split: Node) -> bool:
    """Whether this is the number of rows: the smaller of it and of what is not less."""
    math, count = ShapeMath(), Item(Tensor(split.name, SHAPE), 0)
    if math.scalar(size) == count:
        return True
    for op, inner in (("Minimum", 1), ("Maximum", 0)):
        node = pass_casts(size)[0].producer
        if node.op != op or math.scalar(node.input(0)) != count:
            return False
        size = node.input(inner)
    return True
