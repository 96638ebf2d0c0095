"""Ids that are spread over columns: one-hots, multi-hots and counts, and what becomes of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tensorflow.core.framework import types_pb2

from fusion.passes.analysis.symbolic_shapes import Dim, ShapeMath, reshaped
from fusion.passes.analysis.value_ranges import range_of
from fusion.passes.graph.values import Node, Value
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import NoMatch
from fusion.passes.recognise.spec import EncodedIds
from fusion.schema.attributes import ID_TYPES, TABLE_TYPES

ENCODINGS = frozenset({"DenseBincount", "OneHot", "RaggedBincount", "SparseBincount"})
"""What spreads ids over columns."""

MAX_CLASSES = 64
"""Products of no more columns of encoded ids cost about as little as a bag, and are left alone."""

LONGEST, _MAX_DEPTH = 1 << 10, 6
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


def steps_to(leaf: Value, *, joined: bool = True) -> tuple[Node, ...]:
    """Returns the nodes from a tensor down to the op that encodes ids; () if there is none.

    Args:
        leaf: the tensor.
        joined: whether the first of a concat that is encoded counts.
    """
    source, steps = leaf.producer, list[Node]()
    for _ in range(_MAX_DEPTH):
        op = source.op
        steps.append(source)
        if op in ENCODINGS:
            return tuple(steps)
        if op == "ConcatV2" and joined:
            parts = source.inputs[:-1][:LONGEST]
            paths = (steps_to(part, joined=False) for part in parts)
            further = next(filter(None, paths), ())
            return (*steps, *further) if further else ()
        if op not in _BETWEEN:
            break
        source = source.input(0).producer
    return ()


def match_encoded(leaf: Value) -> Encoded:
    """Explains a tensor as encoded ids, [B, columns]; without ids or failure it is something else.

    From the ids on these are added up over a row, or the largest is taken, and reshaped.
    """
    steps = steps_to(leaf)
    if not steps:
        return Encoded(None, ())
    encoding = steps[-1]
    passed = [leaf, *(step.input(0) for step in steps[:-1])]
    names = (*(step.name for step in steps), *(name for one in passed for name in one.aliases))

    def refused(reason: str, node: Node = encoding) -> Encoded:
        return Encoded(None, (), NoMatch(reason, node.name))

    changing = [step for step in steps[:-1] if not _is_plain(step)]
    has_reduction = bool(changing) and changing[-1].op in ("Max", "Sum")
    reduction = changing.pop() if has_reduction else None
    if reduction is not None and not _is_over_ids(reduction):
        return refused("encoded ids are not added up over those of a row", reduction)
    if len(changing) > 1 or any(step.op not in ("Reshape", "Squeeze") for step in changing):
        return refused("it is not understood what becomes of encoded ids", changing[0])
    is_flat = bool(changing) and not reduction and _has_row_of_each(changing[0], encoding)
    ids = _match_ids(encoding, "" if reduction is None else reduction.op, is_flat=is_flat)
    if isinstance(ids, NoMatch):
        return Encoded(None, (), ids)
    if is_flat:
        return Encoded(ids, names)
    is_cube = encoding.op == "OneHot" and not reduction and not ids.is_vector
    if is_cube and ids.width is not None and ids.width > 1:
        # [B, K, classes] become [B, K * classes].
        ids = replace(ids, stride=ids.classes)
    is_matrix = _has_columns(changing[0], ids) if changing else not is_cube
    if not is_matrix or (is_cube and ids.width is None):
        return refused("encoded ids are not known to be side by side")
    return Encoded(ids, names)


def _is_plain(node: Node) -> bool:
    """Whether a node casts to a type that has all the numbers of an encoding, or moves nothing."""
    if node.op == "Transpose":
        order = ShapeMath().vector(node.input(1))
        return order is not None and order == (*range(len(order)),)
    return node.op == "Cast" and node.type_attr("DstT") in TABLE_TYPES | ID_TYPES


def _has_row_of_each(reshape: Node, encoding: Node) -> bool:
    """Whether a Reshape makes a matrix with a row for each one-hot, whatever shape ids have."""
    if reshape.op != "Reshape" or encoding.op != "OneHot":
        return False
    source, sizes = reshape.inputs
    math = ShapeMath()
    hot = math.shape_of(encoding.output())
    if hot is None or len(hot) < 3:
        return False
    math.known[source.resolved.tensor] = hot
    target = math.vector(sizes)
    shape = None if target is None else reshaped(hot, target)
    return shape is not None and len(shape) == 2 and shape[1] == hot[-1]


def sizes_of(view: GraphView, part: Encoded) -> Iterator[Sizes]:
    """Yields what measures one-hots of which each is a row of a product."""
    ids = part.ids
    if ids is not None and ids.is_flat:
        nodes = [Node(view, name) for name in part.nodes]
        hot = next(node for node in nodes if node.op == "OneHot")
        for node in nodes:
            if node.output().producer == hot:
                for user, _, _ in node.uses:
                    if user.op == "Shape":
                        yield Sizes(user.name, ids)


def classes_of(leaf: Value) -> int:
    """Returns by how many classes a tensor encodes ids, 0 if it encodes none.

    Where that is not known there may be many.
    """
    steps = steps_to(leaf)
    if not steps:
        return 0
    encoding = steps[-1]
    place = {"RaggedBincount": 2, "SparseBincount": 3}.get(encoding.op, 1)
    max_classes = range_of(encoding.input(place)).high
    return MAX_CLASSES + 1 if max_classes is None else max_classes


def _match_ids(encoding: Node, reduction: str, *, is_flat: bool = False) -> EncodedIds | NoMatch:
    """Explains the ids of an encoding, and of the op that reduces it."""

    def refused(reason: str) -> NoMatch:
        return NoMatch(reason, encoding.name)

    if encoding.op in ("RaggedBincount", "SparseBincount"):
        return refused("the ids that are counted are ragged or sparse")
    values, depth, *others = encoding.inputs
    is_hot = encoding.op == "OneHot"
    shape, dtype = values.shape, encoding.type_attr("TI" if is_hot else "Tidx")
    if shape is None or dtype not in _CODE_TYPES:
        return refused("the shape of encoded ids is not known")
    classes = range_of(depth)
    is_number = depth.shape in (None, ())
    if not is_number or classes.low is None or classes.low != classes.high or classes.low < 1:
        return refused("how many classes ids have is not known")
    if not is_flat and len(shape) not in ((2,) if reduction or not is_hot else (1, 2)):
        return refused("the encoded ids are no matrix")
    width = 1 if is_flat or len(shape) == 1 else shape[-1] or None
    is_vector = len(shape) == 1
    source = values.resolved.tensor
    ids = EncodedIds(source, dtype, width, is_vector, classes.low, is_flat=is_flat)
    if is_hot:
        if others[0].scalar != 1 or others[1].scalar != 0:
            return refused("ids are not encoded as ones and zeros")
        if reduction == "Max" and width is None:
            return refused("there may be rows without ids, whose largest is no number")
        if encoding.int_attr("axis") not in (-1, len(shape)):
            return refused("ids are not one-hot along the last axis")
        return replace(ids, is_distinct=reduction == "Max" and width != 1)
    weights = others[0].shape
    if reduction or weights is None or 0 not in weights:
        return refused("the counted ids have weights, or are not counted by rows")
    is_distinct = encoding.flag_attr("binary_output") and width != 1
    return replace(ids, is_distinct=is_distinct, refuses=encoding.name)


def _has_columns(reshape: Node, ids: EncodedIds) -> bool:
    """Whether a Reshape or Squeeze makes as many columns as ids are encoded by, for each row."""
    if reshape.op == "Squeeze":
        return reshape.output().shape in ((None, ids.columns), (1, ids.columns))
    source, sizes = reshape.inputs
    math = ShapeMath()
    target, shape = math.vector(sizes), math.shape_of(source)
    if target is None or len(target) != 2:
        return False
    rows, columns = target
    first = () if shape is None else shape[:1]
    measured = (Dim(source.resolved.tensor, 0), Dim(ids.values, 0), *first)
    is_same = rows in measured and rows != -1
    return (columns == ids.columns and (rows == -1 or is_same)) or (columns == -1 and is_same)


def _is_over_ids(reduction: Node) -> bool:
    """Whether a Sum or Max is over the ids of a row, of [B, K, classes]."""
    return reduction.input(1).item in (1, -2) and not reduction.flag_attr("keep_dims")
