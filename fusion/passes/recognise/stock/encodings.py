"""Ids that are spread over columns: one-hots, multi-hots and counts, and what becomes of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tensorflow.core.framework import types_pb2

from fusion.passes.analysis.symbolic_shapes import Dim, ShapeMath, reshaped
from fusion.passes.analysis.value_ranges import range_of
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import NoMatch
from fusion.passes.recognise.spec import EncodedIds
from fusion.schema.attributes import ID_TYPES, TABLE_TYPES

ENCODINGS = frozenset({"DenseBincount", "OneHot", "RaggedBincount", "SparseBincount"})
"""What spreads ids over columns."""

MAX_CLASSES = 64
"""Products of no more columns of encoded ids cost about as little as a bag, and are left alone."""

LONGEST, _DEEPEST = 1 << 10, 6
"""Inputs of a concat that are looked at, and ops behind each."""

_BETWEEN = frozenset(
    {"Cast", "EnsureShape", "ExpandDims", "Max", "Reshape", "Squeeze", "Sum", "Transpose"}
)
_CODE_TYPES = ID_TYPES.union({types_pb2.DT_UINT8, types_pb2.DT_INT8})


@dataclass(frozen=True)
class Encoded:
    """Encoded ids, or what is none of them.

    Attributes:
        ids: the ids, not placed among rows yet; None if there are none.
        nodes: what encodes them, and then has no other consumers.
        failure: why they are no ids of a lookup.
    """

    ids: EncodedIds | None
    nodes: tuple[str, ...]
    failure: NoMatch | None = None


@dataclass(frozen=True)
class Sizes:
    """A Shape of one-hots that others read, too.

    Attributes:
        node: its name.
        ids: what is encoded; behind their sizes comes the number of classes.
    """

    node: str
    ids: EncodedIds


def steps_to(view: GraphView, leaf: Tensor, *, joined: bool = True) -> tuple[str, ...]:
    """Returns the nodes from a tensor down to the op that encodes ids; () if there is none.

    Args:
        view: the graph.
        leaf: the tensor.
        joined: whether the first of a concat that is encoded counts.
    """
    source, steps = view.resolve(leaf), list[str]()
    for _ in range(_DEEPEST):
        op = view.op(source.node)
        steps.append(source.node)
        if op in ENCODINGS:
            return tuple(steps)
        if op == "ConcatV2" and joined:
            parts = view.inputs(source.node)[:-1][:LONGEST]
            found = (steps_to(view, part, joined=False) for part in parts)
            further = next(filter(None, found), ())
            return (*steps, *further) if further else ()
        if op not in _BETWEEN:
            break
        source = view.resolve(view.inputs(source.node)[0])
    return ()


def match_encoded(view: GraphView, leaf: Tensor) -> Encoded:
    """Explains a tensor as encoded ids, [B, columns]; without ids or failure it is something else.

    From the ids on these are added up over a row, or the largest is taken, and reshaped.
    """
    steps = steps_to(view, leaf)
    if not steps:
        return Encoded(None, ())
    encoding = steps[-1]
    passed = [leaf, *(view.inputs(step)[0] for step in steps[:-1])]
    nodes = (*steps, *(alias for tensor in passed for alias in view.aliases(tensor)))

    def refused(reason: str, node: str = encoding) -> Encoded:
        return Encoded(None, (), NoMatch(reason, node))

    changing = [step for step in steps[:-1] if not _is_plain(view, step)]
    kinds = [view.op(step) for step in changing]
    reduction = changing.pop() if kinds and kinds[-1] in ("Max", "Sum") else ""
    if reduction and not _is_over_ids(view, reduction):
        return refused("encoded ids are not added up over those of a row", reduction)
    if len(changing) > 1 or any(view.op(step) not in ("Reshape", "Squeeze") for step in changing):
        return refused("it is not understood what becomes of encoded ids", changing[0])
    is_flat = bool(changing) and not reduction and _has_row_of_each(view, changing[0], encoding)
    ids = _match_ids(view, encoding, view.op(reduction), is_flat=is_flat)
    if isinstance(ids, NoMatch):
        return refused(ids.reason, ids.node)
    if is_flat:
        return Encoded(ids, nodes)
    is_cube = view.op(encoding) == "OneHot" and not reduction and not ids.is_vector
    if is_cube and ids.width is not None and ids.width > 1:
        # [B, K, classes] become [B, K * classes].
        ids = replace(ids, stride=ids.classes)
    is_matrix = _has_columns(view, changing[0], ids) if changing else not is_cube
    if not is_matrix or (is_cube and ids.width is None):
        return refused("encoded ids are not known to be side by side")
    return Encoded(ids, nodes)


def _is_plain(view: GraphView, name: str) -> bool:
    """Whether a node casts to a type that has all the numbers of an encoding, or moves nothing."""
    if view.op(name) == "Transpose":
        order = ShapeMath(view).vector(view.inputs(name)[1])
        return order is not None and order == (*range(len(order)),)
    return view.op(name) == "Cast" and view.type_attr(name, "DstT") in TABLE_TYPES | ID_TYPES


def _has_row_of_each(view: GraphView, reshape: str, encoding: str) -> bool:
    """Whether a Reshape makes a matrix with a row for each one-hot, whatever shape ids have."""
    if view.op(reshape) != "Reshape" or view.op(encoding) != "OneHot":
        return False
    math, given = ShapeMath(view), view.resolve(view.inputs(reshape)[0])
    hot = math.shape_of(Tensor(encoding))
    if hot is None or len(hot) < 3:
        return False
    math.known[given] = hot
    target = math.vector(view.inputs(reshape)[1])
    shape = None if target is None else reshaped(hot, target)
    return shape is not None and len(shape) == 2 and shape[1] == hot[-1]


def sizes_of(view: GraphView, part: Encoded) -> Iterator[Sizes]:
    """Yields what measures one-hots of which each is a row of a product."""
    ids = part.ids
    if ids is not None and ids.is_flat:
        hot = next(name for name in part.nodes if view.op(name) == "OneHot")
        names = [name for name in part.nodes if view.resolve(Tensor(name)).node == hot]
        for name in names:
            for use in view.uses(name):
                if view.op(use.node) == "Shape":
                    yield Sizes(use.node, ids)


def classes_of(view: GraphView, leaf: Tensor) -> int:
    """Returns by how many classes a tensor encodes ids, 0 if it encodes none.

    Where that is not known there may be many.
    """
    steps = steps_to(view, leaf)
    if not steps:
        return 0
    encoding = steps[-1]
    place = {"RaggedBincount": 2, "SparseBincount": 3}.get(view.op(encoding), 1)
    most = range_of(view, view.inputs(encoding)[place]).high
    return MAX_CLASSES + 1 if most is None else most


def _match_ids(
    view: GraphView, encoding: str, reduction: str, *, is_flat: bool = False
) -> EncodedIds | NoMatch:
    """Explains the ids of an encoding, and of the op that reduces it."""
    if view.op(encoding) in ("RaggedBincount", "SparseBincount"):
        return NoMatch("the ids that are counted are ragged or sparse", encoding)
    inputs, is_hot = view.inputs(encoding), view.op(encoding) == "OneHot"
    values = view.resolve(inputs[0])
    shape, dtype = view.shape(inputs[0]), view.type_attr(encoding, "TI" if is_hot else "Tidx")
    if shape is None or dtype not in _CODE_TYPES:
        return NoMatch("the shape of encoded ids is not known", encoding)
    classes = range_of(view, inputs[1])
    is_number = view.shape(inputs[1]) in (None, ())
    if not is_number or classes.low is None or classes.low != classes.high or classes.low < 1:
        return NoMatch("how many classes ids have is not known", encoding)
    if not is_flat and len(shape) not in ((2,) if reduction or not is_hot else (1, 2)):
        return NoMatch("the encoded ids are no matrix", encoding)
    width = 1 if is_flat or len(shape) == 1 else shape[-1] or None
    ids = EncodedIds(values, dtype, width, len(shape) == 1, classes.low, is_flat=is_flat)
    if is_hot:
        if not _is_number(view, inputs[2], 1) or not _is_number(view, inputs[3], 0):
            return NoMatch("ids are not encoded as ones and zeros", encoding)
        if reduction == "Max" and width is None:
            return NoMatch("there may be rows without ids, whose largest is no number", encoding)
        axis = view.int_attr(encoding, "axis")
        if axis not in (-1, len(shape)):
            return NoMatch("ids are not one-hot along the last axis", encoding)
        return replace(ids, is_distinct=reduction == "Max" and width != 1)
    weights = view.shape(inputs[2])
    if reduction or weights is None or 0 not in weights:
        return NoMatch("the counted ids have weights, or are not counted by rows", encoding)
    is_distinct = view.flag_attr(encoding, "binary_output") and width != 1
    return replace(ids, is_distinct=is_distinct, refuses=encoding)


def _is_number(view: GraphView, tensor: Tensor, number: int) -> bool:
    value = view.constant(tensor)
    return value is not None and value.ndim == 0 and bool(value == number)


def _has_columns(view: GraphView, reshape: str, ids: EncodedIds) -> bool:
    """Whether a Reshape or Squeeze makes as many columns as ids are encoded by, for each row."""
    given = view.resolve(view.inputs(reshape)[0])
    if view.op(reshape) == "Squeeze":
        return view.shape(Tensor(reshape)) in ((None, ids.columns), (1, ids.columns))
    math = ShapeMath(view)
    target, shape = math.vector(view.inputs(reshape)[1]), math.shape_of(given)
    if target is None or len(target) != 2:
        return False
    rows, columns = target
    measured = (Dim(given, 0), Dim(ids.values, 0), *(() if shape is None else shape[:1]))
    is_same = rows in measured and rows != -1
    return (columns == ids.columns and (rows == -1 or is_same)) or (columns == -1 and is_same)


def _is_over_ids(view: GraphView, reduction: str) -> bool:
    """Whether a Sum or Max is over the ids of a row, of [B, K, classes]."""
    axis = view.constant(view.inputs(reduction)[1])
    is_middle = axis is not None and axis.size == 1 and axis.reshape(()) in (1, -2)
    return is_middle and not view.flag_attr(reduction, "keep_dims")
