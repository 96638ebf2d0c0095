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
from fusion.passes.graph.view import GraphView

_DEEPEST = 24


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


def grid(view: GraphView, tensor: Tensor) -> Grid | None:
    """Returns the grid that a tensor of integers is, or None."""
    return _Evaluator(ShapeMath(view)).grid(tensor, _DEEPEST)


def columns(view: GraphView, tensor: Tensor) -> tuple[Grid, ...] | None:
    """Returns the columns of a [n, k] matrix of integers, each a grid of one axis; or None."""
    math = ShapeMath(view)
    passed: tuple[str, ...] = ()
    tensor, casts = pass_casts(view, tensor)
    passed += casts
    by_row = False
    if view.op(tensor.node) == "Transpose":
        inner, order = view.inputs(tensor.node)
        if math.vector(order) != (1, 0):
            return None
        passed += (tensor.node,)
        tensor, casts = pass_casts(view, inner)
        passed += casts
        by_row = True
    value = view.constant(tensor)
    if value is not None and value.ndim == 2 and not by_row:
        parts = [_counted(column) for column in value.T]
        counted = [part for part in parts if part is not None]
        return tuple(counted) if len(counted) == len(parts) else None
    if view.op(tensor.node) != "Pack" or view.int_attr(tensor.node, "axis") not in (
        (0, -2) if by_row else (1, -1)
    ):
        return None
    grids = [grid(view, operand) for operand in view.inputs(tensor.node)]
    known = [grid for grid in grids if grid is not None and len(grid.axes) == 1]
    if len(known) != len(grids):
        return None
    return tuple(replace(column, nodes=(*passed, tensor.node, *column.nodes)) for column in known)


@dataclass(frozen=True)
class _Evaluator:
    math: ShapeMath
    known: dict[Tensor, Grid | None] = field(default_factory=dict)

    def grid(self, tensor: Tensor, depth: int) -> Grid | None:
        """Returns the grid that a tensor is, evaluated once."""
        if tensor not in self.known:
            self.known[tensor] = self._grid(tensor, depth)
        return self.known[tensor]

    def _grid(self, tensor: Tensor, depth: int) -> Grid | None:
        view = self.math.view
        tensor, passed = pass_casts(view, tensor)
        if not depth or view.controls(tensor.node):
            return None
        result = self._evaluated(tensor, depth)
        if result is None or (result.base is not None and any(map(self._is_cast, passed))):
            return None
        own = () if view.op(tensor.node) == "Const" or result.base == tensor else (tensor.node,)
        return replace(result, nodes=(*passed, *own, *result.nodes))

    def _is_cast(self, name: str) -> bool:
        return self.math.view.op(name) == "Cast"

    def _evaluated(self, tensor: Tensor, depth: int) -> Grid | None:
        view = self.math.view
        op, inputs = view.op(tensor.node), view.inputs(tensor.node)
        if op == "Const":
            return _constant(view, tensor)
        if op == "Range":
            return self._range(inputs)
        if op == "ExpandDims":
            return self._expanded(inputs, depth)
        if op == "Tile":
            return self._tiled(inputs, depth)
        if op == "Reshape":
            return self._flattened(inputs, depth)
        if op == "Mul":
            return self._scaled(inputs, depth)
        if op in ("Add", "AddV2"):
            return self._added(inputs, depth)
        if op == "BroadcastTo":
            return self._broadcast(inputs, depth)
        return self._base(tensor)

    def _base(self, tensor: Tensor) -> Grid | None:
        """A tensor that is computed otherwise: its elements, by its shape."""
        shape = self.math.shape_of(tensor)
        if shape is None:
            return None
        axes = tuple(_loops((size,)) for size in shape)
        return Grid(axes, tuple((0,) * len(axis) for axis in axes), base=tensor)

    def _range(self, inputs: tuple[Tensor, ...]) -> Grid | None:
        start, limit, delta = (self.math.scalar(tensor) for tensor in inputs)
        if start != 0 or delta != 1 or limit is None:
            return None
        axis = _loops((limit,))
        return Grid((axis,), ((1,) * len(axis),))

    def _expanded(self, inputs: tuple[Tensor, ...], depth: int) -> Grid | None:
        inner, axis = self.grid(inputs[0], depth - 1), self.math.view.constant(inputs[1])
        if inner is None or inner.base is not None or axis is None or axis.size != 1:
            return None
        index = int(axis.reshape(()))
        index += len(inner.axes) + 1 if index < 0 else 0
        if not 0 <= index <= len(inner.axes):
            return None
        axes, factors = list(inner.axes), list(inner.factors)
        axes.insert(index, ())
        factors.insert(index, ())
        return Grid(tuple(axes), tuple(factors), nodes=inner.nodes)

    def _tiled(self, inputs: tuple[Tensor, ...], depth: int) -> Grid | None:
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

    def _flattened(self, inputs: tuple[Tensor, ...], depth: int) -> Grid | None:
        target = self.math.vector(inputs[1])
        inner = self.grid(inputs[0], depth - 1)
        if inner is None or target is None or len(target) != 1:
            return None
        axis = tuple(extent for loops in inner.axes for extent in loops)
        if target[0] not in (-1, product(axis)):
            return None
        factors = tuple(factor for strides in inner.factors for factor in strides)
        return _merged(Grid((axis,), (factors,), inner.base, inner.nodes))

    def _broadcast(self, inputs: tuple[Tensor, ...], depth: int) -> Grid | None:
        """Grappler's way to add 0."""
        inner, target = self.grid(inputs[0], depth - 1), self.math.vector(inputs[1])
        if inner is None or target is None or len(inner.axes) != 1:
            return None
        return inner if target == (product(inner.axes[0]),) else None

    def _scaled(self, inputs: tuple[Tensor, ...], depth: int) -> Grid | None:
        for number, other in (inputs, inputs[::-1]):
            value = self.math.scalar(number)
            inner = self.grid(other, depth - 1) if isinstance(value, int) else None
            if inner is not None and inner.base is None and isinstance(value, int):
                factors = tuple(tuple(f * value for f in axis) for axis in inner.factors)
                return Grid(inner.axes, factors, nodes=inner.nodes)
        return None

    def _added(self, inputs: tuple[Tensor, ...], depth: int) -> Grid | None:
        left, right = (self.grid(tensor, depth - 1) for tensor in inputs)
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


def _constant(view: GraphView, tensor: Tensor) -> Grid | None:
    value = view.constant(tensor)
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
