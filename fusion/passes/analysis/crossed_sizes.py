"""Sizes of matrices of ids that crosses of matrices make, as HashedCrossing of Keras has them."""

from __future__ import annotations

import math

from fusion.passes.analysis.symbolic_shapes import Dim, Vector
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Value
from fusion.schema.attributes import STOCK_CROSSES


class FilledSize(int):
    """A size that is 0 where there are no rows: a cross without rows has no columns, either.

    What depends on the number of elements alone may take it for the number that it is.

    Attributes:
        dim: the size as one that is not known.
    """

    dim: Dim

    @staticmethod
    def of(number: int, dim: Dim) -> FilledSize:
        """Returns the size that is this number elsewhere."""
        size = FilledSize(number)
        size.dim = dim
        return size


def as_measured(shape: Vector) -> Vector:
    """Returns a shape of which those sizes are not known."""
    return tuple(size.dim if isinstance(size, FilledSize) else size for size in shape)


def filled_width(matrix: Value) -> int | None:
    """Returns how many ids a row of SparseToDense has, of a cross of matrices; None: not known."""
    dense = matrix.producer
    if dense.op != "SparseToDense":
        return None
    cross = dense.input(0).producer
    if cross.op not in STOCK_CROSSES or cross.int_attr("N"):
        return None
    if [one.resolved.tensor for one in dense.inputs[:3]] != [Tensor(cross.name, k) for k in _ORDER]:
        return None
    types = cross.attr("dense_types")
    features = cross.inputs[: 0 if types is None else len(types.list.type)]
    shapes = [feature.shape for feature in features]
    widths = [shape[1] for shape in shapes if shape is not None and len(shape) == 2]
    known = [width for width in widths if width]
    return math.prod(known) if known and len(known) == len(shapes) else None


#: Indices, dense shape and values, as SparseToDense reads them.
_ORDER = (0, 2, 1)
