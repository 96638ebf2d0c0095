"""The anchor of every lookup: the op that reduces rows to bags."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tensorflow.core.framework import types_pb2

from fusion.passes.analysis.symbolic_shapes import Dim, ShapeMath
from fusion.passes.graph.idioms import is_row_gather, pass_casts
from fusion.passes.graph.inferred_shapes import symbolic_shapes
from fusion.passes.graph.tensor import Shape, Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import Match, NoMatch, Stage
from fusion.passes.recognise.spec import dtype_name
from fusion.schema.attributes import HALF_TYPES, TABLE_TYPES
from fusion.schema.names import POST_V1, POST_V2

COMBINERS = {"SparseSegmentSum": "sum", "SparseSegmentMean": "mean", "SparseSegmentSqrtN": "sqrtn"}
_WITH_COUNT = "WithNumSegments"
_COUNTED = frozenset(f"{op}{_WITH_COUNT}" for op in COMBINERS)
_WEIGHTED = "SegmentSum"
_EPSILON = {"float32": 2.0**-23, "float64": 2.0**-52}
QUOTIENTS = frozenset({"DivNoNan", "RealDiv", "Div"})
FUSED_ANCHORS = frozenset({POST_V1, POST_V2})
"""The fused ops that take the place of a segment reduction, around a stock gather."""
ANCHORS = frozenset({*COMBINERS, *_COUNTED, _WEIGHTED}) | FUSED_ANCHORS
"""The ops that lookups are recognised from."""


@dataclass(frozen=True)
class NoRows(NoMatch):
    """Why a segment sum is no lookup where what it adds is not looked up."""


@dataclass(frozen=True, kw_only=True)
class Reduction(Match):
    """A segment reduction of gathered rows.

    Attributes:
        anchor: the reduction's node.
        combiner: sum, mean or sqrtn.
        rows: the matrix whose rows are reduced: a table, or the unique rows of one.
        positions: for each entry, the row of `rows` that it means.
        segments: for each entry, the row of the result.
        segments_dtype: DataType of `segments`.
        weights: for each entry, its weight, a vector or a constant [m, 1]; None without weights.
        weighting: how they are applied; None without weights.
        divide_no_nan: whether a divisor of 0 gives 0, as in DivNoNan.
        output: the reduced rows, [B, D].
        dtype: DataType of the rows.
        count: int64 [], the number of rows of the result, those without entries (zeros) included;
            None: as many as the last entry says.
    """

    anchor: str
    combiner: str
    rows: Tensor
    positions: Tensor
    segments: Tensor
    segments_dtype: int
    weights: Tensor | None
    weighting: Weighting | None
    divide_no_nan: bool
    output: Tensor
    dtype: int
    count: Tensor | None = None


@dataclass(frozen=True)
class Weighting:
    """The tensors between rows, weights and the result.

    Attributes:
        entries: the row of each entry, [m, D].
        column: the weights as a column, [m, 1].
        divisor: what the sums are divided by, [B, 1]; None for the combiner sum.
    """

    entries: Tensor
    column: Tensor
    divisor: Tensor | None


def anchors(view: GraphView) -> tuple[str, ...]:
    """Returns all segment reductions, stock and fused, in file order, one per column.

    A weighted mean or sqrtn has a second SegmentSum, of the weights alone; that one is its divisor
    and no column of its own.
    """
    return tuple(name for name in view.named(*ANCHORS) if not _is_divisor(view, name))


def match_reduction(view: GraphView, anchor: str) -> Reduction | NoMatch:
    """Explains the segment reduction: of rows, or of rows times weights."""
    op = view.op(anchor)
    dtype = view.type_attr(anchor, "T")
    if dtype not in TABLE_TYPES:
        return NoMatch(f"tables of dtype {dtype_name(dtype)} are not fused", anchor)
    if op == _WEIGHTED:
        return _match_weighted(view, anchor, dtype)
    rows, positions, segments, *counted = view.inputs(anchor)
    if counted and view.type_attr(anchor, "Tnumsegments") != types_pb2.DT_INT64:
        return NoMatch("the number of rows is no int64", anchor)
    segments, passed = pass_casts(view, segments)
    segments_dtype = _before_casts(view, passed, view.type_attr(anchor, "Tsegmentids"))
    return Reduction(
        stage=Stage.OUTPUT,
        anchor=anchor,
        nodes=(anchor, *passed),
        combiner=COMBINERS[op.removesuffix(_WITH_COUNT)],
        rows=rows,
        positions=positions,
        segments=segments,
        segments_dtype=segments_dtype,
        weights=None,
        weighting=None,
        divide_no_nan=True,
        output=Tensor(anchor),
        dtype=dtype,
        count=next(iter(counted), None),
    )


def _before_casts(view: GraphView, passed: tuple[str, ...], dtype: int) -> int:
    """Returns the DataType of a tensor behind the nodes `passed`, given that in front of them."""
    casts = [name for name in passed if view.op(name) == "Cast"]
    return view.type_attr(casts[-1], "SrcT") if casts else dtype


@dataclass(frozen=True)
class _Product:
    """`rows[positions] * weights[:, newaxis]`.

    Attributes:
        entries: the first factor, as it is multiplied.
        column: the other one, the weights as a column [m, 1].
        dtype: DataType of the rows; half types are cast to float32 before they are multiplied.
    """

    entries: Tensor
    column: Tensor
    rows: Tensor
    positions: Tensor
    weights: Tensor
    dtype: int
    nodes: tuple[str, ...]


def _match_weighted(view: GraphView, anchor: str, dtype: int) -> Reduction | NoMatch:
    data, numbers = view.inputs(anchor)
    product = _match_product(view, data, dtype)
    if isinstance(product, NoMatch):
        return product
    segments, passed = pass_casts(view, numbers)
    segments_dtype = _before_casts(view, passed, view.type_attr(anchor, "Tindices"))
    nodes = (anchor, *product.nodes, *passed)
    combiner, no_nan, output, divisor = "sum", True, Tensor(anchor), None
    quotient = _match_quotient(view, anchor, product.column, segments)
    if quotient is not None:
        combiner, no_nan, divisor = quotient.combiner, quotient.no_nan, quotient.divisor
        output = Tensor(quotient.node)
        nodes += (quotient.node, *quotient.nodes)
    if product.dtype != dtype:
        narrowed = _narrowed(view, output, product.dtype)
        if narrowed is None:
            return NoMatch("the result of half types is not cast back to them", output.node)
        output = Tensor(narrowed)
        nodes += (narrowed,)
    return Reduction(
        stage=Stage.OUTPUT,
        anchor=anchor,
        nodes=tuple(dict.fromkeys(nodes)),
        combiner=combiner,
        rows=product.rows,
        positions=product.positions,
        segments=segments,
        segments_dtype=segments_dtype,
        weights=product.weights,
        weighting=Weighting(product.entries, product.column, divisor),
        divide_no_nan=no_nan,
        output=output,
        dtype=product.dtype,
    )


def _narrowed(view: GraphView, tensor: Tensor, dtype: int) -> str | None:
    """Returns the node that casts the tensor back to a half type, if all its users see that."""
    users = {use.node for use in view.tensor_uses(tensor)}
    casts = [name for name in users if view.op(name) == "Cast"]
    if len(users) != 1 or len(casts) != 1 or view.type_attr(casts[0], "DstT") != dtype:
        return None
    return casts[0]


def _match_product(view: GraphView, data: Tensor, dtype: int) -> _Product | NoMatch:
    product = view.resolve(data)
    if view.op(product.node) != "Mul":
        return NoRows("the segment sum does not reduce looked-up rows", product.node)
    operands = view.inputs(product.node)
    for gathered, column in (operands, operands[::-1]):
        rows, row_dtype, casts = _pass_widening(view, gathered, dtype)
        if not is_row_gather(view, rows.node):
            continue
        # Grappler widens the column instead of the weights that it is made of.
        narrow, narrow_dtype, widened = _pass_widening(view, column, dtype)
        match = _match_column(view, narrow)
        if isinstance(match, NoMatch):
            of_table = _not_of_matrix(view, rows)
            return match if of_table is None else of_table
        weights, weight_dtype, more = _pass_widening(view, match[0], narrow_dtype)
        if weight_dtype != row_dtype:
            return NoMatch("the weights are of another dtype than the table", weights.node)
        table, positions = view.inputs(rows.node)[:2]
        passed = (*view.aliases(data), *casts, *widened, *match[1], *more)
        nodes = (product.node, rows.node, *passed)
        factors = view.resolve(gathered), view.resolve(column)
        return _Product(*factors, table, positions, weights, row_dtype, nodes)
    return NoRows("the segment sum does not reduce looked-up rows", product.node)


def _not_of_matrix(view: GraphView, rows: Tensor) -> NoMatch | None:
    """Says of rows that are no vectors, with which no column of weights goes, what they are of."""
    table = view.inputs(rows.node)[0]
    shape = view.shape(table)
    if shape is None:
        return NoMatch("the table is not known to be a matrix", table.node)
    return not_a_matrix(shape, table.node)


def not_a_matrix(shape: Shape, node: str) -> NoMatch | None:
    """Says of a table of another rank, or of rows gathered from it, that it is no matrix."""
    if len(shape) == 2:
        return None
    return NoMatch(f"the table has rank {len(shape)}, not 2", node)


def _pass_widening(
    view: GraphView, tensor: Tensor, dtype: int
) -> tuple[Tensor, int, tuple[str, ...]]:
    """Passes a cast of a half type to float32: the tensor behind it, its dtype, what was passed."""
    passed = view.aliases(tensor)
    tensor = view.resolve(tensor)
    if view.op(tensor.node) != "Cast" or view.controls(tensor.node):
        return tensor, dtype, passed
    source = view.type_attr(tensor.node, "SrcT")
    if source not in HALF_TYPES or dtype != types_pb2.DT_FLOAT:
        return tensor, dtype, passed
    inner = view.inputs(tensor.node)[0]
    return view.resolve(inner), source, (*passed, tensor.node, *view.aliases(inner))


def _match_column(view: GraphView, column: Tensor) -> tuple[Tensor, tuple[str, ...]] | NoMatch:
    """Explains [m, 1] weights as a vector made a column: the vector, and the nodes between.

    A constant column is what Grappler makes of a constant vector, and stays one.

    That they are a vector has to be proved. To check it in the op would not do: of any other rank
    stock's product is broadcast, so that it has numbers for a single weight, and for a matrix of as
    many rows as there are entries. (Where rows are filled the op that fills takes a vector alone.)
    """
    source = view.resolve(column)
    op = view.op(source.node)
    constant = view.constant(source)
    if constant is not None and constant.ndim == 2 and constant.shape[1] == 1:
        return source, view.aliases(column)
    if op not in ("Reshape", "ExpandDims"):
        return NoMatch("the weights are not a column of the entries' weights", source.node)
    vector, target = view.inputs(source.node)
    shape = view.shape(vector)
    if shape is None:
        return NoMatch("the weights are not known to be a vector", vector.node)
    if len(shape) != 1:
        return NoMatch(f"the weights have rank {len(shape)}, not 1", vector.node)
    if op == "Reshape":
        derived = _match_column_shape(view, vector, shape[0], target)
        if derived is None:
            return NoMatch("the weights are not a column of the entries' weights", source.node)
    else:
        axis = view.constant(target)
        if axis is None or axis.size != 1 or int(axis.reshape(())) not in (1, -1):
            return NoMatch("the weights are not a column of the entries' weights", source.node)
        derived = ()
    nodes = (source.node, *view.aliases(column), *view.aliases(vector), *derived)
    return view.resolve(vector), nodes


def _match_column_shape(
    view: GraphView, vector: Tensor, size: int | None, target: Tensor
) -> tuple[str, ...] | None:
    """Explains a tensor as the shape of a column of a vector's elements: the nodes that make it."""
    resolved = view.resolve(vector)
    length = Dim(resolved, 0) if size is None else size
    # Grappler measures the weights where they are widened, wherever the column is.
    readers = (use.node for use in view.tensor_uses(resolved))
    casts = [Tensor(name) for name in readers if view.op(name) == "Cast"]
    math = ShapeMath(view, dict.fromkeys(casts, (length,)))
    shape = math.vector(target)
    if shape is not None and (len(shape) != 2 or shape[1] != 1):
        return None
    if shape is not None and shape[0] in (-1, length):
        return math.derived(target, {resolved, *casts})
    # Or it is measured on something that the weights are made of.
    if shape is not None and isinstance(shape[0], Dim):
        of_vector, of_measured = symbolic_shapes(view, (vector, shape[0].tensor))
        measured = None if of_measured is None else of_measured[shape[0].axis]
        return () if of_vector == (measured,) else None
    of_vector, of_column = symbolic_shapes(view, (vector,), (target,))
    return () if of_vector is not None and of_column == (*of_vector, 1) else None


@dataclass(frozen=True)
class _Quotient:
    """`reduced / divisor`, where the divisor is what the combiner asks for.

    Attributes:
        node: the division.
        divisor: the tensor by which it is, or its inverse by which it is multiplied.
        no_nan: whether a divisor of 0 gives 0.
        nodes: the nodes of the divisor.
    """

    node: str
    divisor: Tensor
    combiner: str
    no_nan: bool
    nodes: tuple[str, ...]


def _match_quotient(
    view: GraphView, anchor: str, column: Tensor, segments: Tensor
) -> _Quotient | None:
    """Finds the division that makes a mean or sqrtn of the weighted sum `anchor`."""
    for use in view.tensor_uses(Tensor(anchor)):
        op = view.op(use.node)
        if op in QUOTIENTS and use.position == 0:
            divisor = view.inputs(use.node)[1]
            inverse = False
        elif op == "Mul":
            # Grappler turns x / sqrt(y) into x * rsqrt(y).
            divisor = view.inputs(use.node)[1 - use.position]
            inverse = True
        else:
            continue
        match = _match_divisor(view, divisor, inverse, column, segments)
        if match is not None:
            combiner, nodes = match
            is_safe = op == "DivNoNan"
            return _Quotient(use.node, view.resolve(divisor), combiner, is_safe, nodes)
    return None


def _match_divisor(
    view: GraphView, divisor: Tensor, inverse: bool, column: Tensor, segments: Tensor
) -> tuple[str, tuple[str, ...]] | None:
    source = view.resolve(divisor)
    nodes = (*view.aliases(divisor), source.node)
    is_root = view.op(source.node) == ("Rsqrt" if inverse else "Sqrt")
    if inverse and not is_root:
        return None
    if is_root:
        inner = view.inputs(source.node)[0]
        nodes += view.aliases(inner)
        source = view.resolve(inner)
        nodes += (source.node,)
    if view.op(source.node) != _WEIGHTED:
        return None
    summed, numbers = view.inputs(source.node)
    numbers, passed = pass_casts(view, numbers)
    if numbers != segments:
        return None
    nodes += (*passed, *view.aliases(summed))
    terms = view.resolve(summed)
    if not is_root:
        return ("mean", nodes) if terms == column else None
    if not _is_square(view, terms, column):
        return None
    if view.constant(terms) is not None:
        return "sqrtn", nodes
    passed = tuple(name for operand in view.inputs(terms.node) for name in view.aliases(operand))
    return "sqrtn", (*nodes, terms.node, *passed)


def _is_square(view: GraphView, tensor: Tensor, of: Tensor) -> bool:
    squares, roots = view.constant(tensor), view.constant(of)
    if squares is not None and roots is not None and squares.shape == roots.shape:
        # Grappler folds powers of constants, whose last bits are its own.
        digits = _EPSILON.get(roots.dtype.name)
        with np.errstate(over="ignore"):
            return digits is not None and np.allclose(squares, roots**2, rtol=4 * digits, atol=0)
    op, inputs = view.op(tensor.node), view.inputs(tensor.node)
    if op == "Square":
        return view.resolve(inputs[0]) == of
    if op == "Mul":
        return all(view.resolve(operand) == of for operand in inputs)
    if op != "Pow" or view.resolve(inputs[0]) != of:
        return False
    power = view.constant(inputs[1])
    return power is not None and power.ndim == 0 and bool(np.asarray(power, np.float64) == 2)


def _is_divisor(view: GraphView, name: str) -> bool:
    """Whether a SegmentSum only feeds the divisor of another one, of weights or the same rows."""
    if view.op(name) != _WEIGHTED:
        return False
    if _sums_weights(view, name):
        return True
    divisor, uses = name, view.uses(name)
    if len(uses) == 1 and view.op(uses[0].node) in ("Sqrt", "Rsqrt"):
        divisor = uses[0].node
        uses = view.uses(divisor)
    # Grappler turns x / sqrt(y) into x * rsqrt(y).
    quotients = {"Mul"} if view.op(divisor) == "Rsqrt" else QUOTIENTS
    for use in uses:
        if view.op(use.node) in quotients and (use.position == 1 or "Mul" in quotients):
            operands = [view.resolve(operand).node for operand in view.inputs(use.node)]
            others = [node for node in operands if node not in (name, divisor)]
            for other in others:
                if view.op(other) == _WEIGHTED:
                    own, of_other = (pass_casts(view, view.inputs(n)[1])[0] for n in (name, other))
                    return own == of_other
    return False


def _sums_weights(view: GraphView, name: str) -> bool:
    """Whether a SegmentSum is of weights, or their squares: a gradient may be all that reads it."""
    terms = view.resolve(view.inputs(name)[0])
    if view.op(terms.node) in ("Square", "Mul", "Pow"):
        root = view.resolve(view.inputs(terms.node)[0])
        terms = root if _is_square(view, terms, root) else terms
    narrow, _, _ = _pass_widening(view, terms, view.type_attr(name, "T"))
    return not isinstance(_match_column(view, narrow), NoMatch)
