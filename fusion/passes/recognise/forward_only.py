"""Lookups whose forward alone is understood, and how much of it one op can take over.

Where a gradient, or another op, reads a value inside a lookup, its id side and its gathers stay
as they are. One op can still reduce the gathered rows: it reads the tensors that stock's reduction
reads. What the others need of those in between is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorflow.core.framework import types_pb2

from fusion.passes.graph.tensor import Tensor, Use
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.lookup_match import LookupMatch
from fusion.passes.recognise.match import Stage
from fusion.passes.recognise.stock.reduction import Reduction

_MEASURES = frozenset({"Shape", "ShapeN", "Size", "Rank", "ZerosLike"})
"""Ops that give the same for the result as for stock's sums, of the same shape and dtype."""


@dataclass(frozen=True)
class Forward:
    """The stock tensors that one op reads instead of stock's reduction, and what it leaves there.

    Attributes:
        rows: the gathered rows, clipped if they are.
        positions: int32 [m], for each entry the row of `rows` that it means.
        indices: int64 [m, 2], with the row of the result in column 0.
        weights: [m], of the dtype of the rows, or None.
        dense_shape: int64 [2]; None where no rows are filled.
        is_row_empty: [B], which rows were filled; None where none are.
        gone: the nodes that are not needed any more.
        measured: tensors that are gone and whose shapes others need, with their DataTypes.
        shapes: nodes that measure the rows of the entries, [m, D], which are gone.
    """

    rows: Tensor
    positions: Tensor
    indices: Tensor
    weights: Tensor | None
    dense_shape: Tensor | None
    is_row_empty: Tensor | None
    gone: tuple[str, ...]
    measured: tuple[tuple[Tensor, int], ...]
    shapes: tuple[str, ...]


def match_forward(view: GraphView, lookup: LookupMatch) -> Forward | None:
    """Returns what an op behind the gathers reads; None where none can be, or none gains."""
    if lookup.spec is None or lookup.has_few_ops or not lookup.unique:
        return None
    reduction, entries, fill = lookup.parts.reduction, lookup.parts.entries, lookup.parts.fill
    assert reduction is not None
    assert entries is not None
    positions = reduction.positions.resolved
    if entries.indices is None or reduction.segments_dtype != types_pb2.DT_INT64:
        return None
    if positions.producer.type_attr("out_idx") != types_pb2.DT_INT32:
        return None
    consumers = _Consumers.of(view, lookup, reduction)
    needed = consumers.needed()
    # Of a product that others read, the sum alone costs less than the op.
    summed = reduction.anchor.input(0).producer
    if not {reduction.anchor.name, summed.name}.isdisjoint(needed) or consumers.has_other_outputs():
        return None
    count = None if fill is None else fill.entries.count
    return Forward(
        rows=reduction.rows.tensor,
        positions=positions.tensor,
        indices=entries.indices.tensor,
        weights=None if reduction.weights is None else reduction.weights.tensor,
        dense_shape=None if count is None else count.tensor,
        is_row_empty=None if fill is None else fill.is_row_empty.tensor,
        gone=tuple(name for name in lookup.nodes(Stage.OUTPUT) if name not in needed),
        measured=tuple(consumers.measured(needed)),
        shapes=tuple(consumers.shapes(needed)),
    )


@dataclass(frozen=True)
class _Consumers:
    """What comes behind the gathers of a lookup.

    Attributes:
        nodes: the stock nodes there.
        output: the result.
        results: what has its shape, before it, by DataType.
        entries: the row of each entry, where these are made on the way and their width is known.
    """

    view: GraphView
    nodes: frozenset[str]
    output: Tensor
    results: dict[Tensor, int]
    entries: Tensor | None

    @staticmethod
    def of(view: GraphView, lookup: LookupMatch, reduction: Reduction) -> _Consumers:
        output = lookup.full_spec.output
        mask = lookup.parts.mask
        assert mask is not None
        results = {
            reduction.anchor.output().tensor: reduction.anchor.type_attr("T"),
            reduction.output.tensor: reduction.dtype,
            mask.output.tensor: reduction.dtype,
        }
        results.pop(output, None)
        weighting, width = reduction.weighting, lookup.full_spec.table.shape[1]
        entries = None if weighting is None or width is None else weighting.entries.tensor
        return _Consumers(view, frozenset(lookup.nodes(Stage.OUTPUT)), output, results, entries)

    def needed(self) -> set[str]:
        """Returns the nodes whose values others need."""
        stack = [name for name in self.nodes if name != self.output.node and self._is_needed(name)]
        needed: set[str] = set()
        while stack:
            name = stack.pop()
            if name not in needed:
                needed.add(name)
                stack += [
                    tensor.node
                    for index, tensor in enumerate(self.view.inputs(name))
                    if tensor.node in self.nodes and not self._measures(Use(name, index, tensor))
                ]
        return needed

    def measured(self, needed: set[str]) -> list[tuple[Tensor, int]]:
        """Returns the results whose shapes nodes that stay need."""
        return [
            (tensor, dtype)
            for tensor, dtype in self.results.items()
            if any(use.node in needed or self._stays(use) for use in self.view.tensor_uses(tensor))
        ]

    def shapes(self, needed: set[str]) -> list[str]:
        """Returns the nodes by which those who stay measure the rows of the entries."""
        if self.entries is None or self.entries.node in needed:
            return []
        uses = self.view.tensor_uses(self.entries)
        return [use.node for use in uses if use.node in needed or self._stays(use)]

    def has_other_outputs(self) -> bool:
        """Whether others need another output of the node of the result."""
        return any(use.tensor != self.output for use in self.view.uses(self.output.node))

    def _is_needed(self, name: str) -> bool:
        uses = self.view.uses(name)
        return name in self.view.preserved or any(
            self._stays(use) and not self._measures(use) for use in uses
        )

    def _stays(self, use: Use) -> bool:
        """Whether a use is none of the lookup's."""
        return use.position < 0 or (use.node not in self.nodes and self.view.is_live(use.node))

    def _measures(self, use: Use) -> bool:
        """Whether a use asks for no more than the shape of the result."""
        view, name = self.view, use.node
        if use.position < 0:
            return False
        if use.tensor == self.entries:
            is_free = not view.controls(name) and name not in view.preserved
            return view.op(name) == "Shape" and is_free
        return use.tensor in self.results and view.op(name) in _MEASURES
