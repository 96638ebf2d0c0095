"""Index tensors that count through a grid: ranges, tiled, flattened, scaled and added.

bucketized_column writes a dense [B, L] matrix as a SparseTensor by computing the row and the column
of each of its elements with a dozen tiny ops. Here such a tensor is evaluated symbolically: each of
its axes runs through loops, outermost first, and its value is a sum of loop counters times factors.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fusion.passes.analysis.symbolic_shapes import Element, ShapeMath, Vector, product
from fusion.passes.graph.idioms import pass_casts
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Value

_MAX_DEPTH = 24


@dataclass(frozen=True)
class Grid:
    """A tensor of integers.

    Attributes:
        axes: for each axis the extents of its loops; loops of extent 1 are left out.
        factors: for each axis the factors of its loops' counters.
        base: a tensor whose elements, in order, are added; None if nothing is. No cast stands
            between it and the sum.
        nodes: what computes it.
    """

    axes: tuple[Vector, ...]
    factors: tuple[tuple[int, ...], ...]
    base: Tensor | None = None
    nodes: tuple[str, ...] = field(default=(), compare=False)


def grid(value: Value) -> Grid | None:
    """Returns the grid that a tensor of integers is, or None."""
    return _Evaluator(ShapeMath()).grid(value, _MAX_DEPTH)


def columns(value: Value) -> tuple[Grid, ...] | None:
    """Returns the columns of a [n, k] matrix of integers, each a grid of one axis; or None."""
    value, passed = pass_casts(value)
    node, by_row = value.producer, False
    if node.op == "Transpose":
        inner, order = node.inputs
        if ShapeMath().vector(order) != (1, 0):
            return None
        value, casts = pass_casts(inner)
        passed += (node.name, *casts)
        node, by_row = value.producer, True
    constant = value.constant
    if constant is not None and constant.ndim == 2 and not by_row:
        parts = [_counted(column) for column in constant.T]
        counted = [part for part in parts if part is not None]
        return tuple(counted) if len(counted) == len(parts) else None
    if node.op != "Pack" or node.int_attr("axis") not in ((0, -2) if by_row else (1, -1)):
        return None
    grids = [grid(operand) for operand in node.inputs]
    known = [grid for grid in grids if grid is not None and len(grid.axes) == 1]
    if len(known) != len(grids):
        return None
    return tuple(replace(column, nodes=(*passed, node.name, *column.nodes)) for column in known)


@dataclass(frozen=True)
class _Evaluator:
    math: ShapeMath
    known: dict[Value, Grid | None] = field(default_factory=dict)

    def grid(self, value: Value, depth: int) -> Grid | None:
        """Returns the grid that a tensor is, evaluated once."""
        if value not in self.known:
            self.known[value] = self._grid(value, depth)
        return self.known[value]

    def _grid(self, value: Value, depth: int) -> Grid | None:
        value, passed = pass_casts(value)
        node = value.producer
        if not depth or node.controls:
            return None
        result = self._evaluated(value, depth)
        casts = (name for name in passed if value.view.op(name) == "Cast")
        if result is None or (result.base is not None and any(casts)):
            return None
        own = () if node.op == "Const" or result.base == value.tensor else (node.name,)
        return replace(result, nodes=(*passed, *own, *result.nodes))

    def _evaluated(self, value: Value, depth: int) -> Grid | None:
        node = value.producer
        rules = {
            "ExpandDims": self._expanded,
            "Tile": self._tiled,
            "Reshape": self._flattened,
            "Mul": self._scaled,
            "Add": self._added,
            "AddV2": self._added,
            "BroadcastTo": self._broadcast,
        }
        if node.op == "Const":
            return _constant(value)
        if node.op == "Range":
            return self._range(node.inputs)
        return rules[node.op](node.inputs, depth) if node.op in rules else self._base(value)

    def _base(self, value: Value) -> Grid | None:
        """A tensor that is computed otherwise: its elements, by its shape."""
        shape = self.math.shape_of(value)
        if shape is None:
            return None
        axes = tuple(_loops((size,)) for size in shape)
        return Grid(axes, tuple((0,) * len(axis) for axis in axes), base=value.tensor)

    def _range(self, inputs: tuple[Value, ...]) -> Grid | None:
        start, limit, delta = (self.math.scalar(bound) for bound in inputs)
        if start != 0 or delta != 1 or limit is None:
            return None
        axis = _loops((limit,))
        return Grid((axis,), ((1,) * len(axis),))

    def _expanded(self, inputs: tuple[Value, ...], depth: int) -> Grid | None:
        inner, index = self.grid(inputs[0], depth - 1), inputs[1].item
        if inner is None or inner.base is not None or index is None:
            return None
        index += len(inner.axes) + 1 if index < 0 else 0
        if not 0 <= index <= len(inner.axes):
            return None
        axes, factors = list(inner.axes), list(inner.factors)
        axes.insert(index, ())
        factors.insert(index, ())
        return Grid(tuple(axes), tuple(factors), nodes=inner.nodes)

    def _tiled(self, inputs: tuple[Value, ...], depth: int) -> Grid | None:
        inner, counts = self.grid(inputs[0], depth - 1), self.math.vector(inputs[1])
        if inner is None or inner.base is not None or counts is None:
            return None
        if len(counts) != len(inner.axes):
            return None
        outer = [_loops((count,)) for count in counts]
        axes = tuple((*new, *old) for new, old in zip(outer, inner.axes, strict=True))
        zeros = [(0,) * len(new) for new in outer]
        factors = tuple((*new, *old) for new, old in zip(zeros, inner.factors, strict=True))
        return Grid(axes, factors, nodes=inner.nodes)

    def _flattened(self, inputs: tuple[Value, ...], depth: int) -> Grid | None:
        target = self.math.vector(inputs[1])
        inner = self.grid(inputs[0], depth - 1)
        if inner is None or target is None or len(target) != 1:
            return None
        axis = tuple(extent for loops in inner.axes for extent in loops)
        if target[0] not in (-1, product(axis)):
            return None
        factors = tuple(factor for strides in inner.factors for factor in strides)
        return _merged(Grid((axis,), (factors,), inner.base, inner.nodes))

    def _broadcast(self, inputs: tuple[Value, ...], depth: int) -> Grid | None:
        """Grappler's way to add 0."""
        inner, target = self.grid(inputs[0], depth - 1), self.math.vector(inputs[1])
        if inner is None or target is None or len(inner.axes) != 1:
            return None
        return inner if target == (product(inner.axes[0]),) else None

    def _scaled(self, inputs: tuple[Value, ...], depth: int) -> Grid | None:
        for number, other in (inputs, inputs[::-1]):
            value = self.math.scalar(number)
            inner = self.grid(other, depth - 1) if isinstance(value, int) else None
            if inner is not None and inner.base is None and isinstance(value, int):
                factors = tuple(tuple(f * value for f in axis) for axis in inner.factors)
                return Grid(inner.axes, factors, nodes=inner.nodes)
        return None

    def _added(self, inputs: tuple[Value, ...], depth: int) -> Grid | None:
        left, right = (self.grid(operand, depth - 1) for operand in inputs)
        if left is None or right is None or left.axes != right.axes:
            return None
        if left.base is not None and right.base is not None:
            return None
        factors = tuple(
            tuple(a + b for a, b in zip(of_left, of_right, strict=True))
            for of_left, of_right in zip(left.factors, right.factors, strict=True)
        )
        base = left.base if left.base is not None else right.base
        return Grid(left.axes, factors, base, (*left.nodes, *right.nodes))


def _loops(extents: tuple[Element, ...]) -> Vector:
    return tuple(extent for extent in extents if extent != 1)


def _constant(vector: Value) -> Grid | None:
    value = vector.constant
    return None if value is None or value.ndim != 1 or value.dtype.kind != "i" else _counted(value)


def _counted(value: npt.NDArray[Any]) -> Grid | None:
    """Constants that count: 0, 1, 2; 0, 0, 1, 1; 0, 5, 0, 5; all 0."""
    size = value.size
    if not value.any():
        axis = _loops((size,))
        return Grid((axis,), ((0,) * len(axis),))
    if value[0] != 0:
        return None
    positions = np.arange(size)
    zeros = np.flatnonzero(value == 0)
    period = int(zeros[1]) if len(zeros) > 1 and zeros[1] > 1 else size
    step = int(value[1])
    if step and size % period == 0 and np.array_equal(value, positions % period * step):
        return _nested((size // period, period), (0, step))
    length = len(zeros)
    if size % length == 0 and np.array_equal(value, positions // length):
        return _nested((size // length, length), (1, 0))
    return None


def _nested(extents: tuple[int, int], factors: tuple[int, int]) -> Grid:
    pairs = [pair for pair in zip(extents, factors, strict=True) if pair[0] != 1]
    return Grid((tuple(pair[0] for pair in pairs),), (tuple(pair[1] for pair in pairs),))


def _merged(of: Grid) -> Grid:
    """Neighbouring loops behind the first, of known extents, that count as one are made one."""
    (axis,), (factors,) = of.axes, of.factors
    extents: list[Element] = []
    numbers: list[int] = []
    for extent, factor in zip(axis, factors, strict=True):
        before = extents[-1] if len(extents) > 1 else None
        if isinstance(before, int) and isinstance(extent, int) and numbers[-1] == factor * extent:
            extents[-1], numbers[-1] = before * extent, factor
        else:
            extents.append(extent)
            numbers.append(factor)
    return replace(of, axes=(tuple(extents),), factors=(tuple(numbers),))
