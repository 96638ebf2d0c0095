"""Symbolic arithmetic on shape vectors: what does this small integer tensor hold?

TensorFlow computes shapes with whole chains of tiny ops (Shape, Slice, Prod, GatherV2, Pack, Cast,
ConcatV2 ...), and Grappler folds and merges parts of them. Evaluating them symbolically makes the
recognisers independent of how a chain is written.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fusion.passes.graph.idioms import is_row_gather, pass_casts
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node, Value
from fusion.passes.graph.view import GraphView

_LONGEST = 16
_MAX_DEPTH = 24
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
    """Evaluates integer tensors of a graph to elements.

    Attributes:
        known: shapes that the caller has established for some tensors.
    """

    known: dict[Tensor, Vector] = field(default_factory=dict)
    _vectors: dict[Tensor, Vector | None] = field(default_factory=dict)
    _scalars: dict[Tensor, Element | None] = field(default_factory=dict)

    def vector(self, value: Value, depth: int = _MAX_DEPTH) -> Vector | None:
        """Returns the elements of a 1-D integer tensor, or None when its length is unknown."""
        value, _ = pass_casts(value)
        if value.tensor not in self._vectors:
            self._vectors[value.tensor] = self._vector(value, depth)
        return self._vectors[value.tensor]

    def _vector(self, value: Value, depth: int) -> Vector | None:
        computed = self._computed_vector(value, depth) if depth else None
        if computed is not None:
            return computed
        shape = value.shape
        if shape is None or len(shape) != 1 or shape[0] is None or shape[0] > _LONGEST:
            return None
        return tuple(Item(value.tensor, i) for i in range(shape[0]))

    def scalar(self, value: Value, depth: int = _MAX_DEPTH) -> Element | None:
        """Returns the value of a 0-D integer tensor, or None when no rule explains it."""
        value, _ = pass_casts(value)
        if value.tensor not in self._scalars:
            self._scalars[value.tensor] = self._scalar(value, depth)
        return self._scalars[value.tensor]

    def _scalar(self, value: Value, depth: int) -> Element | None:
        if not depth:
            return None
        constant = value.constant
        if constant is not None:
            return int(constant) if constant.ndim == 0 and constant.dtype.kind == "i" else None
        node = value.producer
        op = node.op
        if op == "Prod":
            return self._product(node, depth)
        if op == "GatherV2" and is_row_gather(node):
            return self._element(node.input(0), self.scalar(node.input(1), depth - 1), depth)
        if op == "StridedSlice":
            picked = self._strided(node, depth)
            return picked if not isinstance(picked, tuple) else None
        if op in _MEASURES - {"Shape"}:
            return self._measure(op, node.input(0))
        if op in _ARITHMETIC:
            left, right = (self.scalar(operand, depth - 1) for operand in node.inputs)
            return _calculate(op, left, right)
        if op == "SelectV2":
            test, *operands = node.inputs
            holds = self._holds(test.producer, depth - 1)
            either = [self.scalar(operand, depth - 1) for operand in operands]
            return None if holds is None or None in either else either[0 if holds else 1]
        return None

    def _holds(self, test: Node, depth: int) -> bool | None:
        """Returns what comes of a comparison of numbers, or None when it is not known."""
        if not depth or test.op != "GreaterEqual":
            return None
        left, right = (self.scalar(operand, depth - 1) for operand in test.inputs)
        return left >= right if isinstance(left, int) and isinstance(right, int) else None

    def _measure(self, op: str, value: Value) -> Element | None:
        shape = self.shape_of(value)
        if shape is None:
            return None
        return len(shape) if op == "Rank" else product(shape)

    def shape_of(self, value: Value) -> Vector | None:
        """Returns the elements of `tf.shape(value)`, or None when the rank is unknown."""
        value = value.resolved
        if value.tensor in self.known:
            return self.known[value.tensor]
        shape = value.shape
        if shape is None:
            return None
        tensor = value.tensor
        return tuple(Dim(tensor, i) if size is None else size for i, size in enumerate(shape))

    def derived(self, value: Value, roots: set[Value]) -> tuple[str, ...]:
        """Returns the shape-computing nodes between `value` and the shapes of `roots`."""
        depends: dict[str, bool] = {}
        self._depends(value.view, value.node, roots, depends, _MAX_DEPTH)
        return tuple(name for name, yes in depends.items() if yes)

    def _depends(
        self, view: GraphView, name: str, roots: set[Value], depends: dict[str, bool], depth: int
    ) -> bool:
        """Whether a node is computed from shapes of `roots`; of some it is known."""
        if name in depends:
            return depends[name]
        depends[name] = False
        op = view.op(name)
        if not depth or op not in _SHAPE_OPS:
            return False
        if op in _MEASURES:
            depends[name] = Node(view, name).input(0).resolved in roots
        else:
            operands = (operand.node for operand in view.inputs(name))
            dependent = [self._depends(view, one, roots, depends, depth - 1) for one in operands]
            depends[name] = any(dependent)
        return depends[name]

    def _computed_vector(self, value: Value, depth: int) -> Vector | None:
        node = value.producer
        op = node.op
        if op == "Const":
            return _constant_vector(value)
        if op == "Shape":
            return self.shape_of(node.input(0))
        if op == "Pack" and node.int_attr("axis") in (0, -1):
            parts = [self.scalar(part, depth - 1) for part in node.inputs]
            elements = tuple(part for part in parts if part is not None)
            return elements if len(elements) == len(parts) else None
        rules = {"ConcatV2": self._concatenated, "Fill": self._filled, "Slice": self._sliced}
        if op in rules:
            return rules[op](node.inputs, depth)
        if op == "ExpandDims":
            # Of a number; what is expanded otherwise has more than one dimension.
            number = self.scalar(node.input(0), depth - 1)
            return (number,) if number is not None and node.input(1).item in (0, -1) else None
        if op == "GatherV2" and is_row_gather(node):
            return self._picked(node.inputs, depth)
        if op == "StridedSlice":
            picked = self._strided(node, depth)
            return picked if isinstance(picked, tuple) else None
        if op == "SparseReshape" and value.index == 1:
            target = self.vector(node.input(2), depth - 1)
            return target if target is not None and -1 not in target else None
        return None

    def _concatenated(self, inputs: tuple[Value, ...], depth: int) -> Vector | None:
        if inputs[-1].scalar != 0:
            return None
        joined: Vector = ()
        for part in inputs[:-1]:
            elements = self.vector(part, depth - 1)
            if elements is None:
                return None
            joined += elements
        return joined

    def _filled(self, inputs: tuple[Value, ...], depth: int) -> Vector | None:
        shape = self.vector(inputs[0], depth - 1)
        value = self.scalar(inputs[1], depth - 1)
        if shape is None or value is None or len(shape) != 1:
            return None
        count = shape[0]
        return (value,) * count if isinstance(count, int) and 0 <= count <= _LONGEST else None

    def _picked(self, inputs: tuple[Value, ...], depth: int) -> Vector | None:
        source, places = self.vector(inputs[0], depth - 1), _constant_vector(inputs[1])
        if source is None or places is None:
            return None
        picked = tuple(
            source[place] for place in places if isinstance(place, int) and 0 <= place < len(source)
        )
        return picked if len(picked) == len(places) else None

    def _sliced(self, inputs: tuple[Value, ...], depth: int) -> Vector | None:
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

    def _strided(self, node: Node, depth: int) -> Vector | Element | None:
        """Evaluates a StridedSlice of a vector: an element if the axis is shrunk, else a range."""
        vector, *positions = node.inputs
        source = self.vector(vector, depth - 1)
        bounds = [_constant_vector(bound) for bound in positions]
        if source is None or any(bound is None or len(bound) != 1 for bound in bounds):
            return None
        begin, end, stride = (bound[0] for bound in bounds if bound is not None)
        if any(node.int_attr(mask) for mask in ("ellipsis_mask", "new_axis_mask")):
            return None
        if not (isinstance(begin, int) and isinstance(end, int) and stride == 1):
            return None
        if node.int_attr("shrink_axis_mask"):
            return source[begin] if -len(source) <= begin < len(source) else None
        start = None if node.int_attr("begin_mask") else begin
        stop = None if node.int_attr("end_mask") else end
        return source[start:stop]

    def _product(self, node: Node, depth: int) -> Element | None:
        factors = self.vector(node.input(0), depth - 1)
        if factors is None or node.input(1).item not in (0, -1) or node.flag_attr("keep_dims"):
            return None
        return product(factors)

    def _element(self, source: Value, index: Element | None, depth: int) -> Element | None:
        elements = self.vector(source, depth - 1)
        if elements is None or not isinstance(index, int) or not 0 <= index < len(elements):
            return None
        return elements[index]


def _constant_vector(vector: Value) -> Vector | None:
    value = vector.constant
    if value is None or value.ndim != 1 or value.dtype.kind != "i" or value.size > _LONGEST:
        return None
    return tuple(int(element) for element in value)


def is_flat_already(node: Node) -> bool:
    """Whether the node is a Reshape of a vector to a vector, which changes nothing."""
    if node.op != "Reshape" or node.controls:
        return False
    before, target = node.inputs
    math = ShapeMath()
    shape, new_shape = math.shape_of(before), math.vector(target)
    if shape is None or new_shape is None or len(shape) != 1 or len(new_shape) != 1:
        return False
    return new_shape[0] in (-1, shape[0])


def pass_flat(value: Value) -> tuple[Value, tuple[str, ...]]:
    """Passes aliases and reshapes of vectors to vectors, as in tf.boolean_mask."""
    passed, value = value.aliases, value.resolved
    while is_flat_already(reshape := value.producer):
        inner, target = reshape.inputs
        derived = ShapeMath().derived(target, {inner.resolved})
        passed += (reshape.name, *inner.aliases, *derived)
        value = inner.resolved
    return value, passed


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
    sizes = (*target[:at], *target[at + 1 :])
    rest = [size for size in shape if not isinstance(size, int)]
    number = 1
    for size in shape:
        number *= size if isinstance(size, int) else 1
    for size in sizes:
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
