"""max_norm: rows whose norm exceeds a limit are scaled down to it."""

from __future__ import annotations

from dataclasses import dataclass

from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import Match, NoMatch, Stage


@dataclass(frozen=True, kw_only=True)
class Clip(Match):
    """Each row times `limit / max(norm, limit)`, as tf.clip_by_norm computes it.

    Attributes:
        rows: the rows before they are clipped.
        limit: the largest norm, of the rows' dtype.
        output: the clipped rows.
    """

    rows: Tensor
    limit: float
    output: Tensor


def is_quotient(view: GraphView, rows: Tensor) -> bool:
    """Whether rows are divided by something, as clipped ones are."""
    return view.op(view.resolve(rows).node) in ("RealDiv", "Div")


def match_clip(view: GraphView, clipped: Tensor) -> Clip | NoMatch:
    """Explains a quotient as `rows * limit / maximum(norm, limit)`."""
    passed = view.aliases(clipped)
    quotient = view.resolve(clipped)
    scaled, bound = view.inputs(quotient.node)
    maximum = view.resolve(bound)
    refusal = NoMatch("the rows are divided by something else than in max_norm", quotient.node)
    if view.op(maximum.node) != "Maximum":
        return refusal
    limit, norm = _constant_operand(view, maximum.node)
    if limit is None or norm is None:
        return refusal
    rows, factor_nodes = _unscaled(view, scaled, limit)
    norm_nodes = _match_norm(view, norm, rows)
    if norm_nodes is None:
        return NoMatch("the rows are not divided by their norms", norm.node)
    nodes = (quotient.node, maximum.node, *passed, *view.aliases(bound), *factor_nodes, *norm_nodes)
    return Clip(
        stage=Stage.ROWS,
        nodes=tuple(dict.fromkeys(nodes)),
        rows=rows,
        limit=limit,
        output=quotient,
    )


def _constant_operand(view: GraphView, name: str) -> tuple[float | None, Tensor | None]:
    """Splits the operands of a commutative node into a constant number and the other one."""
    for number, other in (view.inputs(name), view.inputs(name)[::-1]):
        value = view.constant(number)
        if value is not None and value.ndim == 0:
            return float(value), other
    return None, None


def _unscaled(view: GraphView, scaled: Tensor, limit: float) -> tuple[Tensor, tuple[str, ...]]:
    """Returns the rows before they were multiplied by the limit; Grappler drops a factor of 1."""
    product = view.resolve(scaled)
    if view.op(product.node) == "Mul":
        factor, rows = _constant_operand(view, product.node)
        if factor == limit and rows is not None:
            nodes = (product.node, *view.aliases(scaled), *view.aliases(rows))
            return view.resolve(rows), nodes
    return product, view.aliases(scaled)


def _match_norm(view: GraphView, norm: Tensor, rows: Tensor) -> tuple[str, ...] | None:
    """Explains `select(s > 0, sqrt(select(s > 0, s, 1)), s)`, with s the sums of squares of rows.

    Returns its nodes. The selects keep gradients finite; they change no value.
    """
    nodes = list(view.aliases(norm))
    outer = view.resolve(norm)
    if view.op(outer.node) not in ("Select", "SelectV2"):
        return None
    positive, root, sums = (view.resolve(tensor) for tensor in view.inputs(outer.node))
    if view.op(root.node) != "Sqrt" or view.op(sums.node) != "Sum":
        return None
    inner = view.resolve(view.inputs(root.node)[0])
    if view.op(inner.node) not in ("Select", "SelectV2"):
        return None
    again, same, ones = (view.resolve(tensor) for tensor in view.inputs(inner.node))
    if again != positive or same != sums or not _is_positive(view, positive, sums):
        return None
    ones_nodes = _match_ones(view, ones, sums)
    squares = _match_sums(view, sums, rows)
    if ones_nodes is None or squares is None:
        return None
    names = (outer, root, inner, positive, sums)
    nodes += [name.node for name in names]
    nodes += [
        name for op in names for operand in view.inputs(op.node) for name in view.aliases(operand)
    ]
    return (*nodes, *ones_nodes, *squares)


def _is_positive(view: GraphView, test: Tensor, sums: Tensor) -> bool:
    if view.op(test.node) != "Greater":
        return False
    compared, zero = view.inputs(test.node)
    value = view.constant(zero)
    return view.resolve(compared) == sums and value is not None and not value.any()


def _match_ones(view: GraphView, ones: Tensor, sums: Tensor) -> tuple[str, ...] | None:
    if view.op(ones.node) == "Fill":
        shape, number = view.inputs(ones.node)
        value = view.constant(number)
        if value is None or value.ndim or value != 1:
            return None
        measured = view.resolve(shape)
        if view.op(measured.node) != "Shape" or view.resolve(view.inputs(measured.node)[0]) != sums:
            return None
        return (ones.node, *view.aliases(shape), measured.node)
    value = view.constant(ones)
    return () if value is not None and value.ndim == 2 and bool((value == 1).all()) else None


def _match_sums(view: GraphView, sums: Tensor, rows: Tensor) -> tuple[str, ...] | None:
    """Explains [u, 1] sums of the squares of rows."""
    squares, axes = view.inputs(sums.node)
    axis = view.constant(axes)
    if axis is None or [int(dim) for dim in axis.reshape(-1)] not in ([1], [-1]):
        return None
    if not view.flag_attr(sums.node, "keep_dims"):
        return None
    source = view.resolve(squares)
    factors = view.inputs(source.node)
    count = {"Square": 1, "Mul": 2}.get(view.op(source.node))
    if count != len(factors) or any(view.resolve(factor) != rows for factor in factors):
        return None
    passed = (name for tensor in (squares, *factors) for name in view.aliases(tensor))
    return (source.node, *passed)
