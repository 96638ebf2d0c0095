"""Sizes of what lookups give: numbers, or known only when the graph runs."""

from __future__ import annotations

from collections.abc import Sequence

from fusion.passes.analysis.crossed_sizes import as_measured
from fusion.passes.analysis.symbolic_shapes import Dim, ShapeMath, Vector
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Value
from fusion.passes.graph.view import GraphView
from fusion.passes.plan.plan import Measured, SizesOf
from fusion.passes.recognise.lookup_match import LookupMatch
from fusion.passes.recognise.spec import DenseIds
from fusion.passes.recognise.stock.rows import Shaped


def result_shape(lookup: LookupMatch) -> Vector | None:
    """Returns the symbolic shape of a lookup's result; None if not even its rank is known."""
    if isinstance(lookup.parts.whole, Shaped):
        return lookup.parts.whole.shape
    spec = lookup.full_spec
    width = spec.table.shape[1]
    return (Dim(spec.output, 0), Dim(spec.output, 1) if width is None else width)


def known_shape(
    view: GraphView, lookup: LookupMatch
) -> tuple[tuple[int, ...], Measured | None] | None:
    """Returns the shape of a result of any rank, as in `Place`; None if it cannot be inferred."""
    shape = result_shape(lookup)
    if shape is None or 0 in shape:
        return None
    shape = as_measured(shape)
    sizes = numbers(shape)
    if sizes.count(-1) <= 1:
        return sizes, None
    lead = shape[: len(sizes) - sizes[::-1].index(-1)]
    measured = measured_by(view, [lead], [lookup])
    return None if measured is None else (sizes, measured)


def numbers(shape: Vector) -> tuple[int, ...]:
    """Returns sizes with -1 for each that is not known."""
    return tuple(size if isinstance(size, int) else -1 for size in shape)


def measured_by(
    view: GraphView, leads: Sequence[Vector], lookups: Sequence[LookupMatch]
) -> Measured | None:
    """Returns the sources of the first sizes of results of lookups; None if one has no source."""
    sources: list[SizesOf | tuple[int, ...]] = []
    for lead, lookup in zip(leads, lookups, strict=True):
        sizes, source, ids = numbers(lead), source_of(view, lead), lookup.full_spec.ids
        if -1 not in sizes:
            sources.append(sizes)
        elif (
            isinstance(ids, DenseIds)
            and source is not None
            and _innermost(view, source, lookup) == ids.values
        ):
            sources.append(SizesOf(ids.values, ids.dtype))
        else:
            return None
    return Measured(len(leads[0]), tuple(sources))


def source_of(view: GraphView, lead: Vector) -> Tensor | None:
    """Returns the tensor whose first sizes these are, if there is one."""
    tensors = {size.tensor for size in lead if isinstance(size, Dim)}
    if len(tensors) != 1:
        return None
    (tensor,) = tensors
    shape = ShapeMath().shape_of(Value(view, tensor))
    return tensor if shape is not None and shape[: len(lead)] == lead else None


def _innermost(view: GraphView, ids: Tensor, lookup: LookupMatch) -> Tensor:
    """Passes what a lookup takes out that gives ids of the same shape: casts, and wraps."""
    gone = {*lookup.front()}
    while ids.node in gone and view.op(ids.node) in ("Cast", "Select", "SelectV2"):
        inputs = view.inputs(ids.node)
        ids = view.resolve(inputs[0 if view.op(ids.node) == "Cast" else 2])
    return ids
