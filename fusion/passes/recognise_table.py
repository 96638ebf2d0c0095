"""The table side of a lookup: which matrix the ids index, and how its rows are read."""

from __future__ import annotations

from dataclasses import dataclass

from fusion.passes.graph_view import ARG_OP, GraphView, Shape, Tensor
from fusion.passes.match import Match, NoMatch, Stage
from fusion.passes.recognise_ids import Fill
from fusion.passes.recognise_reduction import Reduction
from fusion.passes.row_gather import is_row_gather

_STITCHES = frozenset({"ParallelDynamicStitch", "DynamicStitch"})
_CLIPPED = frozenset({"RealDiv", "Div", "DivNoNan", "Mul", "Select", "SelectV2"})


@dataclass(frozen=True, kw_only=True)
class Table(Match):
    """A single table.

    Attributes:
        tensor: the resource handle or the matrix.
        is_resource: which of the two.
        gather: the node that reads the rows; "" when the reduction reads the matrix itself.
        unique: the Unique node in front of the gather; "" in the fast form.
        shape: static [rows, D], or None.
        name: for people.
    """

    tensor: Tensor
    is_resource: bool
    gather: str
    unique: str
    shape: Shape | None
    name: str


def match_table(view: GraphView, reduction: Reduction, fill: Fill) -> Table | NoMatch:
    """Explains the reduced rows as `table[unique ids]` or as the table itself."""
    positions = view.resolve(reduction.positions)
    found = (
        _match_fast(view, reduction)
        if positions == fill.ids
        else _match_classic(view, reduction, fill, positions)
    )
    if isinstance(found, NoMatch):
        return found
    if found.shape is not None and len(found.shape) != 2:
        return NoMatch(f"the table has {len(found.shape)} dimensions, not 2", found.tensor.node)
    return found


def _match_fast(view: GraphView, reduction: Reduction) -> Table:
    return Table(
        stage=Stage.ROWS,
        nodes=view.aliases(reduction.positions),
        tensor=reduction.rows,
        is_resource=False,
        gather="",
        unique="",
        shape=view.shape(reduction.rows),
        name=_table_name(view, reduction.rows, reduction),
    )


def _match_classic(
    view: GraphView, reduction: Reduction, fill: Fill, positions: Tensor
) -> Table | NoMatch:
    if view.op(positions.node) != "Unique" or positions.index != 1:
        return NoMatch("the rows are not selected by the filled ids", positions.node)
    unique = positions.node
    ids = view.inputs(unique)[0]
    if view.resolve(ids) != fill.ids:
        return NoMatch("the unique ids are not those of the filled rows", unique)
    rows = view.resolve(reduction.rows)
    op = view.op(rows.node)
    is_resource = op == "ResourceGather"
    if not is_resource and not is_row_gather(view, rows.node):
        return _refuse_rows(view, rows)
    if is_resource and view.int_attr(rows.node, "batch_dims"):
        return NoMatch("the gather has batch dimensions", rows.node)
    table, keys = view.inputs(rows.node)[:2]
    if view.resolve(keys) != Tensor(unique, 0):
        return NoMatch("the gathered ids are not the unique ids of this lookup", rows.node)
    passed = (*view.aliases(reduction.rows), *view.aliases(keys), *view.aliases(ids))
    return Table(
        stage=Stage.ROWS,
        nodes=(rows.node, unique, *view.aliases(reduction.positions), *passed),
        tensor=table,
        is_resource=is_resource,
        gather=rows.node,
        unique=unique,
        shape=_table_shape(view, table, rows, is_resource),
        name=_table_name(view, table, reduction),
    )


def _table_shape(view: GraphView, table: Tensor, rows: Tensor, is_resource: bool) -> Shape | None:
    known = view.variable_shape(table) if is_resource else view.shape(table)
    if known is None and (gathered := view.shape(rows)) is not None:
        return (None, *gathered[1:])
    return known


def _refuse_rows(view: GraphView, rows: Tensor) -> NoMatch:
    op = view.op(rows.node)
    if op == "Reshape" and view.op(view.resolve(view.inputs(rows.node)[0]).node) in _STITCHES:
        op = "DynamicStitch"
    if op in _STITCHES:
        return NoMatch("the table is partitioned", rows.node)
    if op in _CLIPPED:
        return NoMatch("the rows are changed before they are reduced, e.g. by max_norm", rows.node)
    return NoMatch("the rows do not come from a gather", rows.node)


def _table_name(view: GraphView, table: Tensor, reduction: Reduction) -> str:
    """Returns the variable's name where it can be seen, else the scope of the lookup.

    A function does not know what its caller passes in; there the scope tells people more than the
    argument does.
    """
    source = view.resolve(table).node
    if view.op(source) == "ReadVariableOp":
        source = view.resolve(view.inputs(source)[0]).node
    if view.op(source) in (ARG_OP, "Placeholder"):
        return reduction.output.node.removesuffix("/embedding_lookup_sparse")
    if view.op(source) == "VarHandleOp":
        shared = view.attr(source, "shared_name")
        return shared.s.decode() if shared is not None and shared.s else source
    return source
