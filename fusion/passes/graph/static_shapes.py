"""Static shapes of tensors, inferred from the ops that make them.

Only the ops that lookups and their inputs are made of are known, and those of the layers whose
results often stand beside them; any other has no known shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy.typing as npt
from tensorflow.core.framework import attr_value_pb2, node_def_pb2

from fusion.passes.graph.tensor import ALIAS_OPS, BRANCH_OPS, VALUE_READS, Shape, Tensor, dims

_LIKE_INPUT = frozenset(
    {
        "Cast",
        "OnesLike",
        "ZerosLike",
        "Bucketize",
        "LogicalNot",
        "StringToHashBucketFast",
        "AsString",
    }
    | {"BiasAdd", "Elu", "LeakyRelu", "Log1p", "Relu", "Relu6", "Rsqrt", "Selu", "Sigmoid"}
    | {"Softmax", "Softplus", "Tanh"}
    | {"Abs", "Ceil", "Cos", "Exp", "Floor", "IsFinite", "IsNan", "Log", "Neg", "Reciprocal"}
    | {"Sign", "Sin", "Sqrt", "Square", "_UnaryOpsComposition"}
)
#: Ranks of the outputs of ops whose results always have them.
_OUTPUT_RANKS = {
    "SparseFillEmptyRows": (2, 1, 1, 1),
    "RaggedFillEmptyRows": (1, 1, 1, 1),
    "Unique": (1, 1),
    "Range": (1,),
    "Rank": (0,),
    "Size": (0,),
}
_SHAPED_OPS = frozenset({"Placeholder", "PlaceholderV2", "PlaceholderWithDefault"})


class _View(Protocol):
    """What the rules ask of a graph, see `GraphView`."""

    def op(self, name: str) -> str: ...

    def inputs(self, name: str) -> tuple[Tensor, ...]: ...

    def attr(self, name: str, key: str) -> attr_value_pb2.AttrValue | None: ...

    def int_attr(self, name: str, key: str) -> int: ...

    def flag_attr(self, name: str, key: str) -> bool: ...

    def shape_attr(self, name: str) -> Shape | None: ...

    def constant(self, tensor: Tensor) -> npt.NDArray[Any] | None: ...

    def shape(self, tensor: Tensor) -> Shape | None: ...

    def resolve(self, tensor: Tensor) -> Tensor: ...

    def variable_shape(self, handle: Tensor) -> Shape | None: ...


def structural_shape(view: _View, node: node_def_pb2.NodeDef, index: int) -> Shape | None:
    """Returns the shape of output `index` as far as it follows from the node and its inputs."""
    inputs = view.inputs(node.name)
    if node.op in _SHAPED_OPS:
        sizes = view.shape_attr(node.name)
        # Old producers wrote an unknown shape as a scalar shape.
        return sizes if sizes or node.op == "PlaceholderWithDefault" else None
    if node.op == "EnsureShape":
        return view.shape_attr(node.name)
    if node.op == "Const":
        return dims(node.attr["value"].tensor.tensor_shape)
    if node.op in ALIAS_OPS or node.op in BRANCH_OPS or node.op in _LIKE_INPUT:
        return view.shape(inputs[0])
    if node.op in _OUTPUT_RANKS:
        ranks = _OUTPUT_RANKS[node.op]
        return (None,) * ranks[index] if index < len(ranks) else None
    if node.op in ("VariableV2", "Variable"):
        return view.shape_attr(node.name)
    if node.op in VALUE_READS:
        return view.variable_shape(inputs[index])
    rule = _SHAPE_RULES.get(node.op)
    return rule(view, node.name, inputs, index) if rule is not None else None


def _reshaped(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    """The shape of a SparseReshape's outputs."""
    if view.op(inputs[2].node) == "Pack":
        length: int | None = len(view.inputs(inputs[2].node))
    else:
        target = view.shape(inputs[2])
        length = target[0] if target else None
    return (length,) if index == 1 else (None, length)


def _measured(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    """The shape of a measured shape, a vector also where the rank is not known."""
    of = view.shape(inputs[index])
    return (None if of is None else len(of),)


def _packed(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    if view.int_attr(name, "axis") not in (0, -1):
        return None
    return (len(inputs),) if all(view.shape(t) == () for t in inputs) else None


def _expanded(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    of, axis = view.shape(inputs[0]), view.constant(inputs[1])
    if of is None or axis is None or axis.size != 1:
        return None
    position = int(axis.reshape(()))
    position += len(of) + 1 if position < 0 else 0
    if not 0 <= position <= len(of):
        return None
    return (*of[:position], 1, *of[position:])


def _gathered(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    """The shape of rows gathered along axis 0 by a vector, or of what else is not known."""
    axis = view.constant(inputs[2]) if len(inputs) > 2 else None
    if len(inputs) > 2 and (axis is None or axis.size != 1 or int(axis.reshape(())) != 0):
        return None
    of, picks = view.shape(inputs[0]), view.shape(inputs[1])
    if not of or picks is None or view.int_attr(name, "batch_dims"):
        return None
    return (*picks, *of[1:])


def _looked_up(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    """The shape of rows of a variable."""
    of, picks = view.variable_shape(inputs[0]), view.shape(inputs[1])
    if not of or picks is None or view.int_attr(name, "batch_dims"):
        return None
    return (*picks, *of[1:])


def _found(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    """The shape of the values of keys, each of which has that of the default."""
    keys, value = view.shape(inputs[1]), view.shape(inputs[2])
    return None if keys is None or value is None else (*keys, *value)


def _where(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    """The shape of a Where's result: the coordinates of what is true."""
    of = view.shape(inputs[0])
    return (None, len(of)) if of is not None else None


def _picked(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    """The shape of a GatherNd's result."""
    of, indices = view.shape(inputs[0]), view.shape(inputs[1])
    if of is None or not indices or indices[-1] is None:
        return None
    return (*indices[:-1], *of[indices[-1] :])


def _squeezed(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    of, dims = view.shape(inputs[0]), view.attr(name, "squeeze_dims")
    if of is None or dims is None or not dims.list.i:
        return None
    gone = {dim % len(of) for dim in dims.list.i}
    return tuple(size for index, size in enumerate(of) if index not in gone)


def _resized(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    """The shape of a Reshape's result: its rank, and the sizes that are constants."""
    sizes = _sizes(view, inputs[1], _DEEPEST)
    if sizes is not None:
        return sizes
    target = view.shape(inputs[1])
    rank = target[0] if target is not None and len(target) == 1 else None
    return (None,) * rank if rank is not None else None


#: How far the sizes that a vector holds are followed through ops that are made of each other.
_DEEPEST = 4


def _sizes(view: _View, vector: Tensor, depth: int) -> Shape | None:
    """The sizes that a vector holds, None for those that are no constants or negative."""
    vector = view.resolve(vector)
    known = view.constant(vector)
    if known is not None:
        return tuple(int(n) if n >= 0 else None for n in known) if known.ndim == 1 else None
    inputs = view.inputs(vector.node)
    if view.op(vector.node) == "Pack" and view.shape(vector) is not None:
        sizes = [view.constant(size) for size in inputs]
        return tuple(int(n) if n is not None and n >= 0 else None for n in sizes)
    if view.op(vector.node) != "ConcatV2" or not depth:
        return None
    result: Shape = ()
    for part in inputs[:-1]:
        sizes_of_part, shape = _sizes(view, part, depth - 1), view.shape(part)
        if sizes_of_part is None and shape is not None and len(shape) == 1 and shape[0] is not None:
            sizes_of_part = (None,) * shape[0]
        if sizes_of_part is None:
            return None
        result += sizes_of_part
    return result


def _joined(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    """The shape of a ConcatV2 of vectors; of other tensors, the rank."""
    parts = [part for part in map(view.shape, inputs[:-1]) if part is not None]
    if not parts or len(parts) < len(inputs) - 1:
        return None
    ranks = {len(part) for part in parts}
    if ranks != {1}:
        return (None,) * ranks.pop() if len(ranks) == 1 else None
    axis = view.constant(inputs[-1])
    if axis is None or axis.ndim or int(axis) != 0:
        return None
    sizes = [part[0] for part in parts]
    known = [size for size in sizes if size is not None]
    return (sum(known) if len(known) == len(sizes) else None,)


def _strided(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    """The shape of a StridedSlice by constants, without new axes."""
    of, bounds = view.shape(inputs[0]), [view.constant(bound) for bound in inputs[1:]]
    if of is None or any(b is None or b.ndim != 1 or len(b) > len(of) for b in bounds):
        return None
    if view.int_attr(name, "ellipsis_mask") or view.int_attr(name, "new_axis_mask"):
        return None
    masks = [view.int_attr(name, f"{mask}_mask") for mask in ("shrink_axis", "begin", "end")]
    sizes: list[int | None] = []
    limits = zip(*(b for b in bounds if b is not None), strict=True)
    for axis, (begin, end, stride) in enumerate(limits):
        shrinks, from_start, to_end = (bool(mask >> axis & 1) for mask in masks)
        if shrinks:
            continue
        size = of[axis]
        start = None if from_start else int(begin)
        stop = None if to_end else int(end)
        is_whole = start is stop is None and stride == 1
        known = size is not None and stride == 1
        sizes.append(size if is_whole else len(range(size or 0)[start:stop]) if known else None)
    return (*sizes, *of[len(bounds[0]) :])  # type: ignore[arg-type]


def _sliced(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    """The shape of a Slice: its rank, and the sizes that are constants."""
    sizes = _sizes(view, inputs[2], _DEEPEST)
    if sizes is not None:
        return sizes
    length = view.shape(inputs[2]) or view.shape(inputs[1])
    return None if not length or length[0] is None else (None,) * length[0]


def _tiled(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    """The shape of a Tile: its rank."""
    of = view.shape(inputs[0])
    return None if of is None else (None,) * len(of)


def _filled(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    """The shape of a Fill: that of what was measured, or else its rank."""
    if view.op(inputs[0].node) == "Shape":
        return view.shape(view.inputs(inputs[0].node)[0])
    sizes, of = view.constant(inputs[0]), view.shape(inputs[0])
    if sizes is not None and sizes.ndim == 1:
        return tuple(int(size) for size in sizes)
    return (None,) * of[0] if of is not None and len(of) == 1 and of[0] is not None else None


def _summed(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    """The shape of a reduction over axes that are constants."""
    of, axes = view.shape(inputs[0]), view.constant(inputs[1])
    if of is None or axes is None or axes.ndim > 1:
        return None
    numbers = [int(axis) for axis in axes.reshape(-1)]
    if any(not -len(of) <= axis < len(of) for axis in numbers):
        return None
    gone = {axis % len(of) for axis in numbers}
    if view.flag_attr(name, "keep_dims"):
        return tuple(1 if axis in gone else size for axis, size in enumerate(of))
    return tuple(size for axis, size in enumerate(of) if axis not in gone)


def _transposed(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    of, order = view.shape(inputs[0]), view.constant(inputs[1])
    if of is None or order is None or sorted(order.reshape(-1).tolist()) != [*range(len(of))]:
        return None
    return tuple(of[axis] for axis in order.reshape(-1).tolist())


def _reduced(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    """The shape of the product of a vector."""
    of = view.shape(inputs[0])
    return () if of and len(of) == 1 and not view.flag_attr(name, "keep_dims") else None


def _broadcast(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    """The shape of an elementwise op's result, where one operand surely has it; else the rank."""
    shapes = [view.shape(operand) for operand in inputs]
    if any(shape is None for shape in shapes):
        return None
    known = [shape for shape in shapes if shape]
    if not known:
        return ()
    if all(shape == known[0] for shape in known):
        return known[0]
    return (None,) * max(len(shape) for shape in known)


def _chosen(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    """The shape of a Select's result: that of both values, of which either may be known."""
    one, other = (view.shape(value) for value in inputs[1:3])
    if one is None or other is None or len(one) != len(other):
        return one if other is None else other if one is None else None
    return tuple(a if a is not None else b for a, b in zip(one, other, strict=True))


def _multiplied(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    """The shape of a product of matrices."""
    sizes: list[int | None] = []
    for number, factor in enumerate(inputs[:2]):
        flipped = view.flag_attr(name, f"transpose_{'ab'[number]}")
        of = view.shape(factor)
        fits = of is not None and len(of) == 2
        sizes.append(of[number != flipped] if of and fits else None)
    return tuple(sizes)


def _split(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    """The shape of a part of a Split's or SplitV's value."""
    value, axis = (inputs[0], inputs[2]) if len(inputs) == 3 else (inputs[1], inputs[0])
    of, where = view.shape(value), view.constant(axis)
    if of is None or where is None or where.size != 1:
        return None
    cut = int(where.reshape(()))
    if not -len(of) <= cut < len(of):
        return None
    cut %= len(of)
    sizes = view.constant(inputs[1]) if len(inputs) == 3 else None
    part = int(sizes[index]) if sizes is not None and sizes[index] >= 0 else None
    return tuple(part if dim == cut else size for dim, size in enumerate(of))


def _unpacked(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    of, axis = view.shape(inputs[0]), view.int_attr(name, "axis")
    if of is None or not -len(of) <= axis < len(of):
        return None
    return tuple(size for dim, size in enumerate(of) if dim != axis % len(of))


def _declared(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    """The shape that an iterator over a dataset declares for its elements."""
    attr = view.attr(name, "output_shapes")
    if attr is None or index >= len(attr.list.shape) or attr.list.shape[index].unknown_rank:
        return None
    return dims(attr.list.shape[index])


def _parsed(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    """The shape of a feature of a batch of examples, of which the dense ones come last."""
    if view.op(name) == "ParseExampleV2":
        batch = view.shape(inputs[0])
        sparse = view.int_attr(name, "num_sparse")
    else:
        batch, sparse = (None,), view.int_attr(name, "Nsparse")
    if batch is None or len(batch) != 1:
        return None
    if index < 3 * sparse:
        sparse_shapes: tuple[Shape, ...] = ((None, 2), (None,), (2,))
        return sparse_shapes[index // sparse]
    shapes = view.attr(name, "dense_shapes")
    dense = index - 3 * sparse
    if shapes is None or dense >= len(shapes.list.shape) or shapes.list.shape[dense].unknown_rank:
        return None
    return (*batch, *dims(shapes.list.shape[dense]))


def _unwrapped(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    """The shape of the splits of a RaggedTensor that was a variant, not of its values."""
    return (None,) if index < view.int_attr(name, "output_ragged_rank") else None


def _one_hot(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    of, depth, axis = view.shape(inputs[0]), view.constant(inputs[1]), view.int_attr(name, "axis")
    if of is None or not -1 <= axis <= len(of):
        return None
    axis = len(of) if axis < 0 else axis
    is_known = depth is not None and depth.ndim == 0
    return (*of[:axis], int(depth) if is_known else None, *of[axis:])  # type: ignore[arg-type]


def _summed_by_id(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    """The shape of an UnsortedSegmentSum."""
    of, ids, count = view.shape(inputs[0]), view.shape(inputs[1]), view.constant(inputs[2])
    if of is None or ids is None or len(of) < len(ids):
        return None
    is_known = count is not None and count.ndim == 0
    return (int(count) if is_known else None, *of[len(ids) :])  # type: ignore[arg-type]


def _summed_by_bag(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    """The shape of a SparseSegmentSum's result, or of others like it."""
    of = view.shape(inputs[0])
    return (None, *of[1:]) if of else None


def _scattered(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    """The shape that a SparseToDense is given, of which often only the rank is known."""
    sizes, shape = view.constant(inputs[1]), view.shape(inputs[1])
    if sizes is not None and sizes.ndim == 1:
        return tuple(int(size) for size in sizes)
    return None if shape is None or len(shape) != 1 or shape[0] is None else (None,) * shape[0]


def _invariant(view: _View, name: str, inputs: tuple[Tensor, ...], index: int) -> Shape | None:
    """The shape of what a v1 loop hands on as it came in, or of what both branches have."""
    if index:
        return ()
    if not any(view.op(tensor.node) in ("Enter", "NextIteration") for tensor in inputs):
        shapes = {view.shape(tensor) for tensor in inputs}
        return shapes.pop() if len(shapes) == 1 else None
    entered = [tensor for tensor in inputs if view.op(tensor.node) == "Enter"]
    again = [tensor for tensor in inputs if view.op(tensor.node) == "NextIteration"]
    if len(entered) != 1 or len(again) != 1 or len(inputs) != 2:
        return None
    switch = view.resolve(view.inputs(again[0].node)[0])
    if view.op(switch.node) != "Switch" or switch.index != 1:
        return None
    is_same = view.resolve(view.inputs(switch.node)[0]) == Tensor(name)
    return view.shape(entered[0]) if is_same else None


_SHAPE_RULES: dict[str, Callable[[_View, str, tuple[Tensor, ...], int], Shape | None]] = {
    "ConcatV2": _joined,
    "Merge": _invariant,
    "MatMul": _multiplied,
    "_FusedMatMul": _multiplied,
    "_MklNativeMatMul": _multiplied,
    "_MklNativeFusedMatMul": _multiplied,
    "Split": _split,
    "SplitV": _split,
    "Unpack": _unpacked,
    "IteratorGetNext": _declared,
    "IteratorGetNextSync": _declared,
    "OptionalGetValue": _declared,
    "RaggedTensorFromVariant": _unwrapped,
    "ParseExample": _parsed,
    "ParseExampleV2": _parsed,
    "StridedSlice": _strided,
    "OneHot": _one_hot,
    "Slice": _sliced,
    "SparseToDense": _scattered,
    "Prod": _reduced,
    "Tile": _tiled,
    "Fill": _filled,
    "Max": _summed,
    "Mean": _summed,
    "Min": _summed,
    "Sum": _summed,
    "Transpose": _transposed,
    "Any": _summed,
    "All": _summed,
    "UnsortedSegmentSum": _summed_by_id,
    "SparseSegmentMean": _summed_by_bag,
    "SparseSegmentSqrtN": _summed_by_bag,
    "SparseSegmentSum": _summed_by_bag,
    "SparseReshape": _reshaped,
    "Shape": _measured,
    "ShapeN": _measured,
    "Pack": _packed,
    "ExpandDims": _expanded,
    "Gather": _gathered,
    "GatherV2": _gathered,
    "ResourceGather": _looked_up,
    "LookupTableFindV2": _found,
    "Where": _where,
    "GatherNd": _picked,
    "Squeeze": _squeezed,
    "Reshape": _resized,
    "Equal": _broadcast,
    "NotEqual": _broadcast,
    "GreaterEqual": _broadcast,
    "Greater": _broadcast,
    "Less": _broadcast,
    "LessEqual": _broadcast,
    "Maximum": _broadcast,
    "Minimum": _broadcast,
    "LogicalAnd": _broadcast,
    "LogicalOr": _broadcast,
    "Add": _broadcast,
    "AddV2": _broadcast,
    "AddN": _broadcast,
    "Mul": _broadcast,
    "Sub": _broadcast,
    "RealDiv": _broadcast,
    "FloorDiv": _broadcast,
    "Pow": _broadcast,
    "DivNoNan": _broadcast,
    "Select": _chosen,
    "SelectV2": _broadcast,
}
