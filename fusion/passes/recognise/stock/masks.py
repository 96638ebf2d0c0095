"""Masks of padded ids: which of a row's ids count, or with what weights."""

from __future__ import annotations

from dataclasses import dataclass

from tensorflow.core.framework import types_pb2

from fusion.passes.analysis.equal_tensors import are_equal, is_among
from fusion.passes.analysis.rearrangements import behind_last_axis
from fusion.passes.graph.idioms import is_integer_cast
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import NoMatch
from fusion.passes.recognise.stock.gathers import Gathered, ones_like
from fusion.schema.attributes import ID_TYPES


@dataclass(frozen=True)
class Mask:
    """Which of the ids count, as a tensor of [B, L, 1].

    Attributes:
        nodes: what computes it from the ids, or from lengths.
        ignored: the id that does not count; None: it is not by ids.
        lengths: how many of a row count; None: it is not by lengths.
        lengths_dtype: their DataType.
        weights: any numbers; None: all count, or see above.
    """

    nodes: tuple[str, ...]
    ignored: int | None = None
    lengths: Tensor | None = None
    lengths_dtype: int = 0
    weights: Tensor | None = None

    @property
    def is_all(self) -> bool:
        """Whether each id counts once."""
        return self.ignored is None and self.lengths is None and self.weights is None


def match_weights(view: GraphView, by: Tensor, gather: Gathered) -> Mask | NoMatch:
    """Explains what rows are multiplied by: [B, L, 1], or tiles of it."""
    tensor, nodes = view.resolve(by), view.aliases(by)
    if view.op(tensor.node) == "Tile":
        inner, multiples = view.inputs(tensor.node)
        times = view.constant(multiples)
        of = gather.shape
        if times is None or of is None or times.tolist() != [*[1] * (len(of) - 1), of[-1]]:
            return NoMatch("the weights are not tiled to the width of a row", tensor.node)
        nodes += (tensor.node, *view.aliases(inner))
        tensor = view.resolve(inner)
    mask = match_mask(view, tensor, gather)
    if not isinstance(mask, NoMatch):
        return Mask((*nodes, *mask.nodes), mask.ignored, mask.lengths, mask.lengths_dtype)
    column = _behind_column(view, tensor, gather)
    ones = () if column is None else ones_like(view, column, gather.ids.same)
    if ones:
        return Mask((*nodes, tensor.node, *ones))
    shape = view.shape(tensor)
    if shape is None or gather.shape is None or len(shape) != len(gather.shape) or shape[-1] != 1:
        return NoMatch("the weights are not known to be one for each id", tensor.node)
    # Others are spread over what they have one of; the op asks for as many rows, or one for all.
    given, wanted = shape[-2], gather.shape[-2]
    if given is None or given != wanted or len(shape) != 3:
        return NoMatch("the weights of a row are not known to be as many as its ids", tensor.node)
    return Mask(nodes, weights=tensor)


def _behind_column(view: GraphView, tensor: Tensor, gather: Gathered) -> Tensor | None:
    """Returns what has the shape of the ids, and becomes [B, L, 1]; None if nothing does."""
    column, shape = behind_last_axis(view, tensor), view.shape(tensor)
    if gather.shape is None or (shape is not None and len(shape) != len(gather.shape)):
        return None
    return column


def match_mask(view: GraphView, tensor: Tensor, gather: Gathered) -> Mask | NoMatch:
    """Explains a mask of [B, L, 1], as truth values or numbers."""
    nodes: tuple[str, ...] = view.aliases(tensor)
    tensor = view.resolve(tensor)
    expanded = False
    while True:
        op, inner = view.op(tensor.node), _behind_column(view, tensor, gather)
        if op == "Transpose" and _is_by_length(view, tensor, gather):
            inner = view.inputs(tensor.node)[0]
        if inner is not None and not expanded:
            expanded = True
        elif op == "Cast" and not is_integer_cast(view, tensor.node):
            inner = view.inputs(tensor.node)[0]
        else:
            break
        nodes += (tensor.node, *view.aliases(inner))
        tensor = view.resolve(inner)
    failure = NoMatch("the mask is none of ids or lengths", tensor.node)
    if not expanded:
        return failure
    if view.op(tensor.node) == "NotEqual":
        ignored = _ignored(view, tensor, gather)
        return failure if ignored is None else Mask((*nodes, tensor.node), ignored=ignored)
    lengths = _lengths(view, tensor, gather)
    if lengths is None:
        return failure
    of, dtype, passed = lengths
    return Mask((*nodes, *passed), lengths=of, lengths_dtype=dtype)


def match_flat_mask(view: GraphView, tensor: Tensor, gather: Gathered) -> Mask | NoMatch:
    """Explains a mask of [B, L] by ids."""
    while view.op(tensor.node) == "Cast":
        tensor = view.resolve(view.inputs(tensor.node)[0])
    ignored = _ignored(view, tensor, gather) if view.op(tensor.node) == "NotEqual" else None
    if ignored is None:
        return NoMatch("the mask is none of ids", tensor.node)
    return Mask((), ignored=ignored)


def _ignored(view: GraphView, test: Tensor, gather: Gathered) -> int | None:
    """Returns the id that is left out where a test is that ids are not equal to a number."""
    operands = [view.resolve(operand) for operand in view.inputs(test.node)]
    for ids, other in (operands, operands[::-1]):
        if is_among(view, ids, gather.ids.same):
            value = _number(view, other)
            if value is not None:
                return value
        if _are_ids_as_floats(view, ids, gather) and _is_zero(view, other):
            return 0
    return None


def _are_ids_as_floats(view: GraphView, tensor: Tensor, gather: Gathered) -> bool:
    """Whether ids are cast from a tensor of floats, which is cast from integers.

    Only 0 becomes 0 on this way. Keras's Sequential takes integers so, if it is a part of a model.
    """
    if view.op(tensor.node) != "Cast":
        return False
    if view.type_attr(tensor.node, "DstT") not in (types_pb2.DT_FLOAT, types_pb2.DT_DOUBLE):
        return False
    casts = (one.node for one in gather.ids.same if view.op(one.node) == "Cast")
    return view.type_attr(tensor.node, "SrcT") in ID_TYPES and any(
        are_equal(view, view.inputs(cast)[0], tensor) for cast in casts
    )


def _is_zero(view: GraphView, tensor: Tensor) -> bool:
    while view.op(tensor.node) == "Cast":
        tensor = view.resolve(view.inputs(tensor.node)[0])
    value = view.constant(tensor)
    return value is not None and not value.ndim and value == 0


def _number(view: GraphView, tensor: Tensor) -> int | None:
    """Returns an integer constant, through casts that keep it."""
    while is_integer_cast(view, tensor.node):
        tensor = view.resolve(view.inputs(tensor.node)[0])
    value = view.constant(tensor)
    if value is None or value.ndim or value.dtype.kind != "i" or abs(int(value)) >= 1 << 31:
        return None
    return int(value)


def _is_by_length(view: GraphView, tensor: Tensor, gather: Gathered) -> bool:
    """Whether a Transpose makes [B, L, 1] of [B, 1, L]."""
    order = view.constant(view.inputs(tensor.node)[1])
    return order is not None and order.tolist() == [0, 2, 1] and len(gather.shape or ()) == 3


def _lengths(
    view: GraphView, test: Tensor, gather: Gathered
) -> tuple[Tensor, int, tuple[str, ...]] | None:
    """Explains `range(L) < lengths`, of [B, L] or [B, 1, L]: the lengths, their dtype and nodes."""
    if view.op(test.node) != "Less" or gather.shape is None or len(gather.shape) != 3:
        return None
    counted, limits = view.inputs(test.node)
    if not _is_range(view, counted, gather.shape[-2]):
        return None
    tensor, nodes = view.resolve(limits), (test.node, *view.aliases(limits))
    if view.op(tensor.node) == "Cast" and is_integer_cast(view, tensor.node):
        inner = view.inputs(tensor.node)[0]
        nodes += (tensor.node, *view.aliases(inner))
        tensor = view.resolve(inner)
    of = behind_last_axis(view, tensor)
    shape = None if of is None else view.shape(of)
    if of is None or shape is None or any(size != 1 for size in shape[1:]):
        return None
    source = view.resolve(of)
    dtype = view.type_attr(tensor.node, "T")
    return (source, dtype, (*nodes, tensor.node)) if dtype in ID_TYPES else None


def _is_range(view: GraphView, tensor: Tensor, length: object) -> bool:
    """Whether a tensor has the numbers from 0 on, as many as a row has ids."""
    tensor = view.resolve(tensor)
    if not isinstance(length, int):
        return False
    if view.op(tensor.node) == "Range":
        numbers = [_number(view, view.resolve(part)) for part in view.inputs(tensor.node)]
        return numbers == [0, length, 1]
    value = view.constant(tensor)
    if value is None or not value.ndim or value.size != value.shape[-1]:
        return False
    return bool(value.dtype.kind == "i" and value.reshape(-1).tolist() == [*range(length)])
