"""The shape that a matrix of rows gets where it takes the place of something else."""

from __future__ import annotations

import numpy as np
from tensorflow.core.framework import types_pb2

from fusion.passes.emit.node_builder import NodeBuilder, set_attrs
from fusion.passes.graph.tensor import Tensor
from fusion.passes.plan.plan import Measured, SizesOf

_INT32 = types_pb2.DT_INT32


def shape_tensor(build: NodeBuilder, shape: tuple[int, ...], measured: Measured | None) -> Tensor:
    """Returns the vector of sizes, which is an error if lookups differ in those that are measured.

    Args:
        build: where nodes go.
        shape: the sizes, -1 for those that are not known.
        measured: the first of them, if more than one is not known.
    """
    if measured is None:
        return build.constant("shape", np.array(shape, np.int32))
    vectors = [_sizes(build, source, measured.count) for source in measured.sources]
    vectors = list(dict.fromkeys(vectors))
    sizes = vectors[0] if len(vectors) == 1 else _same(build, vectors)
    rest = build.constant("rest", np.array(shape[measured.count :], np.int32))
    axis = build.constant("axis", np.array(0, np.int32))
    types = {"T": _INT32, "Tidx": _INT32}
    return build.shared("shape", "ConcatV2", (sizes, rest, axis), types, {"N": 2})


def _sizes(build: NodeBuilder, source: SizesOf | tuple[int, ...], count: int) -> Tensor:
    """Returns the first sizes of ids as a vector, or numbers as one."""
    if not isinstance(source, SizesOf):
        return build.constant("sizes", np.array(source, np.int32))
    types = {"T": source.dtype, "out_type": _INT32}
    shape = build.shared("sizes", "Shape", (source.tensor,), types)
    known = build.edit.view.shape(source.tensor)
    assert known is not None, "sizes are read from tensors of known rank only"
    if len(known) == count:
        return shape
    begin = build.constant("begin", np.zeros(1, np.int32))
    size = build.constant("size", np.array([count], np.int32))
    return build.shared("first", "Slice", (shape, begin, size), {"T": _INT32, "Index": _INT32})


def _same(build: NodeBuilder, vectors: list[Tensor]) -> Tensor:
    """Returns the first of vectors of sizes, which has to be read from ops that compare all.

    A ConcatOffset takes shapes of what is joined along an axis: other sizes have to be the same.
    The first of its results is zero.
    """
    sizes = vectors[0]
    for axis in (0, 1):
        node = build.node("same", "ConcatOffset")
        build.inputs(node, build.constant("axis", np.array(axis, np.int32)), *vectors)
        set_attrs(node, N=len(vectors))  # and no shape_type: TensorFlow before 2.14 has none
        zeros = Tensor(build.add(node))
        sizes = build.shared("checked", "AddV2", (sizes, zeros), {"T": _INT32})
    return sizes
