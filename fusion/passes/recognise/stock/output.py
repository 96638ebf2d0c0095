"""What follows the reduction: zeros for empty rows, and reshapes that change nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fusion.passes.analysis.symbolic_shapes import Element, ShapeMath, Vector
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import Match, NoMatch, Stage
from fusion.passes.recognise.stock.entries import Fill


@dataclass(frozen=True, kw_only=True)
class Mask(Match):
    """Rows that were empty become zeros; `present` is False when nothing of the kind is there.

    Attributes:
        output: the reduced rows after the mask, if any.
    """

    present: bool
    output: Tensor


@dataclass(frozen=True, kw_only=True)
class Tail(Match):
    """Reshapes of the result to the shape it already has; `output` is the outermost."""

    output: Tensor


def match_mask(
    view: GraphView, reduced: Tensor, fill: Fill | None, shape: Vector
) -> Mask | NoMatch:
    """Explains `select(tile(is_row_empty), zeros, reduced)`, if a select reads the reduced rows.

    Args:
        shape: the symbolic [B, D] of `reduced`.
    """
    selects = [use for use in view.tensor_uses(reduced) if view.op(use.node).startswith("Select")]
    if fill is None or not selects:
        return Mask(stage=Stage.OUTPUT, nodes=(), present=False, output=reduced)
    select = selects[0].node
    condition, zeros, values = view.inputs(select)
    if view.resolve(values) != reduced:
        return NoMatch("the select does not keep the rows that were not empty", select)
    zero_nodes = match_zeros(view, zeros, reduced, shape, broadcast=view.op(select) == "SelectV2")
    if isinstance(zero_nodes, NoMatch):
        return zero_nodes
    mask_nodes = _match_condition(view, condition, reduced, fill, shape, select)
    if isinstance(mask_nodes, NoMatch):
        return mask_nodes
    if fill.default != 0:
        return NoMatch("empty rows get an id other than 0 and are zeroed as well", select)
    return Mask(
        stage=Stage.OUTPUT,
        nodes=(select, *zero_nodes, *mask_nodes, *view.aliases(values)),
        present=True,
        output=Tensor(select),
    )


def match_tail(view: GraphView, result: Tensor, shape: Vector) -> Tail:
    """Follows reshapes that provably keep the result's shape, up to one with other consumers."""
    nodes: tuple[str, ...] = ()
    known = {result: shape}
    while (step := _identity_reshape(view, result, known)) is not None:
        reshape, explained = step
        nodes += (reshape, *explained)
        result = Tensor(reshape)
        known[result] = shape
    return Tail(stage=Stage.OUTPUT, nodes=nodes, output=result)


def match_zeros(
    view: GraphView, zeros: Tensor, reduced: Tensor, shape: Vector, broadcast: bool
) -> tuple[str, ...] | NoMatch:
    """Explains zeros in the place of reduced rows: the nodes between.

    Args:
        shape: the symbolic [B, D] of `reduced`, for those that are broadcast.
        broadcast: whether they are.
    """
    source = view.resolve(zeros)
    if view.op(source.node) == "ZerosLike":
        inner = view.inputs(source.node)[0]
        if view.resolve(inner) == reduced:
            return (*view.aliases(zeros), source.node, *view.aliases(inner))
    value = view.constant(source)
    # A constant that is broadcast must not make the result larger.
    fits = value is not None and (value.shape == shape if broadcast else value.ndim == 2)
    if value is not None and (fits or (broadcast and value.ndim == 0)):
        negative_zeros = np.any(np.signbit(value))
        if not np.any(value) and not negative_zeros:
            return ()
    return NoMatch("empty rows are not replaced by zeros", source.node)


def _match_condition(
    view: GraphView, condition: Tensor, reduced: Tensor, fill: Fill, shape: Vector, select: str
) -> tuple[str, ...] | NoMatch:
    """Explains a [B, D] (or, for SelectV2, [B, 1]) mask of the fill's empty rows."""
    nodes = view.aliases(condition)
    source = view.resolve(condition)
    if view.op(source.node) == "Tile":
        column, multiples = view.inputs(source.node)
        math = ShapeMath(view, {reduced: shape})
        if math.vector(multiples) != (1, shape[1]):
            return NoMatch("the mask of empty rows is not tiled to the width of a row", source.node)
        nodes += (source.node, *view.aliases(column), *math.derived(multiples, {reduced}))
        source = view.resolve(column)
    elif view.op(select) == "Select":
        # A vector chooses rows.
        if source == fill.is_row_empty:
            return nodes
        return NoMatch("the mask of empty rows is not tiled", source.node)
    if not _is_column(view, source.node):
        return NoMatch("the mask is not the column of empty rows", source.node)
    flags = view.inputs(source.node)[0]
    if view.resolve(flags) != fill.is_row_empty:
        return NoMatch("the mask is not that of this lookup's empty rows", source.node)
    return (*nodes, source.node, *view.aliases(flags))


def _is_column(view: GraphView, name: str) -> bool:
    """Whether the node turns a [B] vector into a [B, 1] column."""
    if view.op(name) == "Reshape":
        target = view.constant(view.inputs(name)[1])
        return target is not None and np.array_equal(target, [-1, 1])
    if view.op(name) == "ExpandDims":
        axis = view.constant(view.inputs(name)[1])
        return axis is not None and axis.size == 1 and int(axis.reshape(())) in (1, -1)
    return False


def _identity_reshape(
    view: GraphView, result: Tensor, known: dict[Tensor, Vector]
) -> tuple[str, tuple[str, ...]] | None:
    """Finds the one reshape of `result` to its own shape, and the nodes that compute its target.

    None if there is no such reshape, or if anything else needs `result` or those nodes.
    """
    shape = known[result]
    if result.node in view.preserved:
        return None
    for use in view.tensor_uses(result):
        if use.position != 0 or view.op(use.node) != "Reshape":
            continue
        target = view.inputs(use.node)[1]
        math = ShapeMath(view, known)
        vector = math.vector(target)
        if vector is None or not _same_shape(vector, shape):
            continue
        derived = math.derived(target, {result})
        inside = {use.node, *derived}
        lookers = [result.node, *derived]
        if any(other.node not in inside for node in lookers for other in view.uses(node)):
            return None
        if any(node in view.preserved for node in derived):
            return None
        return use.node, derived
    return None


def _same_shape(vector: Vector, shape: tuple[Element, ...]) -> bool:
    if vector == shape:
        return True
    width = shape[1]
    return vector == (-1, width) and isinstance(width, int) and width > 0
