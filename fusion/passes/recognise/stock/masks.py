"""Masks of padded ids: which of a row's ids count, or with what weights."""

from __future__ import annotations

from dataclasses import dataclass

from tensorflow.core.framework import types_pb2

from fusion.passes.analysis.equal_tensors import are_equal, is_among
from fusion.passes.analysis.rearrangements import without_last_axis
from fusion.passes.graph.idioms import is_integer_cast
from fusion.passes.graph.values import Node, Value
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
    lengths: Value | None = None
    lengths_dtype: int = 0
    weights: Value | None = None

    @property
    def is_all(self) -> bool:
        """Whether each id counts once."""
        return self.ignored is None and self.lengths is None and self.weights is None


def match_weights(by: Value, gather: Gathered) -> Mask | NoMatch:
    """Explains what rows are multiplied by: [B, L, 1], or tiles of it."""
    value, nodes = by.resolved, by.aliases
    tile = value.producer
    if tile.op == "Tile":
        inner, multiples = tile.inputs
        of = gather.shape
        if of is None or multiples.elements != [*[1] * (len(of) - 1), of[-1]]:
            return NoMatch("the weights are not tiled to the width of a row", tile.name)
        nodes += (tile.name, *inner.aliases)
        value = inner.resolved
    mask = match_mask(value, gather)
    if not isinstance(mask, NoMatch):
        return Mask((*nodes, *mask.nodes), mask.ignored, mask.lengths, mask.lengths_dtype)
    column = _without_column(value, gather)
    ones = () if column is None else ones_like(column, gather.ids.same)
    if ones:
        return Mask((*nodes, value.node, *ones))
    shape = value.shape
    if shape is None or gather.shape is None or len(shape) != len(gather.shape) or shape[-1] != 1:
        return NoMatch("the weights are not known to be one for each id", value.node)
    # Others are spread over what they have one of; the op asks for as many rows, or one for all.
    length, gathered_length = shape[-2], gather.shape[-2]
    if length is None or length != gathered_length or len(shape) != 3:
        return NoMatch("the weights of a row are not known to be as many as its ids", value.node)
    return Mask(nodes, weights=value)


def _without_column(value: Value, gather: Gathered) -> Value | None:
    """Returns what has the shape of the ids, and becomes [B, L, 1]; None if nothing does."""
    column, shape = without_last_axis(value), value.shape
    if gather.shape is None or (shape is not None and len(shape) != len(gather.shape)):
        return None
    return column


def match_mask(mask: Value, gather: Gathered) -> Mask | NoMatch:
    """Explains a mask of [B, L, 1], as truth values or numbers."""
    nodes, value = mask.aliases, mask.resolved
    expanded = False
    while True:
        node, inner = value.producer, _without_column(value, gather)
        if node.op == "Transpose" and _is_by_length(node, gather):
            inner = node.input(0)
        if inner is not None and not expanded:
            expanded = True
        elif node.op == "Cast" and not is_integer_cast(node):
            inner = node.input(0)
        else:
            break
        nodes += (node.name, *inner.aliases)
        value = inner.resolved
    failure = NoMatch("the mask is none of ids or lengths", node.name)
    if not expanded:
        return failure
    if node.op == "NotEqual":
        ignored = _ignored(node, gather)
        return failure if ignored is None else Mask((*nodes, node.name), ignored=ignored)
    lengths = _lengths(node, gather)
    if lengths is None:
        return failure
    of, dtype, passed = lengths
    return Mask((*nodes, *passed), lengths=of, lengths_dtype=dtype)


def match_flat_mask(mask: Value, gather: Gathered) -> Mask | NoMatch:
    """Explains a mask of [B, L] by ids."""
    test = _before_casts(mask)
    ignored = _ignored(test, gather) if test.op == "NotEqual" else None
    if ignored is None:
        return NoMatch("the mask is none of ids", test.name)
    return Mask((), ignored=ignored)


def _before_casts(value: Value) -> Node:
    """Returns what computes a tensor before it is cast, in whatever way."""
    node = value.producer
    while node.op == "Cast":
        node = node.input(0).producer
    return node


def _ignored(test: Node, gather: Gathered) -> int | None:
    """Returns the id that is left out where a test is that ids are not equal to a number."""
    operands = [operand.resolved for operand in test.inputs]
    for ids, other in (operands, operands[::-1]):
        if is_among(ids, gather.ids.same):
            value = _number(other)
            if value is not None:
                return value
        if _are_ids_as_floats(ids, gather) and _before_casts(other).output().scalar == 0:
            return 0
    return None


def _are_ids_as_floats(value: Value, gather: Gathered) -> bool:
    """Whether ids are cast from a tensor of floats, which is cast from integers.

    Only 0 becomes 0 on this way. Keras's Sequential takes integers so, if it is a part of a model.
    """
    cast = value.producer
    if cast.op != "Cast" or cast.type_attr("SrcT") not in ID_TYPES:
        return False
    if cast.type_attr("DstT") not in (types_pb2.DT_FLOAT, types_pb2.DT_DOUBLE):
        return False
    casts = (one.producer for one in gather.ids.same)
    return any(one.op == "Cast" and are_equal(one.input(0), value) for one in casts)


def _number(value: Value) -> int | None:
    """Returns an integer constant, through casts that keep it."""
    while is_integer_cast(cast := value.producer):
        value = cast.input(0)
    number = value.constant
    if number is None or number.ndim or number.dtype.kind != "i" or abs(int(number)) >= 1 << 31:
        return None
    return int(number)


def _is_by_length(transpose: Node, gather: Gathered) -> bool:
    """Whether a Transpose makes [B, L, 1] of [B, 1, L]."""
    return transpose.input(1).elements == [0, 2, 1] and len(gather.shape or ()) == 3


def _lengths(test: Node, gather: Gathered) -> tuple[Value, int, tuple[str, ...]] | None:
    """Explains `range(L) < lengths`, of [B, L] or [B, 1, L]: the lengths, their dtype and nodes."""
    if test.op != "Less" or gather.shape is None or len(gather.shape) != 3:
        return None
    counted, limits = test.inputs
    if not _is_range(counted, gather.shape[-2]):
        return None
    value, nodes = limits.resolved, (test.name, *limits.aliases)
    if is_integer_cast(cast := limits.producer):
        inner = cast.input(0)
        nodes += (cast.name, *inner.aliases)
        value = inner.resolved
    of = without_last_axis(value)
    shape = None if of is None else of.shape
    if of is None or shape is None or any(size != 1 for size in shape[1:]):
        return None
    dtype = value.producer.type_attr("T")
    return (of.resolved, dtype, (*nodes, value.node)) if dtype in ID_TYPES else None


def _is_range(value: Value, length: object) -> bool:
    """Whether a tensor has the numbers from 0 on, as many as a row has ids."""
    if not isinstance(length, int):
        return False
    if value.producer.op == "Range":
        return [_number(part) for part in value.producer.inputs] == [0, length, 1]
    numbers = value.constant
    if numbers is None or not numbers.ndim or numbers.size != numbers.shape[-1]:
        return False
    return bool(numbers.dtype.kind == "i" and numbers.reshape(-1).tolist() == [*range(length)])
