"""From a segment reduction to a `LookupSpec`: runs the recognisers one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from fusion.passes.graph_view import ARG_OP, GraphView, Tensor
from fusion.passes.match import Match, NoMatch, Stage
from fusion.passes.recognise_ids import Fill, IdSource, match_fill, match_prune, match_source
from fusion.passes.recognise_output import match_mask, match_tail
from fusion.passes.recognise_reduction import Reduction, anchors, match_reduction
from fusion.passes.recognise_table import Table, match_table
from fusion.passes.shapes import Dim, Vector
from fusion.passes.spec import IdsSpec, LookupSpec, TableSpec

_TABLE_OPS = frozenset(
    {ARG_OP, "Placeholder", "VarHandleOp", "ReadVariableOp", "VariableV2", "Variable"}
)


@dataclass(frozen=True)
class Recognition:
    """How far a segment reduction was explained.

    Attributes:
        anchor: the segment reduction.
        parts: what was explained, in the order of explanation.
        spec: the whole lookup, if all of it was.
        failure: else the reason and the place.
        name: for people: the table, where it was found.
    """

    anchor: str
    parts: tuple[Match, ...]
    spec: LookupSpec | None
    failure: NoMatch | None
    name: str

    def nodes(self, stage: Stage | None = None) -> tuple[str, ...]:
        """Returns the explained nodes whose values vanish, of one stage or of all."""
        return tuple(n for p in self.parts if stage in (None, p.stage) for n in p.nodes)

    def front(self) -> tuple[str, ...]:
        """Returns the explained nodes that only compute the lookup's inputs."""
        return tuple(n for p in self.parts for n in p.front)


def recognise_all(view: GraphView) -> tuple[Recognition, ...]:
    """Returns one recognition per segment reduction, in file order."""
    return tuple(recognise(view, anchor) for anchor in anchors(view))


def recognise(view: GraphView, anchor: str) -> Recognition:
    """Explains the lookup around the segment reduction `anchor`, as far as it goes."""
    parts: list[Match] = []

    def stop(failure: NoMatch) -> Recognition:
        table = next((part for part in parts if isinstance(part, Table)), None)
        return Recognition(anchor, tuple(parts), None, failure, table.name if table else anchor)

    reduction = match_reduction(view, anchor)
    if isinstance(reduction, NoMatch):
        return stop(reduction)
    parts.append(reduction)
    fill = match_fill(view, reduction.fill)
    if isinstance(fill, NoMatch):
        return stop(fill)
    parts.append(fill)
    prune = match_prune(view, fill)
    if isinstance(prune, NoMatch):
        return stop(prune)
    parts.append(prune)
    source = match_source(view, fill, prune)
    if isinstance(source, NoMatch):
        return stop(source)
    parts.append(source)
    table = match_table(view, reduction, fill)
    if isinstance(table, NoMatch):
        return stop(table)
    parts.append(table)
    shape = _result_shape(reduction, source, table)
    mask = match_mask(view, reduction.output, fill, shape)
    if isinstance(mask, NoMatch):
        return stop(mask)
    if table.shape is None and not mask.present and not _is_variable(view, table.tensor):
        return stop(NoMatch("the table is not known to be a matrix", table.tensor.node))
    tail = match_tail(view, mask.output, shape)
    parts += [mask, tail]
    default_id = None if mask.present else fill.default
    spec = _spec(view, reduction, fill, source, table, default_id, tail.output)
    return Recognition(anchor, tuple(parts), spec, None, table.name)


def _is_variable(view: GraphView, table: Tensor) -> bool:
    """Whether the table is a variable or passed in from outside, and so taken for a matrix.

    A mask proves that the rows are vectors, because it has to fit them; without one nothing does.
    """
    return view.op(view.resolve(table).node) in _TABLE_OPS


def _result_shape(reduction: Reduction, source: IdSource, table: Table) -> Vector:
    """Returns the symbolic [B, D] of the reduced rows: filled rows make it exactly B."""
    dim = table.shape[1] if table.shape is not None else None
    return (source.batch, Dim(reduction.output, 1) if dim is None else dim)


def _spec(
    view: GraphView,
    reduction: Reduction,
    fill: Fill,
    source: IdSource,
    table: Table,
    default_id: int | None,
    output: Tensor,
) -> LookupSpec:
    rows, dim = table.shape if table.shape is not None else (None, None)
    beside = view.nodes.get(table.gather or table.tensor.node)
    groups = beside.attr["_class"].list.s if beside is not None and "_class" in beside.attr else ()
    return LookupSpec(
        anchor=reduction.output.node,
        ids=IdsSpec(
            source.values, source.indices, source.dense_shape, source.flattened, fill.dtype
        ),
        table=TableSpec(
            kind="resource" if table.is_resource else "tensor",
            tensor=table.tensor,
            dtype=reduction.dtype,
            rows=rows,
            dim=dim,
            gather=table.gather,
            device=beside.device if beside is not None else "",
            colocation=tuple(group.decode() for group in groups),
            name=table.name,
        ),
        prune=True,
        fill=True,
        default_id=default_id,
        combiner=reduction.combiner,
        output=output,
    )
