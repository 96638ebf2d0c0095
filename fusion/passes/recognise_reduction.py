"""The anchor of every lookup: the op that reduces rows to bags."""

from __future__ import annotations

from dataclasses import dataclass

from tensorflow.core.framework import types_pb2

from fusion.passes.graph_view import GraphView, Tensor
from fusion.passes.match import Match, NoMatch, Stage

COMBINERS = {"SparseSegmentSum": "sum", "SparseSegmentMean": "mean", "SparseSegmentSqrtN": "sqrtn"}
_COUNTED = frozenset(f"{op}WithNumSegments" for op in COMBINERS)
_WEIGHTED = "SegmentSum"
_TABLE_DTYPES = (
    types_pb2.DT_HALF,
    types_pb2.DT_BFLOAT16,
    types_pb2.DT_FLOAT,
    types_pb2.DT_DOUBLE,
)
_INTEGERS = (types_pb2.DT_INT32, types_pb2.DT_INT64)

ANCHORS = frozenset({*COMBINERS, *_COUNTED, _WEIGHTED})
"""The ops that lookups are recognised from."""


@dataclass(frozen=True, kw_only=True)
class Reduction(Match):
    """A segment reduction of gathered rows.

    Attributes:
        combiner: sum, mean or sqrtn.
        rows: the matrix whose rows are reduced: a table, or the unique rows of one.
        positions: for each entry, the row of `rows` that it means.
        fill: the SparseFillEmptyRows node whose row numbers are the segment ids.
        output: the reduced rows, [B, D].
        dtype: DataType of the rows.
    """

    combiner: str
    rows: Tensor
    positions: Tensor
    fill: str
    output: Tensor
    dtype: int


def anchors(view: GraphView) -> tuple[str, ...]:
    """Returns all segment reductions in file order, one per column.

    A weighted mean or sqrtn has a second SegmentSum, of the weights alone; that one is its divisor
    and no column of its own.
    """
    return tuple(
        name
        for name, node in view.nodes.items()
        if node.op in ANCHORS and not _is_divisor(view, name)
    )


def match_reduction(view: GraphView, anchor: str) -> Reduction | NoMatch:
    """Explains the segment reduction and its segment ids."""
    op = view.op(anchor)
    if op in _COUNTED:
        return NoMatch("the number of rows is given as an argument", anchor)
    if op == _WEIGHTED:
        return _refuse_segment_sum(view, anchor)
    dtype = view.type_attr(anchor, "T")
    if dtype not in _TABLE_DTYPES:
        name = types_pb2.DataType.Name(dtype).removeprefix("DT_").lower()
        return NoMatch(f"tables of dtype {name} are not fused", anchor)
    rows, positions, segments = view.inputs(anchor)
    column = _match_row_numbers(view, segments)
    if isinstance(column, NoMatch):
        return column
    fill, nodes = column
    return Reduction(
        stage=Stage.OUTPUT,
        nodes=(anchor, *nodes),
        combiner=COMBINERS[op],
        rows=rows,
        positions=positions,
        fill=fill,
        output=Tensor(anchor),
        dtype=dtype,
    )


def _match_row_numbers(view: GraphView, segments: Tensor) -> tuple[str, tuple[str, ...]] | NoMatch:
    """Explains segment ids as column 0 of a SparseFillEmptyRows' indices, maybe cast to int32."""
    nodes = view.aliases(segments)
    segments = view.resolve(segments)
    if view.op(segments.node) == "Cast" and _between_integers(view, segments.node):
        inner = view.inputs(segments.node)[0]
        nodes += (segments.node, *view.aliases(inner))
        segments = view.resolve(inner)
    if view.op(segments.node) == "RaggedFillEmptyRows":
        return NoMatch("the ids are a RaggedTensor", segments.node)
    if view.op(segments.node) != "StridedSlice":
        return NoMatch("the segment ids are not the row numbers of a SparseTensor", segments.node)
    if not _takes_first_column(view, segments.node):
        return NoMatch("the segment ids are not column 0 of the indices", segments.node)
    indices = view.inputs(segments.node)[0]
    nodes += (segments.node, *view.aliases(indices))
    source = view.resolve(indices)
    if view.op(source.node) != "SparseFillEmptyRows" or source.index != 0:
        return NoMatch("empty rows are not filled: the result has max(row) + 1 rows", source.node)
    return source.node, nodes


def _between_integers(view: GraphView, cast: str) -> bool:
    return all(view.type_attr(cast, key) in _INTEGERS for key in ("SrcT", "DstT"))


def _takes_first_column(view: GraphView, name: str) -> bool:
    """Whether a StridedSlice of a matrix means `[:, 0]`."""
    bounds = [view.constant(bound) for bound in view.inputs(name)[1:]]
    if any(bound is None or bound.shape != (2,) for bound in bounds):
        return False
    begin, _, strides = (bound for bound in bounds if bound is not None)
    masks = {
        key: view.int_attr(name, f"{key}_mask")
        for key in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    all_rows = bool(masks["begin"] & 1 and masks["end"] & 1) and strides[0] == 1
    one_column = masks["shrink_axis"] == 2 and not masks["begin"] & 2 and begin[1] == 0
    return (
        all_rows
        and one_column
        and strides[1] == 1
        and not masks["ellipsis"]
        and not masks["new_axis"]
    )


def _refuse_segment_sum(view: GraphView, anchor: str) -> NoMatch:
    data = view.resolve(view.inputs(anchor)[0])
    if view.op(data.node) == "Mul":
        return NoMatch("the lookup is weighted", data.node)
    return NoMatch("the segment sum does not reduce looked-up rows", data.node)


def _is_divisor(view: GraphView, name: str) -> bool:
    """Whether a SegmentSum only feeds the divisor of another one over the same segment ids."""
    if view.op(name) != _WEIGHTED:
        return False
    divisor, uses = name, view.uses(name)
    if len(uses) == 1 and view.op(uses[0].node) in ("Sqrt", "Rsqrt"):
        divisor = uses[0].node
        uses = view.uses(divisor)
    # Grappler turns x / sqrt(y) into x * rsqrt(y).
    quotients = ("Mul",) if view.op(divisor) == "Rsqrt" else ("DivNoNan", "RealDiv", "Div")
    for use in uses:
        if view.op(use.node) in quotients and (use.position == 1 or quotients == ("Mul",)):
            operands = [view.resolve(operand).node for operand in view.inputs(use.node)]
            others = [node for node in operands if node not in (name, divisor)]
            for other in others:
                if view.op(other) == _WEIGHTED:
                    return view.inputs(other)[1] == view.inputs(name)[1]
    return False
