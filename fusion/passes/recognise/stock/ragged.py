"""Row numbers that are counted from the row splits of a RaggedTensor.

TensorFlow repeats each row's number as often as the row has ids: it tiles all numbers to a matrix
as wide as the longest row and keeps those that a sequence mask allows, about 35 ops in all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fusion.passes.analysis.symbolic_shapes import Dim, ShapeMath, Vector, pass_flat, product
from fusion.passes.graph.idioms import is_row_gather, pass_casts
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Value
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


def match_row_splits(rows: Value, count: Value) -> RowSplits | None:
    """Explains `rows` as `repeat(range(count), lengths)`, with the lengths from row splits."""
    picked = rows.producer
    if not is_row_gather(picked):
        return None
    source, positions = picked.inputs[:2]
    numbers = _match_tiled(_without_flattening(source))
    condition = match_where(positions)
    if numbers is None or condition is None:
        return None
    lengths = _match_sequence_mask(_without_flattening(condition[0]), numbers)
    splits = None if lengths is None else match_differences(lengths)
    if lengths is None or splits is None or not _counts_rows(numbers.count, splits):
        return None
    if not _counts_rows(count, splits):
        return None
    difference = lengths.producer
    return RowSplits(splits.tensor, difference.type_attr("T"), difference.output().tensor)


@dataclass(frozen=True)
class _Tiled:
    """`range(count)` as a column, tiled to width `longest`; a number of rows that is known is one.

    Attributes:
        sizes: the symbolic shape of the range.
        count, longest: see above.
    """

    sizes: Vector | None
    count: Value | int
    longest: Value


def _match_tiled(tiled: Value) -> _Tiled | None:
    tile = tiled.producer
    if tile.op != "Tile":
        return None
    column, multiples = tile.inputs
    pack, math = multiples.producer, ShapeMath()
    if pack.op != "Pack" or pack.input_count != 2 or math.scalar(pack.input(0)) != 1:
        return None
    longest = pack.input(1).resolved
    value = column.constant
    if value is not None:
        # Grappler folds the column of a number of rows that is known.
        count = value.size
        is_column = value.shape == (count, 1) and value.reshape(-1).tolist() == [*range(count)]
        return _Tiled((count,), count, longest) if is_column else None
    if column.producer.op != "ExpandDims":
        return None
    numbers, axis = column.producer.inputs
    if math.scalar(axis) not in (1, -1):
        return None
    limit = _match_range(numbers)
    return None if limit is None else _Tiled(math.shape_of(numbers), limit, longest)


def _match_range(numbers: Value) -> Value | None:
    """Explains `range(limit)`: the limit."""
    if numbers.producer.op != "Range":
        return None
    start, limit, delta = numbers.producer.inputs
    math = ShapeMath()
    return limit.resolved if (math.scalar(start), math.scalar(delta)) == (0, 1) else None


def _without_flattening(value: Value) -> Value:
    """Returns what a Reshape to a vector of all elements flattens."""
    value, _ = pass_flat(value)
    reshape = value.producer
    if reshape.op != "Reshape" or reshape.controls:
        return value
    inner, target = reshape.inputs
    math = ShapeMath()
    shape, new_shape = math.shape_of(inner), math.vector(target)
    is_whole = new_shape == (-1,) or (shape is not None and new_shape == (product(shape),))
    return inner.resolved if is_whole else value


def _match_sequence_mask(mask: Value, numbers: _Tiled) -> Value | None:
    """Explains `range(longest) < lengths[:, newaxis]`, where no length is greater: the lengths."""
    if mask.producer.op != "Less":
        return None
    counter, column = (pass_casts(operand)[0] for operand in mask.producer.inputs)
    if _match_range(counter) != numbers.longest or column.producer.op != "ExpandDims":
        return None
    lengths, axis = column.producer.inputs
    if ShapeMath().scalar(axis) not in (1, -1):
        return None
    lengths = _without_broadcast(lengths, numbers)
    return lengths if _is_maximum(numbers, lengths) else None


def _without_broadcast(lengths: Value, numbers: _Tiled) -> Value:
    """Passes a BroadcastTo of one length for each row to one length for each row."""
    lengths, _ = pass_casts(lengths)
    broadcast = lengths.producer
    if broadcast.op == "BroadcastTo" and not broadcast.controls:
        inner, target = broadcast.inputs
        sizes = ShapeMath().vector(target)
        if sizes is not None and sizes == numbers.sizes:
            lengths, _ = pass_casts(inner)
    return lengths


def _is_maximum(numbers: _Tiled, lengths: Value) -> bool:
    """Whether the width of the matrix is the greatest of the lengths, or 0."""
    longest = numbers.longest.producer
    if longest.op != "Maximum":
        return False
    for zero, other in (longest.inputs, longest.inputs[::-1]):
        greatest = other.producer
        if ShapeMath().scalar(zero) != 0 or greatest.op != "Max":
            continue
        measured, axis = greatest.inputs
        if axis.item is not None and not greatest.flag_attr("keep_dims"):
            return _without_broadcast(measured, numbers) == lengths
    return False


def match_differences(lengths: Value) -> Value | None:
    """Explains `splits[1:] - splits[:-1]`: the splits."""
    if lengths.producer.op != "Sub":
        return None
    ends, starts = lengths.producer.inputs
    splits = _match_slice(ends, 1, None)
    return splits if splits == _match_slice(starts, 0, -1) else None


def _match_slice(value: Value, start: int, stop: int | None) -> Value | None:
    """Explains `vector[start:stop]`: the vector."""
    node = value.producer
    if node.op != "StridedSlice":
        return None
    vector, *bounds = node.inputs
    constants = [bound.constant for bound in bounds]
    if any(bound is None or bound.shape != (1,) for bound in constants):
        return None
    begin, end, stride = (int(bound[0]) for bound in constants if bound is not None)
    if any(node.int_attr(f"{key}_mask") for key in ("ellipsis", "new_axis", "shrink_axis")):
        return None
    first = 0 if node.int_attr("begin_mask") else begin
    last = None if node.int_attr("end_mask") else end
    shape = vector.shape
    if (first, last, stride) != (start, stop, 1) or shape is None or len(shape) != 1:
        return None
    return vector.resolved


def _counts_rows(count: Value | int, splits: Value) -> bool:
    """Whether `count` is the number of splits less 1."""
    math, shape = ShapeMath(), splits.shape
    size = shape[0] if shape is not None and len(shape) == 1 else None
    if isinstance(count, int):
        return size is not None and count == size - 1
    count, _ = pass_casts(count)
    if size is not None:
        return math.scalar(count) == size - 1
    if count.producer.op != "Sub":
        return False
    number, offset = count.producer.inputs
    return math.scalar(number) == Dim(splits.tensor, 0) and math.scalar(offset) == 1
