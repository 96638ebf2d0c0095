"""The gradient of a lookup: how stock TensorFlow brings it from the result to the gathered rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from fusion.passes.analysis.symbolic_shapes import Dim, ShapeMath, Vector
from fusion.passes.graph.idioms import is_row_gather, pass_casts
from fusion.passes.graph.tensor import Tensor, Use
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.backward.concat_gradient import is_shape_of, measured, packed_shapes
from fusion.passes.recognise.match import Match, NoMatch, Stage
from fusion.passes.recognise.stock.output import Mask, match_tail
from fusion.passes.recognise.stock.reduction import COMBINERS, QUOTIENTS, Reduction

GRADIENTS = frozenset({*(f"{op}Grad" for op in COMBINERS), "UnsortedSegmentSum"})
"""What adds up the gradients of gathered rows."""
_OF_TABLES = frozenset(f"{op}GradV2" for op in COMBINERS)
"""What finds the distinct ids as well: gradients of lookups without such a step of their own."""


@dataclass(frozen=True, kw_only=True)
class Gradient(Match):
    """The gradient of the distinct rows of a lookup, from that of its result.

    Attributes:
        top: the gradient of the result, [B, D].
        output: the gradient of the distinct rows, [u, D].
        keys: the distinct ids, [u].
    """

    top: Tensor
    output: Tensor
    keys: Tensor


def match_gradients(
    sums: GradientSums,
    reduction: Reduction,
    unique: str,
    mask: Mask,
    result: Tensor,
    shape: Vector,
    is_divisor_positive: bool,
) -> tuple[Gradient | NoMatch, ...]:
    """Explains gradients of the reduction, by what adds up rows at the positions of its entries.

    Args:
        sums: those of the graph.
        reduction: what they are gradients of.
        unique: the node that finds the distinct ids; "" if the gradient does.
        mask: of the reduced rows.
        result: the result of the lookup.
        shape: the symbolic [B, D] of it.
        is_divisor_positive: whether what divides the weighted rows of a bag can be no 0.
    """
    kind = _Matcher if unique else _TableMatcher
    matcher = kind(sums.view, reduction, mask, result, shape, is_divisor_positive)
    maybe = sums.of(reduction.positions, reduction.rows)
    return tuple(matcher.match(use) for use in maybe if matcher.is_own(use))


@dataclass(frozen=True)
class GradientSums:
    """What adds up rows at the positions of entries, anywhere in a graph.

    Lookups of the same ids share these positions, and have a gradient each. The gradients are
    distinguished once, by the rows that they count, as far as these are plain to see.
    """

    view: GraphView
    _known: dict[Tensor, dict[Tensor | None, list[tuple[int, Use]]]] = field(default_factory=dict)

    def of(self, positions: Tensor, rows: Tensor) -> list[Use]:
        """Returns sums for these positions, in order, without those that surely sum other rows."""
        positions, rows = self.view.resolve(positions), self.view.resolve(rows)
        if positions not in self._known:
            self._known[positions] = self._by_rows(positions)
        uses = self._known[positions]
        return [use for _, use in sorted((*uses.get(rows, ()), *uses.get(None, ())))]

    def _by_rows(self, positions: Tensor) -> dict[Tensor | None, list[tuple[int, Use]]]:
        """Returns numbered sums by the rows that they count, None where this is to be computed."""
        view = self.view
        uses: dict[Tensor | None, list[tuple[int, Use]]] = {}
        for number, use in enumerate(_readers(view, positions)):
            op, rows = view.op(use.node), None
            if op not in GRADIENTS | _OF_TABLES:
                continue
            measure = view.resolve(view.inputs(use.node)[-1])
            if view.op(measure.node) == "StridedSlice":
                measure = view.resolve(view.inputs(measure.node)[0])
            if op in GRADIENTS and view.op(measure.node) == "Shape":
                rows = view.resolve(view.inputs(measure.node)[0])
            uses.setdefault(rows, []).append((number, use))
        return uses


def _readers(view: GraphView, tensor: Tensor) -> Iterator[Use]:
    """Yields the uses of what a vector stands for, through aliases too."""
    stack = [view.resolve(tensor)]
    while stack:
        for use in view.tensor_uses(stack.pop()):
            alias = Tensor(use.node)
            if use.position >= 0 and (_is_alias(view, use) or _is_same_vector(view, use)):
                stack.append(alias)
            elif use.position >= 0 and view.is_live(use.node):
                yield use


def _is_alias(view: GraphView, use: Use) -> bool:
    alias = Tensor(use.node)
    return view.resolve(alias) == view.resolve(use.tensor) != alias


def _is_same_vector(view: GraphView, use: Use) -> bool:
    """Whether a vector is reshaped to itself, as the gradient of a gather does with its indices."""
    if view.op(use.node) != "Reshape" or use.position or view.controls(use.node):
        return False
    length = Dim(use.tensor, 0)
    math = ShapeMath(view, {use.tensor: (length,)})
    return math.vector(view.inputs(use.node)[1]) in ((-1,), (length,))


@dataclass(frozen=True)
class _Matcher:
    """Explains the gradients of one lookup."""

    view: GraphView
    reduction: Reduction
    mask: Mask
    result: Tensor
    shape: Vector
    is_divisor_positive: bool

    def is_own(self, use: Use) -> bool:
        """Whether the node of a use counts the rows that are gathered for this reduction."""
        view, rows = self.view, self.view.resolve(self.reduction.rows)
        if view.op(use.node) not in GRADIENTS:
            return False
        count = view.inputs(use.node)[-1]
        known: dict[Tensor, Vector] = {rows: (Dim(rows, 0), self.shape[1])}
        return ShapeMath(view, known).scalar(count) == Dim(rows, 0)

    def keys(self, name: str) -> Tensor:
        """The distinct ids of a gradient."""
        return Tensor(self.view.resolve(self.reduction.positions).node)

    @property
    def kind(self) -> str:
        """The op of a gradient without weights."""
        return f"{self.view.op(self.reduction.anchor)}Grad"

    def match(self, use: Use) -> Gradient | NoMatch:
        """Explains the node of a use as the sum of what each distinct row gets."""
        view, name = self.view, use.node
        if use.position != 1 or view.type_attr(name, "T") != self.reduction.dtype:
            return NoMatch("the indices of Unique are used otherwise than by a gradient", name)
        is_weighted = self.reduction.weighting is not None
        match = self._weighted(name) if is_weighted else self._plain(name)
        if isinstance(match, NoMatch):
            return match
        grad, nodes = match
        masked = _match_mask(view, grad, self.mask)
        if isinstance(masked, NoMatch):
            return masked
        top, mask_nodes = masked
        keys = self.keys(name)
        tail = match_tail(view, Tensor(name), (Dim(keys, 0), self.shape[1]))
        return Gradient(
            stage=Stage.OUTPUT,
            nodes=tuple(dict.fromkeys((*nodes, *view.aliases(grad), *mask_nodes, *tail.nodes))),
            top=top,
            output=tail.output,
            keys=keys,
        )

    def _plain(self, name: str) -> tuple[Tensor, tuple[str, ...]] | NoMatch:
        """Explains the gradient of an op that does all: that of its result, and the nodes."""
        view = self.view
        if view.op(name) != self.kind:
            return NoMatch("the gradient is that of another reduction", name)
        grad, _, segments, _ = view.inputs(name)
        segments, passed = pass_casts(view, segments)
        if segments != self.reduction.segments:
            return NoMatch("the gradient is that of other segment ids", name)
        return grad, (name, *passed)

    def _weighted(self, name: str) -> tuple[Tensor, tuple[str, ...]] | NoMatch:
        """Explains `sum(weights * gather(grad / divisor, segments), positions)`."""
        view, reduction = self.view, self.reduction
        weighting = reduction.weighting
        assert weighting is not None
        values = view.inputs(name)[0]
        refusal = NoMatch("the gradient of weighted rows is not understood", name)
        if view.op(name) != "UnsortedSegmentSum":
            return refusal
        shape = (Dim(view.resolve(reduction.positions), 0), self.shape[1])
        product, passed = self._spread(values, shape, weighting.entries)
        nodes = (name, *passed)
        operands = [view.resolve(operand) for operand in view.inputs(product.node)]
        if view.op(product.node) != "Mul" or weighting.column not in operands:
            return refusal
        operands.remove(weighting.column)
        (gathered,) = operands
        if not is_row_gather(view, gathered.node):
            return refusal
        bags, segments = view.inputs(gathered.node)[:2]
        segments, passed = pass_casts(view, segments)
        if segments != reduction.segments:
            return NoMatch("the gradient is that of other segment ids", gathered.node)
        summed = Tensor(reduction.anchor)
        nodes += (product.node, gathered.node, *passed)
        quotient, passed = self._spread(bags, (Dim(summed, 0), self.shape[1]), summed)
        nodes += passed
        if weighting.divisor is None:
            return quotient, nodes
        if view.op(quotient.node) not in QUOTIENTS:
            return refusal
        if view.op(quotient.node) != "DivNoNan" and not self.is_divisor_positive:
            why = "the gradient of weighted rows divides by what may be 0"
            return NoMatch(why, quotient.node)
        grad, divisor = view.inputs(quotient.node)
        if view.resolve(divisor) != weighting.divisor:
            return refusal
        return grad, (*nodes, quotient.node)

    def _spread(self, tensor: Tensor, shape: Vector, of: Tensor) -> tuple[Tensor, tuple[str, ...]]:
        """Passes what undoes the broadcasting of a column [n, 1] to a matrix: nothing is to undo.

        Args:
            of: the matrix, of this shape.
        """
        view, nodes = self.view, self.view.aliases(tensor)
        tensor = view.resolve(tensor)
        rows = view.resolve(self.reduction.rows)
        positions = view.resolve(self.reduction.positions)
        known: dict[Tensor, Vector] = {
            of: shape,
            rows: (Dim(rows, 0), self.shape[1]),
            positions: (Dim(positions, 0),),
        }
        while True:
            op = view.op(tensor.node)
            if op == "Reshape" and ShapeMath(view, known).vector(
                view.inputs(tensor.node)[1]
            ) not in (shape, (-1, shape[1])):
                break
            if op == "Sum" and not self._sums_nothing(tensor.node, of):
                break
            if op not in ("Reshape", "Sum"):
                break
            inner = view.inputs(tensor.node)[0]
            nodes += (tensor.node, *view.aliases(inner))
            tensor = view.resolve(inner)
        return tensor, nodes

    def _sums_nothing(self, name: str, of: Tensor) -> bool:
        """Whether a Sum is over what broadcasting a column to a matrix added to the matrix."""
        view = self.view
        axes = view.resolve(view.inputs(name)[1])
        if view.op(axes.node) != "BroadcastGradientArgs":
            return False
        weighting = self.reduction.weighting
        assert weighting is not None
        shapes = view.inputs(axes.node)
        matrix, column = shapes[axes.index], shapes[1 - axes.index]
        columns = (weighting.column, weighting.divisor)
        return is_shape_of(view, matrix, of) and any(
            is_shape_of(view, column, size) for size in columns if size is not None
        )


@dataclass(frozen=True)
class _TableMatcher(_Matcher):
    """Explains the gradients of a lookup that reduces rows of the table itself."""

    def is_own(self, use: Use) -> bool:
        """Whether the node of a use is the gradient of this reduction.

        It is made of the ids, and knows the table by its size alone: all lookups of the same ids
        and size have such a node. That of this one measures its result, or has no other to be of.
        """
        view, reduction, name = self.view, self.reduction, use.node
        if view.op(name) != self.kind:
            return False
        rows, (grad, _, segments, size) = view.resolve(reduction.rows), view.inputs(name)
        known: dict[Tensor, Vector] = {rows: (Dim(rows, 0), self.shape[1])}
        counts = {Dim(rows, 0), *(view.shape(rows) or (None,))[:1]} - {None}
        if pass_casts(view, segments)[0] != reduction.segments:
            return False
        if ShapeMath(view, known).scalar(size) not in counts:
            return False
        return self._measures_result(grad) or self._is_only(grad)

    def keys(self, name: str) -> Tensor:
        """The distinct ids, which the gradient finds itself."""
        return Tensor(name, 1)

    @property
    def kind(self) -> str:
        """The op of a gradient."""
        return f"{super().kind}V2"

    def _measures_result(self, grad: Tensor) -> bool:
        """Whether a gradient is masked or shaped by this lookup's own result."""
        view, select = self.view, self.view.resolve(grad)
        results = {self.reduction.output, self.mask.output, self.result}
        if not self.mask.present or not view.op(select.node).startswith("Select"):
            return self._has_shape_of(select, results)
        _, zeros, top = view.inputs(select.node)
        source = view.resolve(zeros)
        while view.op(source.node) == "ZerosLike":
            source = view.resolve(view.inputs(source.node)[0])
            if source in results:
                return True
        return self._has_shape_of(view.resolve(top), results)

    def _has_shape_of(self, tensor: Tensor, results: set[Tensor]) -> bool:
        """Whether a tensor is given the shape of one of the results, or its width."""
        view = self.view
        if view.op(tensor.node) == "Reshape":
            return measured(view, view.inputs(tensor.node)[1]) in results
        if view.op(tensor.node) == "Slice":
            return measured(view, view.inputs(tensor.node)[2]) in results
        if view.op(tensor.node) == "SplitV":
            shapes = packed_shapes(view, view.inputs(tensor.node)[1])
            return len(shapes) > tensor.index and measured(view, shapes[tensor.index]) in results
        return False

    def _is_only(self, grad: Tensor) -> bool:
        """Whether no other lookup is like this one, and rows have the width of the gradient's."""
        view = self.view
        shape, width = view.shape(grad), self.shape[1]
        if shape is None or len(shape) != 2 or shape[1] is None or shape[1] != width:
            return False
        alike = [
            use
            for use in _readers(view, self.reduction.positions)
            if use.position == 1 and view.op(use.node) in COMBINERS
        ]
        return len(alike) == 1


def _match_mask(
    view: GraphView, grad: Tensor, mask: Mask
) -> tuple[Tensor, tuple[str, ...]] | NoMatch:
    """Explains a gradient that empty rows have no part in: that of the result, and the nodes."""
    source = view.resolve(grad)
    if not mask.present:
        return source, ()
    select, forward = source.node, mask.output.node
    if view.op(select) != view.op(forward) or view.op(select) not in ("Select", "SelectV2"):
        return NoMatch("the gradient of empty rows is not left out", select)
    condition, zeros, top = view.inputs(select)
    if view.resolve(condition) != view.resolve(view.inputs(forward)[0]):
        return NoMatch("the gradient of other rows is left out", select)
    if not _is_zero(view, zeros):
        return NoMatch("the gradient of empty rows is not zeros", select)
    return view.resolve(top), (select, *view.aliases(top))


def _is_zero(view: GraphView, tensor: Tensor) -> bool:
    """Whether all elements are zeros, and not negative ones."""
    source = view.resolve(tensor)
    if view.op(source.node) == "ZerosLike":
        return True
    value = view.constant(source)
    return value is not None and not np.any(value) and not np.any(np.signbit(value))
