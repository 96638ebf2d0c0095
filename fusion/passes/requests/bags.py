"""Lookups of which the rows follow from their ids as a whole."""

from __future__ import annotations

from collections.abc import Iterator

from fusion.passes.analysis.rows.facts import Kind
from fusion.passes.analysis.rows.walk import Bags
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.lookup import outermost, recognise_all
from fusion.passes.recognise.spec import DenseIds, IdsSpec, RaggedIds, RowIds, SparseIds


def bags_of(view: GraphView) -> list[Bags]:
    """Returns the lookups of a graph that combine the rows of bags of ids."""
    matches = outermost(match for match in recognise_all(view) if match.spec is not None)
    found = []
    for match in matches:
        spec = match.full_spec
        ids = [*_read(view, spec.ids)]
        dim = spec.table.shape[1]
        if ids and dim is not None:
            shape = view.shape(spec.output) or (None, dim)
            found.append(Bags(spec.output, tuple(ids), spec.weights, shape))
    return found


def _read(view: GraphView, ids: IdsSpec) -> Iterator[tuple[Tensor, Kind]]:
    """Yields the tensors that bags of ids are read from, with what they have to have.

    None of other ids.
    """
    if isinstance(ids, SparseIds) and ids.flattened:
        # Rows of a matrix keep their numbers.
        is_reshaped = view.op(ids.indices.node) == "SparseReshape"
        source = view.inputs(ids.indices.node)[0] if is_reshaped else ids.indices
        if (view.shape(source) or (None,))[-1] == 2:
            yield from ((ids.values, Kind.ENTRIES), (source, Kind.INDICES))
    elif isinstance(ids, SparseIds):
        yield from ((ids.values, Kind.ENTRIES), (ids.indices, Kind.INDICES))
        if ids.dense_shape is not None:
            yield ids.dense_shape, Kind.SPARSE_SHAPE
    elif isinstance(ids, RaggedIds):
        yield from ((ids.values, Kind.ENTRIES), (ids.row_splits, Kind.SPLITS))
    elif isinstance(ids, RowIds):
        yield from ((ids.values, Kind.ENTRIES), (ids.rows, Kind.ROW_NUMBERS))
        if ids.count is not None:
            yield ids.count, Kind.SIZES
    elif isinstance(ids, DenseIds) and not ids.is_each:
        yield ids.values, Kind.ROWS
        if ids.lengths is not None:
            yield ids.lengths, Kind.ROWS
