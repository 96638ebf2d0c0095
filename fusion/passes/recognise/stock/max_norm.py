"""max_norm: rows whose norm exceeds a limit are scaled down to it."""

from __future__ import annotations

from dataclasses import dataclass

from fusion.passes.graph.values import Node, Value
from fusion.passes.recognise.match import Match, NoMatch, Stage


@dataclass(frozen=True, kw_only=True)
class Clip(Match):
    """Each row times `limit / max(norm, limit)`, as tf.clip_by_norm computes it.

    Attributes:
        rows: the rows before they are clipped.
        limit: the largest norm, of the rows' dtype.
        output: the clipped rows.
    """

    rows: Value
    limit: float
    output: Value


def is_quotient(rows: Value) -> bool:
    """Whether rows are divided by something, as clipped ones are."""
    return rows.producer.op in ("RealDiv", "Div")


def match_clip(clipped: Value) -> Clip | NoMatch:
    """Explains a quotient as `rows * limit / maximum(norm, limit)`."""
    quotient = clipped.producer
    scaled, bound = quotient.inputs
    maximum = bound.producer
    refusal = NoMatch("the rows are divided by something else than in max_norm", quotient.name)
    if maximum.op != "Maximum":
        return refusal
    limit, norm = _constant_operand(maximum)
    if limit is None or norm is None:
        return refusal
    rows, factor_nodes = _unscaled(scaled, limit)
    norm_nodes = _match_norm(norm, rows)
    if norm_nodes is None:
        return NoMatch("the rows are not divided by their norms", norm.node)
    nodes = (quotient.name, maximum.name, *clipped.aliases, *bound.aliases)
    return Clip(
        stage=Stage.ROWS,
        nodes=tuple(dict.fromkeys((*nodes, *factor_nodes, *norm_nodes))),
        rows=rows,
        limit=limit,
        output=clipped.resolved,
    )


def _constant_operand(node: Node) -> tuple[float | None, Value | None]:
    """Splits the operands of a commutative node into a constant number and the other one."""
    for number, other in (node.inputs, node.inputs[::-1]):
        if number.scalar is not None:
            return float(number.scalar), other
    return None, None


def _unscaled(scaled: Value, limit: float) -> tuple[Value, tuple[str, ...]]:
    """Returns the rows before they were multiplied by the limit; Grappler drops a factor of 1."""
    product = scaled.producer
    if product.op == "Mul":
        factor, rows = _constant_operand(product)
        if factor == limit and rows is not None:
            return rows.resolved, (product.name, *scaled.aliases, *rows.aliases)
    return scaled.resolved, scaled.aliases


def _match_norm(norm: Value, rows: Value) -> tuple[str, ...] | None:
    """Explains `select(s > 0, sqrt(select(s > 0, s, 1)), s)`, with s the sums of squares of rows.

    Returns its nodes. The selects keep gradients finite; they change no value.
    """
    outer = norm.producer
    if outer.op not in ("Select", "SelectV2"):
        return None
    positive, root, sums = (operand.resolved for operand in outer.inputs)
    if root.producer.op != "Sqrt" or sums.producer.op != "Sum":
        return None
    inner = root.producer.input(0).producer
    if inner.op not in ("Select", "SelectV2"):
        return None
    again, same, ones = (operand.resolved for operand in inner.inputs)
    if again != positive or same != sums or not _is_positive(positive.producer, sums):
        return None
    ones_nodes = _match_ones(ones, sums)
    squares = _match_sums(sums.producer, rows)
    if ones_nodes is None or squares is None:
        return None
    ops = (outer, root.producer, inner, positive.producer, sums.producer)
    aliases = (name for op in ops for operand in op.inputs for name in operand.aliases)
    return (*norm.aliases, *(op.name for op in ops), *aliases, *ones_nodes, *squares)


def _is_positive(test: Node, sums: Value) -> bool:
    if test.op != "Greater":
        return False
    compared, zero = test.inputs
    value = zero.constant
    return compared.resolved == sums and value is not None and not value.any()


def _match_ones(ones: Value, sums: Value) -> tuple[str, ...] | None:
    fill = ones.producer
    if fill.op == "Fill":
        shape, number = fill.inputs
        measured = shape.producer
        if number.scalar != 1 or measured.op != "Shape" or measured.input(0).resolved != sums:
            return None
        return (fill.name, *shape.path)
    value = ones.constant
    return () if value is not None and value.ndim == 2 and bool((value == 1).all()) else None


def _match_sums(sums: Node, rows: Value) -> tuple[str, ...] | None:
    """Explains [u, 1] sums of the squares of rows."""
    squares, axes = sums.inputs
    if axes.item not in (1, -1) or not sums.flag_attr("keep_dims"):
        return None
    square = squares.producer
    factors = square.inputs
    count = {"Square": 1, "Mul": 2}.get(square.op)
    if count != len(factors) or any(factor.resolved != rows for factor in factors):
        return None
    passed = (name for operand in (squares, *factors) for name in operand.aliases)
    return (square.name, *passed)
