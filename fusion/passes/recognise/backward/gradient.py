"""The gradient of a lookup: how stock TensorFlow brings it from the result to the gathered rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np

from fusion.passes.analysis.symbolic_shapes import Dim, ShapeMath, Vector
from fusion.passes.graph.idioms import is_row_gather, pass_casts
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node, Usage, Value
from fusion.passes.recognise.backward.concat_gradient import is_shape_of, measured, packed_shapes
from fusion.passes.recognise.match import Match, NoMatch, Stage
from fusion.passes.recognise.stock.output import Mask, match_tail
from fusion.passes.recognise.stock.reduction import COMBINERS, GRADIENTS, QUOTIENTS, Reduction

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
    is_distinct: bool,
    mask: Mask,
    result: Value,
    shape: Vector,
    is_divisor_positive: bool,
) -> tuple[Gradient | NoMatch, ...]:
    """Explains gradients of the reduction, by what adds up rows at the positions of its entries.

    Args:
        sums: those of the graph.
        reduction: what they are gradients of.
        is_distinct: whether the rows are those of distinct ids; else the gradient finds these.
        mask: of the reduced rows.
        result: the result of the lookup.
        shape: the symbolic [B, D] of it.
        is_divisor_positive: whether what divides the weighted rows of a bag can be no 0.
    """
    kind = _Matcher if is_distinct else _TableMatcher
    matcher = kind(reduction, mask, result, shape, is_divisor_positive)
    maybe = sums.of(reduction.positions, reduction.rows)
    return tuple(matcher.match(use) for use in maybe if matcher.is_own(use.node))


@dataclass(frozen=True)
class GradientSums:
    """What adds up rows at the positions of entries, anywhere in a graph.

    Lookups of the same ids share these positions, and have a gradient each. The gradients are
    distinguished once, by the rows that they count, as far as these are plain to see.
    """

    _known: dict[Value, dict[Value | None, list[tuple[int, Usage]]]] = field(default_factory=dict)

    def of(self, positions: Value, rows: Value) -> list[Usage]:
        """Returns sums for these positions, in order, without those that surely sum other rows."""
        positions, rows = positions.resolved, rows.resolved
        if positions not in self._known:
            self._known[positions] = _by_rows(positions)
        uses = self._known[positions]
        all_uses = (*uses.get(rows, ()), *uses.get(None, ()))
        return [use for _, use in sorted(all_uses, key=itemgetter(0))]


def _by_rows(positions: Value) -> dict[Value | None, list[tuple[int, Usage]]]:
    """Returns numbered sums by the rows that they count, None where this is to be computed."""
    uses: dict[Value | None, list[tuple[int, Usage]]] = {}
    for number, use in enumerate(_readers(positions)):
        op, rows = use.node.op, None
        if op not in GRADIENTS | _OF_TABLES:
            continue
        measure = use.node.input(-1).producer
        if measure.op == "StridedSlice":
            measure = measure.input(0).producer
        if op in GRADIENTS and measure.op == "Shape":
            rows = measure.input(0).resolved
        uses.setdefault(rows, []).append((number, use))
    return uses


def _readers(value: Value) -> Iterator[Usage]:
    """Yields the uses of what a vector stands for, through aliases too."""
    stack = [value.resolved]
    while stack:
        read = stack.pop()
        for use in read.uses:
            if use.position < 0:
                continue
            alias = use.node.output()
            is_alias = alias.resolved == read.resolved != alias
            if is_alias or _is_same_vector(read, use):
                stack.append(alias)
            elif use.node.is_live:
                yield use


def _is_same_vector(vector: Value, use: Usage) -> bool:
    """Whether a vector is reshaped to itself, as the gradient of a gather does with its indices."""
    node, length = use.node, Dim(vector.tensor, 0)
    if node.op != "Reshape" or use.position or node.controls:
        return False
    math = ShapeMath({vector.tensor: (length,)})
    return math.vector(node.input(1)) in ((-1,), (length,))


@dataclass(frozen=True)
class _Matcher:
    """Explains the gradients of one lookup."""

    reduction: Reduction
    mask: Mask
    result: Value
    shape: Vector
    is_divisor_positive: bool

    def is_own(self, node: Node) -> bool:
        """Whether a node counts the rows that are gathered for this reduction."""
        if node.op not in GRADIENTS:
            return False
        rows = self.reduction.rows.resolved.tensor
        count = ShapeMath({rows: (Dim(rows, 0), self.shape[1])}).scalar(node.input(-1))
        return count == Dim(rows, 0)

    def keys(self, node: Node) -> Value:
        """The distinct ids of a gradient."""
        return self.reduction.positions.producer.output()

    @property
    def kind(self) -> str:
        """The op of a gradient without weights."""
        return f"{self.reduction.anchor.op}Grad"

    def match(self, use: Usage) -> Gradient | NoMatch:
        """Explains the node of a use as the sum of what each distinct row gets."""
        node = use.node
        if use.position != 1 or node.type_attr("T") != self.reduction.dtype:
            why = "the indices of Unique are used otherwise than by a gradient"
            return NoMatch(why, node.name)
        is_weighted = self.reduction.weighting is not None
        match = self._weighted(node) if is_weighted else self._plain(node)
        if isinstance(match, NoMatch):
            return match
        grad, nodes = match
        masked = _match_mask(grad, self.mask)
        if isinstance(masked, NoMatch):
            return masked
        top, mask_nodes = masked
        keys = self.keys(node).tensor
        tail = match_tail(node.output(), (Dim(keys, 0), self.shape[1]))
        return Gradient(
            stage=Stage.OUTPUT,
            nodes=tuple(dict.fromkeys((*nodes, *grad.aliases, *mask_nodes, *tail.nodes))),
            top=top.tensor,
            output=tail.output.tensor,
            keys=keys,
        )

    def _plain(self, node: Node) -> tuple[Value, tuple[str, ...]] | NoMatch:
        """Explains the gradient of an op that does all: that of its result, and the nodes."""
        if node.op != self.kind:
            return NoMatch("the gradient is that of another reduction", node.name)
        grad, _, segments, _ = node.inputs
        segments, passed = pass_casts(segments)
        if segments != self.reduction.segments:
            return NoMatch("the gradient is that of other segment ids", node.name)
        return grad, (node.name, *passed)

    def _weighted(self, node: Node) -> tuple[Value, tuple[str, ...]] | NoMatch:
        """Explains `sum(weights * gather(grad / divisor, segments), positions)`."""
        reduction, weighting = self.reduction, self.reduction.weighting
        assert weighting is not None
        values = node.input(0)
        refusal = NoMatch("the gradient of weighted rows is not understood", node.name)
        if node.op != "UnsortedSegmentSum":
            return refusal
        shape = (Dim(reduction.positions.resolved.tensor, 0), self.shape[1])
        product, passed = self._spread(values, shape, weighting.entries)
        nodes = (node.name, *passed)
        operands = [operand.resolved for operand in product.producer.inputs]
        if product.producer.op != "Mul" or weighting.column not in operands:
            return refusal
        operands.remove(weighting.column)
        (gathered,) = operands
        gather = gathered.producer
        if not is_row_gather(gather):
            return refusal
        bags, segments = gather.inputs[:2]
        segments, passed = pass_casts(segments)
        if segments != reduction.segments:
            return NoMatch("the gradient is that of other segment ids", gather.name)
        summed = reduction.anchor.output()
        nodes += (product.node, gather.name, *passed)
        quotient, passed = self._spread(bags, (Dim(summed.tensor, 0), self.shape[1]), summed)
        nodes += passed
        if weighting.divisor is None:
            return quotient, nodes
        division = quotient.producer
        if division.op not in QUOTIENTS:
            return refusal
        if division.op != "DivNoNan" and not self.is_divisor_positive:
            why = "the gradient of weighted rows divides by what may be 0"
            return NoMatch(why, division.name)
        grad, divisor = division.inputs
        if divisor.resolved != weighting.divisor:
            return refusal
        return grad, (*nodes, division.name)

    def _spread(self, value: Value, shape: Vector, of: Value) -> tuple[Value, tuple[str, ...]]:
        """Passes what undoes the broadcasting of a column [n, 1] to a matrix: nothing is to undo.

        Args:
            value: the result.
            shape: that of the matrix.
            of: the matrix.
        """
        value, nodes = value.resolved, value.aliases
        rows = self.reduction.rows.resolved.tensor
        positions = self.reduction.positions.resolved.tensor
        known: dict[Tensor, Vector] = {
            of.tensor: shape,
            rows: (Dim(rows, 0), self.shape[1]),
            positions: (Dim(positions, 0),),
        }
        while True:
            node = value.producer
            if node.op == "Reshape":
                target = ShapeMath(known).vector(node.input(1))
                is_passed = target in (shape, (-1, shape[1]))
            else:
                is_passed = node.op == "Sum" and self._sums_nothing(node, of)
            if not is_passed:
                return value, nodes
            inner = node.input(0)
            nodes += (node.name, *inner.aliases)
            value = inner.resolved

    def _sums_nothing(self, total: Node, of: Value) -> bool:
        """Whether a Sum is over what broadcasting a column to a matrix added to the matrix."""
        axes = total.input(1).resolved
        if axes.producer.op != "BroadcastGradientArgs":
            return False
        weighting = self.reduction.weighting
        assert weighting is not None
        shapes = axes.producer.inputs
        matrix, column = shapes[axes.index], shapes[1 - axes.index]
        columns = (weighting.column, weighting.divisor)
        return is_shape_of(matrix, of) and any(
            is_shape_of(column, size) for size in columns if size is not None
        )


@dataclass(frozen=True)
class _TableMatcher(_Matcher):
    """Explains the gradients of a lookup that reduces rows of the table itself."""

    def is_own(self, node: Node) -> bool:
        """Whether a node is the gradient of this reduction.

        It is made of the ids, and knows the table by its size alone: all lookups of the same ids
        and size have such a node. That of this one measures its result, or has no other to be of.
        """
        reduction = self.reduction
        if node.op != self.kind:
            return False
        rows, (grad, _, segments, size) = reduction.rows.resolved, node.inputs
        count = Dim(rows.tensor, 0)
        counts = {count, *(rows.shape or (None,))[:1]} - {None}
        if pass_casts(segments)[0] != reduction.segments:
            return False
        if ShapeMath({rows.tensor: (count, self.shape[1])}).scalar(size) not in counts:
            return False
        return self._measures_result(grad) or self._is_only(grad)

    def keys(self, node: Node) -> Value:
        """The distinct ids, which the gradient finds itself."""
        return node.output(1)

    @property
    def kind(self) -> str:
        """The op of a gradient."""
        return f"{super().kind}V2"

    def _measures_result(self, grad: Value) -> bool:
        """Whether a gradient is masked or shaped by this lookup's own result."""
        select, results = grad.producer, {self.reduction.output, self.mask.output, self.result}
        if not self.mask.present or not select.op.startswith("Select"):
            return _has_shape_of(grad.resolved, results)
        _, zeros, top = select.inputs
        source = zeros.producer
        while source.op == "ZerosLike":
            of = source.input(0)
            if of.resolved in results:
                return True
            source = of.producer
        return _has_shape_of(top.resolved, results)

    def _is_only(self, grad: Value) -> bool:
        """Whether no other lookup is like this one, and rows have the width of the gradient's."""
        shape, width = grad.shape, self.shape[1]
        if shape is None or len(shape) != 2 or shape[1] is None or shape[1] != width:
            return False
        readers = _readers(self.reduction.positions)
        return sum(use.position == 1 and use.node.op in COMBINERS for use in readers) == 1


def _has_shape_of(value: Value, results: set[Value]) -> bool:
    """Whether a tensor is given the shape of one of the results, or its width."""
    node = value.producer
    if node.op == "Reshape":
        return measured(node.input(1)) in results
    if node.op == "Slice":
        return measured(node.input(2)) in results
    if node.op == "SplitV":
        shapes = packed_shapes(node.input(1))
        return len(shapes) > value.index and measured(shapes[value.index]) in results
    return False


def _match_mask(grad: Value, mask: Mask) -> tuple[Value, tuple[str, ...]] | NoMatch:
    """Explains a gradient that empty rows have no part in: that of the result, and the nodes."""
    if not mask.present:
        return grad.resolved, ()
    select, forward = grad.producer, mask.output.producer
    if select.op != forward.op or select.op not in ("Select", "SelectV2"):
        return NoMatch("the gradient of empty rows is not left out", select.name)
    condition, zeros, top = select.inputs
    if condition.resolved != forward.input(0).resolved:
        return NoMatch("the gradient of other rows is left out", select.name)
    if not _is_zero(zeros):
        return NoMatch("the gradient of empty rows is not zeros", select.name)
    return top.resolved, (select.name, *top.aliases)


def _is_zero(value: Value) -> bool:
    """Whether all elements are zeros, and not negative ones."""
    if value.producer.op == "ZerosLike":
        return True
    zeros = value.constant
    return zeros is not None and not np.any(zeros) and not np.any(np.signbit(zeros))
