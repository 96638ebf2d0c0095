"""Symbolic arithmetic on shape vectors: what does this small integer tensor hold?

TensorFlow computes shapes with whole chains of tiny ops (Shape, Slice, Prod, GatherV2, Pack, Cast,
ConcatV2 ...), and Grappler folds and merges parts of them. Evaluating them symbolically makes the
recognisers independent of how a chain is written.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fusion.passes.graph.idioms import is_row_gather, pass_casts
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView

_LONGEST = 16
_DEEPEST = 24
_MEASURES = frozenset({"Shape", "Rank", "Size"})
_ARITHMETIC = frozenset({"Sub", "Add", "AddV2", "Mul"})
_SHAPE_OPS = (
    _MEASURES
    | _ARITHMETIC
    | {"Slice", "StridedSlice", "Pack", "ConcatV2", "Cast", "Prod", "GatherV2", "Identity"}
    | {"ExpandDims", "Fill"}
)


@dataclass(frozen=True)
class Item:
    """Element `index` of the 1-D integer tensor `tensor`, known only at run time."""

    tensor: Tensor
    index: int


@dataclass(frozen=True)
class Dim:
    """Size of dimension `axis` of `tensor`, known only at run time."""

    tensor: Tensor
    axis: int


@dataclass(frozen=True)
class Product:
    """The product of at least two elements."""

    factors: tuple[Element, ...]


Element = int | Item | Dim | Product
Vector = tuple[Element, ...]


@dataclass(frozen=True)
class ShapeMath:
    """Evaluates integer tensors of `view` to elements.

    Attributes:
        known: shapes that the caller has established for some tensors.
    """

    view: GraphView
    known: dict[Tensor, Vector] = field(default_factory=dict)
    _vectors: dict[Tensor, Vector | None] = field(default_factory=dict)
    _scalars: dict[Tensor, Element | None] = field(default_factory=dict)

    def vector(self, tensor: Tensor, depth: int = _DEEPEST) -> Vector | None:
        """Returns the elements of a 1-D integer tensor, or None when its length is unknown."""
        tensor = self._value(tensor)
        if tensor not in self._vectors:
            self._vectors[tensor] = self._vector(tensor, depth)
        return self._vectors[tensor]

    def _vector(self, tensor: Tensor, depth: int) -> Vector | None:
        computed = self._computed_vector(tensor, depth) if depth else None
        if computed is not None:
            return computed
        shape = self.view.shape(tensor)
        if shape is None or len(shape) != 1 or shape[0] is None or shape[0] > _LONGEST:
            return None
        return tuple(Item(tensor, i) for i in range(shape[0]))

    def scalar(self, tensor: Tensor, depth: int = _DEEPEST) -> Element | None:
        """Returns the value of a 0-D integer tensor, or None when no rule explains it."""
        tensor = self._value(tensor)
        if tensor not in self._scalars:
            self._scalars[tensor] = self._scalar(tensor, depth)
        return self._scalars[tensor]

    def _scalar(self, tensor: Tensor, depth: int) -> Element | None:
        if not depth:
            return None
        value = self.view.constant(tensor)
        if value is not None:
            return int(value) if value.ndim == 0 and value.dtype.kind == "i" else None
        inputs, op = self.view.inputs(tensor.node), self.view.op(tensor.node)
        if op == "Prod":
            return self._product(tensor.node, depth)
        if op == "GatherV2" and is_row_gather(self.view, tensor.node):
            return self._element(inputs[0], self.scalar(inputs[1], depth - 1), depth)
        if op == "StridedSlice":
            picked = self._strided(tensor.node, depth)
            return picked if not isinstance(picked, tuple) else None
        if op in _MEASURES - {"Shape"}:
            return self._measure(op, inputs[0])
        if op in _ARITHMETIC:
            left, right = (self.scalar(operand, depth - 1) for operand in inputs)
            return _calculate(op, left, right)
        if op == "SelectV2":
            holds = self._holds(inputs[0], depth - 1)
            either = [self.scalar(operand, depth - 1) for operand in inputs[1:]]
            return None if holds is None or None in either else either[0 if holds else 1]
        return None

    def _holds(self, tensor: Tensor, depth: int) -> bool | None:
        """Returns what comes of a comparison of numbers, or None when it is not known."""
        test = self.view.resolve(tensor).node
        if not depth or self.view.op(test) != "GreaterEqual":
            return None
        left, right = (self.scalar(operand, depth - 1) for operand in self.view.inputs(test))
        return left >= right if isinstance(left, int) and isinstance(right, int) else None

    def _measure(self, op: str, tensor: Tensor) -> Element | None:
        shape = self.shape_of(tensor)
        if shape is None:
            return None
        return len(shape) if op == "Rank" else product(shape)

    def shape_of(self, tensor: Tensor) -> Vector | None:
        """Returns the elements of `tf.shape(tensor)`, or None when the rank is unknown."""
        tensor = self.view.resolve(tensor)
        if tensor in self.known:
            return self.known[tensor]
        shape = self.view.shape(tensor)
        if shape is None:
            return None
        return tuple(Dim(tensor, i) if size is None else size for i, size in enumerate(shape))

    def derived(self, tensor: Tensor, roots: set[Tensor]) -> tuple[str, ...]:
        """Returns the shape-computing nodes between `tensor` and the shapes of `roots`."""
        depends: dict[str, bool] = {}
        self._depends(tensor.node, roots, depends, _DEEPEST)
        return tuple(name for name, yes in depends.items() if yes)

    def _depends(self, name: str, roots: set[Tensor], depends: dict[str, bool], depth: int) -> bool:
        """Whether a node is computed from shapes of `roots`; of some it is known."""
        if name in depends:
            return depends[name]
        depends[name] = False
        if not depth or self.view.op(name) not in _SHAPE_OPS:
            return False
        inputs = self.view.inputs(name)
        if self.view.op(name) in _MEASURES:
            depends[name] = self.view.resolve(inputs[0]) in roots
        else:
            operands = (operand.node for operand in inputs)
            dependent = [self._depends(one, roots, depends, depth - 1) for one in operands]
            depends[name] = any(dependent)
        return depends[name]

    def _value(self, tensor: Tensor) -> Tensor:
        """Passes aliases and casts between integer types."""
        return pass_casts(self.view, tensor)[0]

    def _computed_vector(self, tensor: Tensor, depth: int) -> Vector | None:
        view, name = self.view, tensor.node
        inputs, op = view.inputs(name), view.op(name)
        if op == "Const":
            return self._constant_vector(tensor)
        if op == "Shape":
            return self.shape_of(inputs[0])
        if op == "Pack" and self.view.int_attr(name, "axis") in (0, -1):
            parts = [self.scalar(part, depth - 1) for part in inputs]
            elements = tuple(part for part in parts if part is not None)
            return elements if len(elements) == len(parts) else None
        rules = {"ConcatV2": self._concatenated, "Fill": self._filled, "Slice": self._sliced}
        if op in rules:
            return rules[op](inputs, depth)
        if op == "ExpandDims":
            # Of a number; what is expanded otherwise has more than one dimension.
            number, axis = self.scalar(inputs[0], depth - 1), self.view.constant(inputs[1])
            is_first = axis is not None and axis.size == 1 and int(axis.reshape(())) in (0, -1)
            return (number,) if number is not None and is_first else None
        if op == "GatherV2" and is_row_gather(self.view, name):
            return self._picked(inputs, depth)
        if op == "StridedSlice":
            picked = self._strided(name, depth)
            return picked if isinstance(picked, tuple) else None
        if op == "SparseReshape" and tensor.index == 1:
            target = self.vector(inputs[2], depth - 1)
            return target if target is not None and -1 not in target else None
        return None

    def _constant_vector(self, tensor: Tensor) -> Vector | None:
        value = self.view.constant(tensor)
        if value is None or value.ndim != 1 or value.dtype.kind != "i" or value.size > _LONGEST:
            return None
        return tuple(int(element) for element in value)

    def _concatenated(self, inputs: tuple[Tensor, ...], depth: int) -> Vector | None:
        if not self._is_zero(inputs[-1]):
            return None
        joined: Vector = ()
        for part in inputs[:-1]:
            elements = self.vector(part, depth - 1)
            if elements is None:
                return None
            joined += elements
        return joined

    def _filled(self, inputs: tuple[Tensor, ...], depth: int) -> Vector | None:
        shape = self.vector(inputs[0], depth - 1)
        value = self.scalar(inputs[1], depth - 1)
        if shape is None or value is None or len(shape) != 1:
            return None
        count = shape[0]
        return (value,) * count if isinstance(count, int) and 0 <= count <= _LONGEST else None

    def _picked(self, inputs: tuple[Tensor, ...], depth: int) -> Vector | None:
        source, places = self.vector(inputs[0], depth - 1), self._constant_vector(inputs[1])
        if source is None or places is None:
            return None
        picked = tuple(
            source[place] for place in places if isinstance(place, int) and 0 <= place < len(source)
        )
        return picked if len(picked) == len(places) else None

    def _sliced(self, inputs: tuple[Tensor, ...], depth: int) -> Vector | None:
        source = self.vector(inputs[0], depth - 1)
        begin, size = (self.vector(bound, depth - 1) for bound in inputs[1:])
        if source is None or begin is None or size is None or len(begin) != 1 or len(size) != 1:
            return None
        start, count = begin[0], size[0]
        if not isinstance(start, int) or not isinstance(count, int):
            return None
        if count == -1:
            count = len(source) - start
        if start < 0 or count < 0 or start + count > len(source):
            return None
        return source[start : start + count]

    def _strided(self, name: str, depth: int) -> Vector | Element | None:
        """Evaluates a StridedSlice of a vector: an element if the axis is shrunk, else a range."""
        inputs = self.view.inputs(name)
        source = self.vector(inputs[0], depth - 1)
        bounds = [self._constant_vector(bound) for bound in inputs[1:]]
        if source is None or any(bound is None or len(bound) != 1 for bound in bounds):
            return None
        begin, end, stride = (bound[0] for bound in bounds if bound is not None)
        if any(self.view.int_attr(name, mask) for mask in ("ellipsis_mask", "new_axis_mask")):
            return None
        if not (isinstance(begin, int) and isinstance(end, int) and stride == 1):
            return None
        if self.view.int_attr(name, "shrink_axis_mask"):
            return source[begin] if -len(source) <= begin < len(source) else None
        start = None if self.view.int_attr(name, "begin_mask") else begin
        stop = None if self.view.int_attr(name, "end_mask") else end
        return source[start:stop]

    def _product(self, name: str, depth: int) -> Element | None:
        inputs = self.view.inputs(name)
        factors = self.vector(inputs[0], depth - 1)
        axis = self.view.constant(inputs[1])
        if (
            factors is None
            or axis is None
            or axis.size != 1
            or int(axis.reshape(())) not in (0, -1)
        ):
            return None
        return None if self.view.flag_attr(name, "keep_dims") else product(factors)

    def _element(self, source: Tensor, index: Element | None, depth: int) -> Element | None:
        elements = self.vector(source, depth - 1)
        if elements is None or not isinstance(index, int) or not 0 <= index < len(elements):
            return None
        return elements[index]

    def _is_zero(self, tensor: Tensor) -> bool:
        value = self.view.constant(tensor)
        return value is not None and value.ndim == 0 and int(value) == 0


def is_flat_already(view: GraphView, name: str) -> bool:
    """Whether the node is a Reshape of a vector to a vector, which changes nothing."""
    if view.op(name) != "Reshape" or view.controls(name):
        return False
    before, target = view.inputs(name)
    math = ShapeMath(view)
    shape, new_shape = math.shape_of(before), math.vector(target)
    if shape is None or new_shape is None or len(shape) != 1 or len(new_shape) != 1:
        return False
    return new_shape[0] in (-1, shape[0])


def pass_flat(view: GraphView, tensor: Tensor) -> tuple[Tensor, tuple[str, ...]]:
    """Passes aliases and reshapes of vectors to vectors, as in tf.boolean_mask."""
    passed = view.aliases(tensor)
    tensor = view.resolve(tensor)
    while is_flat_already(view, tensor.node):
        inner, target = view.inputs(tensor.node)
        derived = ShapeMath(view).derived(target, {view.resolve(inner)})
        passed += (tensor.node, *view.aliases(inner), *derived)
        tensor = view.resolve(inner)
    return tensor, passed


def has_measured_columns(sizes: Vector | None) -> bool:
    """Whether the sizes of a dense shape behind the rows are numbers, or sizes of tensors."""
    columns = (None,) if sizes is None else sizes[1:]
    return all(isinstance(size, Dim) or (isinstance(size, int) and size >= 0) for size in columns)


def product(factors: Vector) -> Element:
    """The product in its normal form: numbers multiplied and last, 1 left out."""
    number = 1
    symbols: list[Element] = []
    stack = [*reversed(factors)]
    while stack:
        factor = stack.pop()
        if isinstance(factor, int):
            number *= factor
        elif isinstance(factor, Product):
            stack += reversed(factor.factors)
        else:
            symbols.append(factor)
    if not symbols:
        return number
    if number != 1:
        symbols.append(number)
    return symbols[0] if len(symbols) == 1 else Product(tuple(symbols))


def reshaped(shape: Vector, target: Vector) -> Vector | None:
    """Returns the shape of a reshaped tensor, or None if it is not sure that it can be reshaped."""
    if 0 in shape or 0 in target:
        return None
    if -1 not in target:
        return target if product(shape) == product(target) else None
    at = target.index(-1)
    given = (*target[:at], *target[at + 1 :])
    rest = [size for size in shape if not isinstance(size, int)]
    number = 1
    for size in shape:
        number *= size if isinstance(size, int) else 1
    for size in given:
        if isinstance(size, int):
            if size < 0 or number % size:
                return None
            number //= size
        elif size in rest:
            rest.remove(size)
        else:
            return None
    return (*target[:at], product((*rest, number)), *target[at + 1 :])


def _calculate(op: str, left: Element | None, right: Element | None) -> int | None:
    if not isinstance(left, int) or not isinstance(right, int):
        return None
    if op == "Sub":
        return left - right
    return left * right if op == "Mul" else left + right
