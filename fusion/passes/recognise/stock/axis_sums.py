"""Bags of padded ids: gathered rows put together over the axis of the ids of a row.

    Sum(rows)                      rows of [B, L, D]
    Sum(select(mask, rows, 0))     what a mask leaves out counts as zeros
    Sum(rows * weights)            weights, or a mask as numbers: [B, L, 1], or tiles of that
    Sum(rows - (1 - mask) * c)     what a mask leaves out counts less a number

and `Mean(rows)`, or the quotient of such a sum and of that of the mask or the weights; and Max in
place of Sum. A mask may be of ids that are not the one of padding, or of as many as a row's length
says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from tensorflow.core.framework import types_pb2

from fusion.passes.graph.idioms import is_integer_cast
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import NoMatch, Stage
from fusion.passes.recognise.spec import Addition, DenseIds, WeightsSpec
from fusion.passes.recognise.stock.gathers import (
    Gathered,
    NoBag,
    gather_behind,
    lookup_of,
    match_added,
    ones_like,
)
from fusion.passes.recognise.stock.rows import Shaped
from fusion.schema.attributes import HALF_TYPES, ID_TYPES

_OF_ALL = {"Max": ("max", True), "Mean": ("mean", False)}
"""Combiner and `divide_no_nan` of what is no quotient of sums."""

REDUCTIONS = frozenset({*_OF_ALL, "Sum"})

_DIVISIONS = {"DivNoNan": True, "RealDiv": False}

_MOST_ELEMENTS = 4096
"""The op has zeros for rows of no more."""

_MOST_COUNTED = 2048
"""Sums of more ones are rounded in float16 on the way."""


@dataclass(frozen=True)
class _Mask:
    """Which of the ids count, as a tensor of [B, L, 1].

    Attributes:
        nodes: what computes it from the ids, or from lengths.
        ignored: the id that does not count; None: it is not by ids.
        lengths: how many of a row count; None: it is not by lengths.
        lengths_dtype: their DataType.
        weights: numbers of which nothing else is known; None: all count, or see above.
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


@dataclass(frozen=True)
class _Terms:
    """What is added up.

    Attributes:
        gather: where the rows come from.
        mask: which of them count.
        nodes: what is between.
        is_product: whether they are multiplied by it.
        penalty: what is subtracted from those that do not count.
    """

    gather: Gathered
    mask: _Mask
    nodes: tuple[str, ...]
    is_product: bool = False
    penalty: float = 0.0


@dataclass(frozen=True)
class _Quotient:
    """What a sum is divided by.

    Attributes:
        combiner: mean or sqrtn; sum or max if it is not divided.
        no_nan: whether a quotient by 0 is 0.
        epsilon: is added to the divisor.
        output: the quotient.
        nodes: what is between, the sum left out.
    """

    combiner: str
    no_nan: bool
    epsilon: float | Tensor
    output: Tensor
    nodes: tuple[str, ...]


def axis_sums(view: GraphView) -> Iterator[str]:
    """Yields the sums, means and maxima of gathered rows, in file order."""
    return (
        name
        for name in view.named(*REDUCTIONS)
        if gather_behind(view, view.inputs(name)[0]) is not None
    )


def match_axis_sum(view: GraphView, reduction: str) -> Shaped | NoMatch:
    """Says what a sum, mean or maximum of gathered rows over an axis looks up."""
    found = _match(view, reduction)
    return NoBag.of(found, view, reduction) if isinstance(found, NoMatch) else found


def _match(view: GraphView, reduction: str) -> Shaped | NoMatch:
    terms = _match_terms(view, view.inputs(reduction)[0], reduction)
    if isinstance(terms, NoMatch):
        return terms
    gather, mask = terms.gather, terms.mask
    shape = gather.shape
    if shape is None or len(shape) < 3:
        return NoMatch("the rows that are added up are not those of a matrix of ids", reduction)
    axis = view.constant(view.inputs(reduction)[1])
    at = None if axis is None or axis.size != 1 else int(axis.reshape(()))
    if at not in (-2, len(shape) - 2):
        return NoMatch("rows are not added up over the last axis of the ids", reduction)
    width = shape[-1]
    if not isinstance(width, int) or not 0 < width <= _MOST_ELEMENTS:
        return NoMatch(f"the width of rows is not known to be at most {_MOST_ELEMENTS}", reduction)
    keeps = view.flag_attr(reduction, "keep_dims")
    op = view.op(reduction)
    if op == "Mean" and not mask.is_all:
        return NoMatch("a mean of what a mask leaves is divided by the number of all", reduction)
    if op == "Sum":
        quotient = _match_quotient(view, reduction, terms, len(shape), keeps)
    else:
        quotient = _Quotient(*_OF_ALL[op], 0.0, Tensor(reduction), ())
    ids = gather.ids
    weights = None if mask.weights is None else WeightsSpec(mask.weights, False, 1.0)
    is_masked = terms.is_product and weights is None and not mask.is_all
    dense = DenseIds(
        ids.values,
        ids.dtype,
        mask.ignored,
        0,
        wraps=ids.wraps,
        lengths=mask.lengths,
        lengths_dtype=mask.lengths_dtype or DenseIds.lengths_dtype,
    )
    spec = lookup_of(
        view,
        gather,
        reduction,
        dense,
        quotient.output,
        combiner=quotient.combiner,
        divide_no_nan=quotient.no_nan,
        weights=weights,
        addition=Addition("axis", is_masked, terms.penalty, quotient.epsilon),
    )
    nodes = (reduction, *terms.nodes, gather.node, *quotient.nodes)
    front = (*ids.nodes, *mask.nodes)
    return Shaped(
        stage=Stage.OUTPUT,
        nodes=tuple(dict.fromkeys(nodes)),
        front=tuple(dict.fromkeys(front)),
        spec=spec,
        shape=(*shape[:-2], *([1] if keeps else []), width),
    )


def _match_terms(view: GraphView, added: Tensor, reduction: str) -> _Terms | NoMatch:
    found = match_added(view, added)
    if isinstance(found, NoMatch):
        return found
    source, gather = found
    name = gather.node
    between = view.aliases(added)
    if source.node == name:
        return _Terms(gather, _Mask(()), between)
    inputs = view.inputs(source.node)
    is_product, penalty = view.op(source.node) == "Mul", 0.0
    if is_product:
        rows, by = inputs if view.resolve(inputs[0]).node == name else reversed(inputs)
        mask = _match_weights(view, by, gather)
    elif view.op(source.node) == "Sub":
        rows, less = inputs
        mask, penalty = _match_penalty(view, less, gather)
    else:
        condition, rows, zeros = inputs
        if not _are_zeros(view, zeros, gather.node):
            return NoMatch("what a mask leaves out is not replaced by zeros", source.node)
        if view.op(source.node) == "Select":
            return NoMatch("the mask is not spread by the op itself", source.node)
        mask = _match_mask(view, condition, gather)
    if isinstance(mask, NoMatch):
        return mask
    nodes = (*between, source.node, *view.aliases(rows))
    return _Terms(gather, mask, nodes, is_product, penalty)


def _match_penalty(
    view: GraphView, less: Tensor, gather: Gathered
) -> tuple[_Mask | NoMatch, float]:
    """Explains `(1 - mask) * c`, which is subtracted from rows: the mask and c."""
    product = view.resolve(less)
    failure = NoMatch("what is subtracted is not a number where a mask is 0", product.node)
    if view.op(product.node) != "Mul":
        return failure, 0.0
    number, other = view.inputs(product.node)
    if view.constant(number) is None:
        number, other = other, number
    value, rest = view.constant(number), view.resolve(other)
    # An attr is a float32, and 0 stands for none.
    if value is None or value.ndim or float(np.float32(value)) != float(value) or not value:
        return failure, 0.0
    if view.op(rest.node) != "Sub":
        return failure, 0.0
    one, by = view.inputs(rest.node)
    ones = view.constant(one)
    if ones is None or ones.ndim or ones != 1:
        return failure, 0.0
    mask = _match_weights(view, by, gather)
    if isinstance(mask, NoMatch):
        return mask, 0.0
    if mask.weights is not None:
        return failure, 0.0
    nodes = (*view.aliases(less), product.node, *view.aliases(other), rest.node, *mask.nodes)
    return replace(mask, nodes=nodes), float(value)


def _are_zeros(view: GraphView, tensor: Tensor, gather: str) -> bool:
    source = view.resolve(tensor)
    if view.op(source.node) == "ZerosLike":
        return view.resolve(view.inputs(source.node)[0]).node == gather
    value = view.constant(source)
    return value is not None and value.ndim == 0 and value == 0 and not np.signbit(value)


def _match_weights(view: GraphView, by: Tensor, gather: Gathered) -> _Mask | NoMatch:
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
    mask = _match_mask(view, tensor, gather)
    if not isinstance(mask, NoMatch):
        return _Mask((*nodes, *mask.nodes), mask.ignored, mask.lengths, mask.lengths_dtype)
    if view.op(tensor.node) == "ExpandDims" and _is_last(view, tensor, gather):
        ones = ones_like(view, view.inputs(tensor.node)[0], gather.ids.same)
        if ones:
            return _Mask((*nodes, tensor.node, *ones))
    shape = view.shape(tensor)
    if shape is None or gather.shape is None or len(shape) != len(gather.shape) or shape[-1] != 1:
        return NoMatch("the weights are not known to be one for each id", tensor.node)
    # Others are spread over what they have one of; the op asks for as many rows, or one for all.
    given, wanted = shape[-2], gather.shape[-2]
    if given is None or given != wanted or len(shape) != 3:
        return NoMatch("the weights of a row are not known to be as many as its ids", tensor.node)
    return _Mask(nodes, weights=tensor)


def _is_last(view: GraphView, expanded: Tensor, gather: Gathered) -> bool:
    """Whether an ExpandDims makes [B, L, 1] of what has the shape of the ids."""
    axis = view.constant(view.inputs(expanded.node)[1])
    if axis is None or axis.size != 1 or gather.shape is None:
        return False
    return int(axis.reshape(())) in (-1, len(gather.shape) - 1)


def _match_mask(view: GraphView, tensor: Tensor, gather: Gathered) -> _Mask | NoMatch:
    """Explains a mask of [B, L, 1], as truth values or numbers."""
    nodes: tuple[str, ...] = view.aliases(tensor)
    tensor = view.resolve(tensor)
    expanded = False
    while True:
        op = view.op(tensor.node)
        is_column = op == "ExpandDims" and _is_last(view, tensor, gather)
        is_column |= op == "Transpose" and _is_by_length(view, tensor, gather)
        if is_column and not expanded:
            expanded = True
        elif op != "Cast" or is_integer_cast(view, tensor.node):
            break
        inner = view.inputs(tensor.node)[0]
        nodes += (tensor.node, *view.aliases(inner))
        tensor = view.resolve(inner)
    failure = NoMatch("the mask is none of ids or lengths", tensor.node)
    if not expanded:
        return failure
    if view.op(tensor.node) == "NotEqual":
        ignored = _ignored(view, tensor, gather)
        return failure if ignored is None else _Mask((*nodes, tensor.node), ignored=ignored)
    lengths = _lengths(view, tensor, gather)
    if lengths is None:
        return failure
    of, dtype, passed = lengths
    return _Mask((*nodes, *passed), lengths=of, lengths_dtype=dtype)


def _ignored(view: GraphView, test: Tensor, gather: Gathered) -> int | None:
    """Returns the id that is left out where a test is that ids are not equal to a number."""
    operands = [view.resolve(operand) for operand in view.inputs(test.node)]
    for ids, other in (operands, operands[::-1]):
        if ids in gather.ids.same:
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
        view.resolve(view.inputs(cast)[0]) == tensor for cast in casts
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
    if view.op(tensor.node) != "ExpandDims":
        return None
    of = view.inputs(tensor.node)[0]
    shape, axis = view.shape(of), view.constant(view.inputs(tensor.node)[1])
    if shape is None or axis is None or axis.size != 1:
        return None
    if int(axis.reshape(())) not in (-1, len(shape)) or any(size != 1 for size in shape[1:]):
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


def _match_quotient(
    view: GraphView, reduction: str, terms: _Terms, rank: int, keeps: bool
) -> _Quotient:
    """Explains the division of a sum, if it is by the sum of its mask or of its weights."""
    total = Tensor(reduction)
    none = _Quotient("sum", True, 0.0, total, ())
    uses = view.uses(reduction)
    if len(uses) != 1 or uses[0].position != 0 or reduction in view.preserved:
        return none
    division = uses[0].node
    if view.op(division) not in _DIVISIONS or view.controls(division):
        return none
    if _is_rounded_otherwise(terms):
        return none
    divisor = view.inputs(division)[1]
    epsilon: float | Tensor = 0.0
    tensor = view.resolve(divisor)
    if view.op(tensor.node) in ("Add", "AddV2"):
        one, other = view.inputs(tensor.node)
        if view.shape(other) != ():
            one, other = other, one
        epsilon, tensor = _epsilon(view, other), view.resolve(one)
        # The op has them in the place of weights.
        is_beside_weights = isinstance(epsilon, Tensor) and terms.mask.weights is not None
        if view.shape(other) != () or is_beside_weights:
            return none
    is_root = view.op(tensor.node) == "Sqrt"
    if is_root:
        if epsilon:
            return none
        tensor = view.resolve(view.inputs(tensor.node)[0])
    if not _match_count(view, tensor, terms, rank, keeps, squared=is_root):
        return none
    # What only the divisor needs dies with it.
    combiner = "sqrtn" if is_root else "mean"
    return _Quotient(
        combiner, _DIVISIONS[view.op(division)], epsilon, Tensor(division), (division,)
    )


def _epsilon(view: GraphView, tensor: Tensor) -> float | Tensor:
    """Returns a number that an attr can hold, which is a float32, or else the tensor."""
    value = view.constant(tensor)
    if value is None or value.ndim or float(np.float32(value)) != float(value):
        return view.resolve(tensor)
    return float(value)


def _is_rounded_otherwise(terms: _Terms) -> bool:
    """Whether the op does not round the quotient of two sums of half types as stock does.

    Without a mask it has a Mean, which in bfloat16 is rounded once.
    """
    gather = terms.gather
    if gather.dtype == types_pb2.DT_BFLOAT16:
        return terms.mask.is_all
    length = None if gather.shape is None else gather.shape[-2]
    is_counted = isinstance(length, int) and length <= _MOST_COUNTED
    return gather.dtype == types_pb2.DT_HALF and not is_counted


def _match_count(
    view: GraphView, tensor: Tensor, terms: _Terms, rank: int, keeps: bool, squared: bool
) -> bool | None:
    """Whether a tensor is, for each row, the sum of the mask or weights, or their squares' sum."""
    op, mask, gather = view.op(tensor.node), terms.mask, terms.gather
    if op == "Cast" and mask.lengths is not None:
        of = view.inputs(tensor.node)[0]
        shape = view.shape(of)
        fits = shape is not None and len(shape) == 2 and shape[1] == 1 and not keeps
        return True if fits and view.resolve(of) == mask.lengths and not squared else None
    if op == "Cast":
        # Of the sum of a mask as integers.
        tensor = view.resolve(view.inputs(tensor.node)[0])
        op = view.op(tensor.node)
    if op != "Sum" or view.type_attr(tensor.node, "T") in HALF_TYPES - {gather.dtype}:
        return None
    of, axes = view.inputs(tensor.node)
    axis = view.constant(axes)
    if axis is None or axis.size != 1:
        return None
    at, kept = int(axis.reshape(())), view.flag_attr(tensor.node, "keep_dims")
    source = view.resolve(of)
    if squared:
        if view.op(source.node) != "Square":
            return None
        source = view.resolve(view.inputs(source.node)[0])
    over_last = at in (-1, rank - 2) and kept and not keeps and _is_flat(view, source, rank)
    over_middle = at in (-2, rank - 2) and kept == keeps and not _is_flat(view, source, rank)
    if not over_last and not over_middle:
        return None
    find = _flat_mask if over_last else _match_weights
    found = find(view, source, gather)
    if isinstance(found, NoMatch):
        return None
    same = (found.ignored, found.lengths) == (mask.ignored, mask.lengths)
    is_same_weight = found.weights == mask.weights
    return True if same and is_same_weight else None


def _is_flat(view: GraphView, tensor: Tensor, rank: int) -> bool:
    """Whether a mask has the shape of the ids, and no axis more."""
    shape = view.shape(tensor)
    return shape is not None and len(shape) == rank - 1


def _flat_mask(view: GraphView, tensor: Tensor, gather: Gathered) -> _Mask | NoMatch:
    """Explains a mask of [B, L] by ids."""
    while view.op(tensor.node) == "Cast":
        tensor = view.resolve(view.inputs(tensor.node)[0])
    ignored = _ignored(view, tensor, gather) if view.op(tensor.node) == "NotEqual" else None
    if ignored is None:
        return NoMatch("the mask is none of ids", tensor.node)
    return _Mask((), ignored=ignored)
