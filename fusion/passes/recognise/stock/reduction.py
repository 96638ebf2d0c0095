"""The anchor of every lookup: the op that reduces rows to bags."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tensorflow.core.framework import types_pb2

from fusion.passes.analysis.symbolic_shapes import Dim, ShapeMath
from fusion.passes.graph.idioms import is_row_gather, pass_casts
from fusion.passes.graph.inferred_shapes import symbolic_shapes
from fusion.passes.graph.tensor import Shape
from fusion.passes.graph.values import Node, Value, named
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import Match, NoMatch, Stage
from fusion.passes.recognise.spec import dtype_name
from fusion.schema.attributes import HALF_TYPES, TABLE_TYPES
from fusion.schema.names import POST_V1, POST_V2

COMBINERS = {"SparseSegmentSum": "sum", "SparseSegmentMean": "mean", "SparseSegmentSqrtN": "sqrtn"}
GRADIENTS = frozenset({*(f"{op}Grad" for op in COMBINERS), "UnsortedSegmentSum"})
"""What adds up the gradients of gathered rows."""
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

    anchor: Node
    combiner: str
    rows: Value
    positions: Value
    segments: Value
    segments_dtype: int
    weights: Value | None
    weighting: Weighting | None
    divide_no_nan: bool
    output: Value
    dtype: int
    count: Value | None = None


@dataclass(frozen=True)
class Weighting:
    """The tensors between rows, weights and the result.

    Attributes:
        entries: the row of each entry, [m, D].
        column: the weights as a column, [m, 1].
        divisor: what the sums are divided by, [B, 1]; None for the combiner sum.
    """

    entries: Value
    column: Value
    divisor: Value | None


def anchors(view: GraphView) -> tuple[Node, ...]:
    """Returns all segment reductions, stock and fused, in file order, one per column.

    A weighted mean or sqrtn has a second SegmentSum, of the weights alone; that one is its divisor
    and no column of its own.
    """
    return tuple(node for node in named(view, *ANCHORS) if not _is_divisor(node))


def match_reduction(anchor: Node) -> Reduction | NoMatch:
    """Explains the segment reduction: of rows, or of rows times weights."""
    op = anchor.op
    dtype = anchor.type_attr("T")
    if dtype not in TABLE_TYPES:
        return NoMatch(f"tables of dtype {dtype_name(dtype)} are not fused", anchor.name)
    if op == _WEIGHTED:
        return _match_weighted(anchor, dtype)
    rows, positions, segments, *counted = anchor.inputs
    if counted and anchor.type_attr("Tnumsegments") != types_pb2.DT_INT64:
        return NoMatch("the number of rows is no int64", anchor.name)
    segments, segments_dtype, passed = _segments(segments, anchor.type_attr("Tsegmentids"))
    return Reduction(
        stage=Stage.OUTPUT,
        anchor=anchor,
        nodes=(anchor.name, *passed),
        combiner=COMBINERS[op.removesuffix(_WITH_COUNT)],
        rows=rows,
        positions=positions,
        segments=segments,
        segments_dtype=segments_dtype,
        weights=None,
        weighting=None,
        divide_no_nan=True,
        output=anchor.output(),
        dtype=dtype,
        count=next(iter(counted), None),
    )


def _segments(numbers: Value, dtype: int) -> tuple[Value, int, tuple[str, ...]]:
    """Passes casts of segment ids of a dtype: these before, their dtype, the nodes passed."""
    segments, passed = pass_casts(numbers)
    nodes = (Node(numbers.view, name) for name in passed)
    casts = [node for node in nodes if node.op == "Cast"]
    return segments, casts[-1].type_attr("SrcT") if casts else dtype, passed


@dataclass(frozen=True)
class _Product:
    """`rows[positions] * weights[:, newaxis]`.

    Attributes:
        entries: the first factor, as it is multiplied.
        column: the other one, the weights as a column [m, 1].
        dtype: DataType of the rows; half types are cast to float32 before they are multiplied.
    """

    entries: Value
    column: Value
    rows: Value
    positions: Value
    weights: Value
    dtype: int
    nodes: tuple[str, ...]


def _match_weighted(anchor: Node, dtype: int) -> Reduction | NoMatch:
    data, numbers = anchor.inputs
    product = _match_product(data, dtype)
    if isinstance(product, NoMatch):
        return product
    segments, segments_dtype, passed = _segments(numbers, anchor.type_attr("Tindices"))
    nodes = (anchor.name, *product.nodes, *passed)
    combiner, no_nan, output, divisor = "sum", True, anchor.output(), None
    quotient = _match_quotient(output, product.column, segments)
    if quotient is not None:
        combiner, no_nan, divisor = quotient.combiner, quotient.no_nan, quotient.divisor
        output = quotient.node.output()
        nodes += (quotient.node.name, *quotient.nodes)
    if product.dtype != dtype:
        narrowed = _narrowed(output, product.dtype)
        if narrowed is None:
            return NoMatch("the result of half types is not cast back to them", output.node)
        output = narrowed.output()
        nodes += (narrowed.name,)
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


def _narrowed(value: Value, dtype: int) -> Node | None:
    """Returns the node that casts the tensor back to a half type, if all its users see that."""
    users = {use.node for use in value.uses}
    casts = [node for node in users if node.op == "Cast"]
    if len(users) != 1 or len(casts) != 1 or casts[0].type_attr("DstT") != dtype:
        return None
    return casts[0]


def _match_product(data: Value, dtype: int) -> _Product | NoMatch:
    product = data.producer
    refusal = NoRows("the segment sum does not reduce looked-up rows", product.name)
    if product.op != "Mul":
        return refusal
    operands = product.inputs
    for gathered, column in (operands, operands[::-1]):
        rows, row_dtype, casts = _pass_widening(gathered, dtype)
        gather = rows.producer
        if not is_row_gather(gather):
            continue
        # Grappler widens the column instead of the weights that it is made of.
        narrow, narrow_dtype, widened = _pass_widening(column, dtype)
        match = _match_column(narrow)
        if isinstance(match, NoMatch):
            of_table = _not_of_matrix(gather)
            return match if of_table is None else of_table
        weights, weight_dtype, more = _pass_widening(match[0], narrow_dtype)
        if weight_dtype != row_dtype:
            return NoMatch("the weights are of another dtype than the table", weights.node)
        table, positions = gather.inputs[:2]
        passed = (*data.aliases, *casts, *widened, *match[1], *more)
        nodes = (product.name, gather.name, *passed)
        factors = gathered.resolved, column.resolved
        return _Product(*factors, table, positions, weights, row_dtype, nodes)
    return refusal


def _not_of_matrix(gather: Node) -> NoMatch | None:
    """Says of rows that are no vectors, with which no column of weights goes, what they are of."""
    table = gather.input(0)
    shape = table.shape
    if shape is None:
        return NoMatch("the table is not known to be a matrix", table.node)
    return not_a_matrix(shape, table.node)


def not_a_matrix(shape: Shape, node: str) -> NoMatch | None:
    """Says of a table of another rank, or of rows gathered from it, that it is no matrix."""
    if len(shape) == 2:
        return None
    return NoMatch(f"the table has rank {len(shape)}, not 2", node)


def _pass_widening(value: Value, dtype: int) -> tuple[Value, int, tuple[str, ...]]:
    """Passes a cast of a half type to float32: the tensor behind it, its dtype, what was passed."""
    cast, passed = value.producer, value.aliases
    if cast.op != "Cast" or cast.controls or dtype != types_pb2.DT_FLOAT:
        return value.resolved, dtype, passed
    source = cast.type_attr("SrcT")
    if source not in HALF_TYPES:
        return value.resolved, dtype, passed
    inner = cast.input(0)
    return inner.resolved, source, (*passed, cast.name, *inner.aliases)


def _match_column(column: Value) -> tuple[Value, tuple[str, ...]] | NoMatch:
    """Explains [m, 1] weights as a vector made a column: the vector, and the nodes between.

    A constant column is what Grappler makes of a constant vector, and stays one.

    That they are a vector has to be proved. To check it in the op would not do: of any other rank
    stock's product is broadcast, so that it has numbers for a single weight, and for a matrix of as
    many rows as there are entries. (Where rows are filled the op that fills takes a vector alone.)
    """
    source, constant = column.producer, column.constant
    refusal = NoMatch("the weights are not a column of the entries' weights", source.name)
    if constant is not None and constant.ndim == 2 and constant.shape[1] == 1:
        return column.resolved, column.aliases
    if source.op not in ("Reshape", "ExpandDims"):
        return refusal
    vector, target = source.inputs
    shape = vector.shape
    if shape is None:
        return NoMatch("the weights are not known to be a vector", vector.node)
    if len(shape) != 1:
        return NoMatch(f"the weights have rank {len(shape)}, not 1", vector.node)
    derived: tuple[str, ...] | None = ()
    if source.op == "Reshape":
        derived = _match_column_shape(vector, shape[0], target)
    if derived is None or (source.op == "ExpandDims" and target.item not in (1, -1)):
        return refusal
    nodes = (source.name, *column.aliases, *vector.aliases, *derived)
    return vector.resolved, nodes


def _match_column_shape(vector: Value, size: int | None, target: Value) -> tuple[str, ...] | None:
    """Explains a tensor as the shape of a column of a vector's elements: the nodes that make it."""
    resolved = vector.resolved
    length = Dim(resolved.tensor, 0) if size is None else size
    # Grappler measures the weights where they are widened, wherever the column is.
    casts = [use.node.output() for use in resolved.uses if use.node.op == "Cast"]
    math = ShapeMath({cast.tensor: (length,) for cast in casts})
    shape = math.vector(target)
    if shape is not None and (len(shape) != 2 or shape[1] != 1):
        return None
    if shape is not None and shape[0] in (-1, length):
        return math.derived(target, {resolved, *casts})
    # Or it is measured on something that the weights are made of.
    view = vector.view
    if shape is not None and isinstance(shape[0], Dim):
        of_vector, of_measured = symbolic_shapes(view, (vector.tensor, shape[0].tensor))
        measured = None if of_measured is None else of_measured[shape[0].axis]
        return () if of_vector == (measured,) else None
    of_vector, of_column = symbolic_shapes(view, (vector.tensor,), (target.tensor,))
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

    node: Node
    divisor: Value
    combiner: str
    no_nan: bool
    nodes: tuple[str, ...]


def _match_quotient(total: Value, column: Value, segments: Value) -> _Quotient | None:
    """Finds the division that makes a mean or sqrtn of a weighted sum."""
    for node, position, _ in total.uses:
        op = node.op
        if op in QUOTIENTS and position == 0:
            divisor = node.input(1)
            inverse = False
        elif op == "Mul":
            # Grappler turns x / sqrt(y) into x * rsqrt(y).
            divisor = node.input(1 - position)
            inverse = True
        else:
            continue
        match = _match_divisor(divisor, inverse, column, segments)
        if match is not None:
            combiner, nodes = match
            return _Quotient(node, divisor.resolved, combiner, op == "DivNoNan", nodes)
    return None


def _match_divisor(
    divisor: Value, inverse: bool, column: Value, segments: Value
) -> tuple[str, tuple[str, ...]] | None:
    source, nodes = divisor.producer, divisor.path
    is_root = source.op == ("Rsqrt" if inverse else "Sqrt")
    if inverse and not is_root:
        return None
    if is_root:
        inner = source.input(0)
        nodes += inner.path
        source = inner.producer
    if source.op != _WEIGHTED:
        return None
    summed, numbers = source.inputs
    numbers, passed = pass_casts(numbers)
    if numbers != segments:
        return None
    nodes += (*passed, *summed.aliases)
    terms = summed.resolved
    if not is_root:
        return ("mean", nodes) if terms == column else None
    if not _is_square(terms, column):
        return None
    if terms.constant is not None:
        return "sqrtn", nodes
    square = terms.producer
    return "sqrtn", (*nodes, square.name, *(name for one in square.inputs for name in one.aliases))


def _is_square(value: Value, of: Value) -> bool:
    squares, roots = value.constant, of.constant
    if squares is not None and roots is not None and squares.shape == roots.shape:
        # Grappler folds powers of constants, whose last bits are its own.
        digits = _EPSILON.get(roots.dtype.name)
        with np.errstate(over="ignore"):
            return digits is not None and np.allclose(squares, roots**2, rtol=4 * digits, atol=0)
    node = value.producer
    if node.op in ("Square", "Mul"):
        return all(operand.resolved == of for operand in node.inputs)
    if node.op != "Pow":
        return False
    base, power = node.inputs
    return base.resolved == of and power.scalar == 2


def _is_divisor(total: Node) -> bool:
    """Whether a SegmentSum only feeds the divisor of another one, of weights or the same rows."""
    if total.op != _WEIGHTED:
        return False
    if _sums_weights(total):
        return True
    divisor, uses = total, [*total.uses]
    if len(uses) == 1 and uses[0].node.op in ("Sqrt", "Rsqrt"):
        divisor = uses[0].node
        uses = [*divisor.uses]
    # Grappler turns x / sqrt(y) into x * rsqrt(y).
    quotients = {"Mul"} if divisor.op == "Rsqrt" else QUOTIENTS
    for node, position, _ in uses:
        if node.op in quotients and (position == 1 or "Mul" in quotients):
            for other in (operand.producer for operand in node.inputs):
                if other not in (total, divisor) and other.op == _WEIGHTED:
                    own, of_other = (pass_casts(one.input(1))[0] for one in (total, other))
                    return own == of_other
    return False


def _sums_weights(total: Node) -> bool:
    """Whether a SegmentSum is of weights, or their squares: a gradient may be all that reads it."""
    terms = total.input(0).resolved
    if terms.producer.op in ("Square", "Mul", "Pow"):
        root = terms.producer.input(0).resolved
        terms = root if _is_square(terms, root) else terms
    narrow, _, _ = _pass_widening(terms, total.type_attr("T"))
    return not isinstance(_match_column(narrow), NoMatch)
