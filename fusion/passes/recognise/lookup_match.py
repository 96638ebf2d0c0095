"""How far a lookup was explained: what recognisers hand to plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.backward.gradient import Gradient
from fusion.passes.recognise.match import NoMatch, Stage
from fusion.passes.recognise.parts import Parts
from fusion.passes.recognise.spec import LookupSpec


@dataclass(frozen=True)
class LookupMatch:
    """How far a lookup was explained.

    Attributes:
        anchor: the op that it ends with, such as a segment reduction.
        parts: what was explained.
        spec: the whole lookup, if all of it was.
        failure: else the reason and the node.
        name: for people: the table, where it was found.
        control_deps: what each stage waits for by constants and the like, see
            `control_dependencies`.
        gradients: of the gathered rows, where the graph has them; or why one is none.
        has_few_ops: whether it is a fused lookup, or has fused ops around a stock gather, or looks
            up one id per row. Only one op for all of it is better then.
    """

    anchor: str
    parts: Parts
    spec: LookupSpec | None
    failure: NoMatch | None
    name: str
    control_deps: Mapping[Stage, tuple[str, ...]] = field(default_factory=dict)
    gradients: tuple[Gradient | NoMatch, ...] = ()
    has_few_ops: bool = False

    def nodes(self, stage: Stage | None = None) -> tuple[str, ...]:
        """Returns the explained nodes whose values vanish, of one stage or of all."""
        return self._nodes[stage]

    @cached_property
    def _nodes(self) -> dict[Stage | None, tuple[str, ...]]:
        return {
            stage: tuple(n for p in self.parts if stage in (None, p.stage) for n in p.nodes)
            for stage in (None, *Stage)
        }

    def control_inputs(self, view: GraphView) -> frozenset[str]:
        """Returns all that the lookup waits for, by its own control edges and by its helpers'."""
        if not view.has_controls:
            return frozenset()
        own = {*self.nodes(), *self.front()}
        direct = {before for name in own for before in view.controls(name)} - {*self.nodes()}
        return frozenset(direct).union(*self.control_deps.values())

    @property
    def is_row_empty(self) -> Tensor | None:
        """Which rows were filled, a value that others may use; None if none are.

        Ops for whole lookups do not output it.
        """
        fill = self.parts.fill
        return None if self.has_few_ops or fill is None else fill.is_row_empty.tensor

    @property
    def full_spec(self) -> LookupSpec:
        """The spec of a lookup that was explained to the end; others are not planned."""
        assert self.spec is not None, "only fully recognised lookups are planned"
        return self.spec

    @property
    def backward(self) -> tuple[Gradient, ...]:
        """The gradients that were understood."""
        return tuple(gradient for gradient in self.gradients if isinstance(gradient, Gradient))

    @property
    def unique(self) -> str:
        """The node that finds the distinct ids; "" if there is none."""
        table = self.parts.table
        return "" if table is None or table.unique is None else table.unique.name

    @property
    def rows(self) -> Tensor:
        """The matrix whose rows are reduced: gathered ones of distinct ids, or the table."""
        assert self.parts.reduction is not None, "only lookups with a reduction have these rows"
        return self.parts.reduction.rows.tensor

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """The matrices or handles of the table's shards, where it was found."""
        if self.parts.table is not None:
            return tuple(shard.tensor.tensor for shard in self.parts.table.shards)
        return () if self.spec is None else tuple(s.tensor for s in self.spec.table.shards)

    def front(self) -> tuple[str, ...]:
        """Returns the explained nodes that only compute the lookup's inputs."""
        return tuple(n for p in self.parts for n in p.front)
