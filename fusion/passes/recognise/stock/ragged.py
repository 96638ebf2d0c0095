"""Row numbers that are counted from the row splits of a RaggedTensor.

TensorFlow repeats each row's number as often as the row has ids: it tiles all numbers to a matrix
as wide as the longest row and keeps those that a sequence mask allows, about 35 ops in all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fusion.passes.analysis.symbolic_shapes import Dim, ShapeMath, Vector, pass_flat, product
from fusion.passes.graph.idioms import is_row_gather, pass_casts
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.stock.boolean_mask import match_where


@dataclass(frozen=True)
class RowSplits:
    """The splits of a RaggedTensor.

    Attributes:
        tensor: int32 or int64 [rows + 1].
        dtype: DataType of it.
        lengths: the differences between them, [rows], where the graph computes them.
    """

    tensor: Tensor
    dtype: int
    lengths: Tensor | None = field(default=None, compare=False)


def match_row_splits(view: GraphView, rows: Tensor, count: Tensor) -> RowSplits | None:
    """Explains `rows` as `repeat(range(count), lengths)`, with the lengths from row splits."""
    picked = view.resolve(rows)
    if not is_row_gather(view, picked.node):
        return None
    source, positions = view.inputs(picked.node)[:2]
    numbers = _match_tiled(view, _behind_flattening(view, source))
    condition = match_where(view, positions)
    if numbers is None or condition is None:
        return None
    mask = _behind_flattening(view, condition[0])
    lengths = _match_sequence_mask(view, mask, numbers)
    splits = None if lengths is None else _match_differences(view, lengths)
    if splits is None or not _counts_rows(view, numbers.count, splits.tensor):
        return None
    return splits if _counts_rows(view, count, splits.tensor) else None


@dataclass(frozen=True)
class _Tiled:
    """`range(count)` as a column, tiled to width `longest`; a number of rows that is known is one.

    Attributes:
        sizes: the symbolic shape of the range.
        count, longest: see above.
    """

    sizes: Vector | None
    count: Tensor | int
    longest: Tensor


def _match_tiled(view: GraphView, tensor: Tensor) -> _Tiled | None:
    if view.op(tensor.node) != "Tile":
        return None
    column, multiples = (view.resolve(operand) for operand in view.inputs(tensor.node))
    factors, math = view.inputs(multiples.node), ShapeMath(view)
    if view.op(multiples.node) != "Pack" or len(factors) != 2 or math.scalar(factors[0]) != 1:
        return None
    longest = view.resolve(factors[1])
    value = view.constant(column)
    if value is not None:
        # Grappler folds the column of a number of rows that is known.
        count = value.size
        is_column = value.shape == (count, 1) and value.reshape(-1).tolist() == [*range(count)]
        return _Tiled((count,), count, longest) if is_column else None
    if view.op(column.node) != "ExpandDims":
        return None
    numbers, axis = view.inputs(column.node)
    if math.scalar(axis) not in (1, -1):
        return None
    counter = view.resolve(numbers)
    limit = _match_range(view, counter)
    return None if limit is None else _Tiled(math.shape_of(counter), limit, longest)


def _match_range(view: GraphView, tensor: Tensor) -> Tensor | None:
    """Explains `range(limit)`: the limit."""
    if view.op(tensor.node) != "Range":
        return None
    start, limit, delta = view.inputs(tensor.node)
    math = ShapeMath(view)
    return view.resolve(limit) if (math.scalar(start), math.scalar(delta)) == (0, 1) else None


def _behind_flattening(view: GraphView, tensor: Tensor) -> Tensor:
    """Returns what a Reshape to a vector of all elements flattens."""
    tensor, _ = pass_flat(view, tensor)
    if view.op(tensor.node) != "Reshape" or view.controls(tensor.node):
        return tensor
    inner, target = view.inputs(tensor.node)
    math = ShapeMath(view)
    shape, new_shape = math.shape_of(inner), math.vector(target)
    is_whole = new_shape == (-1,) or (shape is not None and new_shape == (product(shape),))
    return view.resolve(inner) if is_whole else tensor


def _match_sequence_mask(view: GraphView, mask: Tensor, numbers: _Tiled) -> Tensor | None:
    """Explains `range(longest) < lengths[:, newaxis]`, where no length is greater: the lengths."""
    if view.op(mask.node) != "Less":
        return None
    counter, column = (pass_casts(view, operand)[0] for operand in view.inputs(mask.node))
    limit = _match_range(view, counter)
    if limit != numbers.longest or view.op(column.node) != "ExpandDims":
        return None
    lengths, axis = view.inputs(column.node)
    if ShapeMath(view).scalar(axis) not in (1, -1):
        return None
    lengths = _behind_broadcast(view, lengths, numbers)
    return lengths if _is_maximum(view, numbers, lengths) else None


def _behind_broadcast(view: GraphView, lengths: Tensor, numbers: _Tiled) -> Tensor:
    """Passes a BroadcastTo of one length for each row to one length for each row."""
    lengths, _ = pass_casts(view, lengths)
    if view.op(lengths.node) == "BroadcastTo" and not view.controls(lengths.node):
        inner, target = view.inputs(lengths.node)
        sizes = ShapeMath(view).vector(target)
        if sizes is not None and sizes == numbers.sizes:
            lengths, _ = pass_casts(view, inner)
    return lengths


def _is_maximum(view: GraphView, numbers: _Tiled, lengths: Tensor) -> bool:
    """Whether the width of the matrix is the greatest of the lengths, or 0."""
    longest = numbers.longest
    if view.op(longest.node) != "Maximum":
        return False
    math = ShapeMath(view)
    for zero, other in (view.inputs(longest.node), view.inputs(longest.node)[::-1]):
        greatest = view.resolve(other)
        if math.scalar(zero) != 0 or view.op(greatest.node) != "Max":
            continue
        measured, axes = view.inputs(greatest.node)
        axis = view.constant(axes)
        if axis is None or axis.size != 1 or view.flag_attr(greatest.node, "keep_dims"):
            continue
        return _behind_broadcast(view, measured, numbers) == lengths
    return False


def _match_differences(view: GraphView, lengths: Tensor) -> RowSplits | None:
    """Explains `splits[1:] - splits[:-1]`."""
    if view.op(lengths.node) != "Sub":
        return None
    ends, starts = (view.resolve(operand) for operand in view.inputs(lengths.node))
    splits = _match_slice(view, ends, 1, None)
    if splits is None or splits != _match_slice(view, starts, 0, -1):
        return None
    return RowSplits(splits, view.type_attr(lengths.node, "T"), Tensor(lengths.node))


def _match_slice(view: GraphView, tensor: Tensor, start: int, stop: int | None) -> Tensor | None:
    """Explains `vector[start:stop]`: the vector."""
    name = tensor.node
    if view.op(name) != "StridedSlice":
        return None
    vector, *bounds = view.inputs(name)
    constants = [view.constant(bound) for bound in bounds]
    if any(bound is None or bound.shape != (1,) for bound in constants):
        return None
    begin, end, stride = (int(bound[0]) for bound in constants if bound is not None)
    if any(view.int_attr(name, f"{key}_mask") for key in ("ellipsis", "new_axis", "shrink_axis")):
        return None
    first = 0 if view.int_attr(name, "begin_mask") else begin
    last = None if view.int_attr(name, "end_mask") else end
    shape = view.shape(vector)
    if (first, last, stride) != (start, stop, 1) or shape is None or len(shape) != 1:
        return None
    return view.resolve(vector)


def _counts_rows(view: GraphView, count: Tensor | int, splits: Tensor) -> bool:
    """Whether `count` is the number of splits less 1."""
    math, shape = ShapeMath(view), view.shape(splits)
    size = shape[0] if shape is not None and len(shape) == 1 else None
    if isinstance(count, int):
        return size is not None and count == size - 1
    count, _ = pass_casts(view, count)
    if size is not None:
        return math.scalar(count) == size - 1
    if view.op(count.node) != "Sub":
        return False
    number, offset = view.inputs(count.node)
    return math.scalar(number) == Dim(splits, 0) and math.scalar(offset) == 1
