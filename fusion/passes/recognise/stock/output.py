"""What follows the reduction: zeros for empty rows, and reshapes that change nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fusion.passes.analysis.symbolic_shapes import Element, ShapeMath, Vector
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node, Value
from fusion.passes.recognise.match import Match, NoMatch, Stage
from fusion.passes.recognise.stock.entries import Fill


@dataclass(frozen=True, kw_only=True)
class Mask(Match):
    """Rows that were empty become zeros; `present` is False when nothing of the kind is there.

    Attributes:
        output: the reduced rows after the mask, if any.
    """

    present: bool
    output: Value


@dataclass(frozen=True, kw_only=True)
class Tail(Match):
    """Reshapes of the result to the shape it already has; `output` is the outermost."""

    output: Value


def match_mask(reduced: Value, fill: Fill | None, shape: Vector) -> Mask | NoMatch:
    """Explains `select(tile(is_row_empty), zeros, reduced)`, if a select reads the reduced rows.

    Args:
        reduced: the rows.
        fill: what says which of them were empty.
        shape: the symbolic [B, D] of `reduced`.
    """
    select = next((use.node for use in reduced.uses if use.node.op.startswith("Select")), None)
    if fill is None or select is None:
        return Mask(stage=Stage.OUTPUT, nodes=(), present=False, output=reduced)
    condition, zeros, values = select.inputs
    if values.resolved != reduced:
        why = "the select does not keep the rows that were not empty"
        return NoMatch(why, select.name)
    zero_nodes = match_zeros(zeros, reduced, shape, broadcast=select.op == "SelectV2")
    if isinstance(zero_nodes, NoMatch):
        return zero_nodes
    mask_nodes = _match_condition(condition, reduced, fill, shape, select.op)
    if isinstance(mask_nodes, NoMatch):
        return mask_nodes
    if fill.default != 0:
        return NoMatch("empty rows get an id other than 0 and are zeroed as well", select.name)
    return Mask(
        stage=Stage.OUTPUT,
        nodes=(select.name, *zero_nodes, *mask_nodes, *values.aliases),
        present=True,
        output=select.output(),
    )


def match_tail(result: Value, shape: Vector) -> Tail:
    """Follows reshapes that provably keep the result's shape, up to one with other consumers."""
    nodes: tuple[str, ...] = ()
    known = {result.tensor: shape}
    while (step := _identity_reshape(result, known)) is not None:
        reshape, explained = step
        nodes += (reshape.name, *explained)
        result = reshape.output()
        known[result.tensor] = shape
    return Tail(stage=Stage.OUTPUT, nodes=nodes, output=result)


def match_zeros(
    zeros: Value, reduced: Value, shape: Vector, broadcast: bool
) -> tuple[str, ...] | NoMatch:
    """Explains zeros in the place of reduced rows: the nodes between.

    Args:
        zeros: these.
        reduced: the rows.
        shape: the symbolic [B, D] of `reduced`, for those that are broadcast.
        broadcast: whether they are.
    """
    source = zeros.producer
    if source.op == "ZerosLike":
        inner = source.input(0)
        if inner.resolved == reduced:
            return (*zeros.path, *inner.aliases)
    value = zeros.constant
    # A constant that is broadcast must not make the result larger.
    fits = value is not None and (value.shape == shape if broadcast else value.ndim == 2)
    if value is not None and (fits or (broadcast and value.ndim == 0)):
        negative_zeros = np.any(np.signbit(value))
        if not np.any(value) and not negative_zeros:
            return ()
    return NoMatch("empty rows are not replaced by zeros", source.name)


def _match_condition(
    condition: Value, reduced: Value, fill: Fill, shape: Vector, select: str
) -> tuple[str, ...] | NoMatch:
    """Explains a [B, D] (or, for SelectV2, [B, 1]) mask of the fill's empty rows."""
    source, nodes = condition.producer, condition.aliases
    if source.op == "Tile":
        column, multiples = source.inputs
        math = ShapeMath({reduced.tensor: shape})
        if math.vector(multiples) != (1, shape[1]):
            return NoMatch("the mask of empty rows is not tiled to the width of a row", source.name)
        nodes += (source.name, *column.aliases, *math.derived(multiples, {reduced}))
        source = column.producer
    elif select == "Select":
        # A vector chooses rows.
        if condition.resolved == fill.is_row_empty:
            return nodes
        return NoMatch("the mask of empty rows is not tiled", source.name)
    if not _is_column(source):
        return NoMatch("the mask is not the column of empty rows", source.name)
    flags = source.input(0)
    if flags.resolved != fill.is_row_empty:
        return NoMatch("the mask is not that of this lookup's empty rows", source.name)
    return (*nodes, source.name, *flags.aliases)


def _is_column(node: Node) -> bool:
    """Whether the node turns a [B] vector into a [B, 1] column."""
    if node.op == "Reshape":
        return bool(node.input(1).elements == [-1, 1])
    return node.op == "ExpandDims" and node.input(1).item in (1, -1)


def _identity_reshape(
    result: Value, known: dict[Tensor, Vector]
) -> tuple[Node, tuple[str, ...]] | None:
    """Finds the one reshape of `result` to its own shape, and the nodes that compute its target.

    None if there is no such reshape, or if anything else needs `result` or those nodes.
    """
    shape, view = known[result.tensor], result.view
    if result.node in view.preserved:
        return None
    for node, position, _ in result.uses:
        if position != 0 or node.op != "Reshape":
            continue
        target = node.input(1)
        math = ShapeMath(known)
        vector = math.vector(target)
        if vector is None or not _same_shape(vector, shape):
            continue
        derived = math.derived(target, {result})
        inside = {node.name, *derived}
        lookers = [result.node, *derived]
        if any(other.node not in inside for name in lookers for other in view.uses(name)):
            return None
        return None if not view.preserved.isdisjoint(derived) else (node, derived)
    return None


def _same_shape(vector: Vector, shape: tuple[Element, ...]) -> bool:
    if vector == shape:
        return True
    width = shape[1]
    return vector == (-1, width) and isinstance(width, int) and width > 0
