"""What is said of lookups that have fused ops already, and keep them."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from fusion.passes.analysis.handles import VARIABLE_OPS
from fusion.passes.analysis.variables import SparseWriters
from fusion.passes.graph.fused_columns import grouped_columns, list_attr, only_column
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Value
from fusion.passes.graph.view import GraphView
from fusion.passes.plan.forms import (
    clips_in_op,
    is_bare,
    is_on_cpu,
    is_small,
    needs_cpu,
    shares_table,
)
from fusion.passes.plan.joins import why_alone
from fusion.passes.recognise.fused.fused_op import column_spec
from fusion.passes.recognise.lookup_match import LookupMatch
from fusion.passes.recognise.match import NoMatch
from fusion.passes.recognise.spec import LookupSpec, ShardSpec
from fusion.passes.recognise.stock.encodings import MAX_CLASSES
from fusion.passes.recognise.stock.gathers import NoBag
from fusion.passes.recognise.stock.padded_sums import PaddedSum
from fusion.passes.recognise.stock.products import NoProduct, Product
from fusion.passes.recognise.stock.reduction import GRADIENTS
from fusion.passes.recognise.stock.rows import Rows
from fusion.passes.recognise.stock.table import table_name
from fusion.passes.report.report import ColumnReport
from fusion.schema.names import (
    GROUPED,
    GROUPED_GATHER,
    GROUPED_KEYED,
    GROUPED_POST,
    OP_NAMES,
    POST_V1,
    SINGLE,
    TABLE_STORE_GATHER,
)

_GRADIENTS = GRADIENTS | {name for name in OP_NAMES if name.endswith("Grad")}
_PASSED = frozenset({"Reshape", "Identity", "Cast"})
HAS_GRADIENT = "its gradient is in the graph"


def refuse_fused(
    view: GraphView,
    lookup: LookupMatch,
    refused: Mapping[str, NoMatch],
    writers: SparseWriters,
    bags: Mapping[str, NoBag],
    unread: frozenset[str] = frozenset(),
) -> NoMatch:
    """Returns why a lookup of fused ops around a gather, or of few ops, stays as it is.

    Args:
        view: the graph.
        lookup: the lookup.
        refused: why others cannot be replaced, by anchor.
        writers: of variables.
        bags: why what adds up the rows of a gather is no lookup, by the gather.
        unread: nodes that do not count among those that read its result.
    """
    if lookup.anchor in bags:
        return NoMatch(bags[lookup.anchor].reason, bags[lookup.anchor].node)
    failure = lookup.failure if lookup.failure is not None else refused.get(lookup.anchor)
    node = lookup.anchor if failure is None else failure.node
    if failure is None and is_bare(lookup):
        if shares_table(view, lookup, writers):
            return why_alone(view, lookup, unread)
        return NoMatch(_why_not_one_op(view, lookup, writers), node)
    if isinstance(lookup.failure, NoProduct) or isinstance(lookup.parts.whole, Product):
        why = failure.reason if failure is not None else _why_not_one_op(view, lookup, writers)
        return NoMatch(why, node)
    if has_gradient(view, lookup.nodes() or (lookup.anchor,)):
        why = HAS_GRADIENT
    elif failure is not None:
        why = failure.reason
    else:
        why = _why_not_one_op(view, lookup, writers)
    what = "it is fused already" if is_of_fused_ops(view, lookup) else "it has few ops already"
    return NoMatch(f"{what}, around a gather: {why}", node)


def is_of_fused_ops(view: GraphView, lookup: LookupMatch) -> bool:
    """Whether a lookup, as far as it was understood, has fused ops."""
    return any(view.op(name) in OP_NAMES for name in (lookup.anchor, *lookup.nodes()))


def is_computed_for_its_gradient(view: GraphView, anchor: str) -> bool:
    """Whether the result of a fused op is not read, but gradients read another output.

    Gradients of ops for whole lookups are those of ops around a gather, added for them alone.
    """
    return not view.tensor_uses(Tensor(anchor)) and has_gradient(view, (anchor,))


def is_reported(view: GraphView, lookup: LookupMatch) -> bool:
    """Whether what has few ops already is a lookup: of stock ops alone it only looks like one.

    Nor is a copy of rows for each entry, which v1 ops combine, or a gather of a small matrix that
    is no variable, as programs have them for other ends. Of a sum around a lookup that one is
    reported.
    """
    whole = lookup.parts.whole
    if isinstance(whole, Rows):
        table = whole.spec.table
        return not is_small(table.dtype, table.shape) or _is_variable(view, table.shards[0])
    if isinstance(lookup.failure, NoProduct):
        return lookup.failure.classes > MAX_CLASSES
    if isinstance(whole, PaddedSum):
        return False
    if any(view.op(use.node) == POST_V1 for use in view.uses(lookup.anchor)):
        return False
    if is_computed_for_its_gradient(view, lookup.anchor):
        return False
    return whole is not None or lookup.spec is not None or is_of_fused_ops(view, lookup)


def _is_variable(view: GraphView, shard: ShardSpec) -> bool:
    """Whether a matrix is a variable, or what was read of one."""
    if shard.kind == "resource" or view.read_handle(shard.tensor) is not None:
        return True
    return view.op(view.origin(shard.tensor).node) in VARIABLE_OPS


def _why_not_one_op(view: GraphView, lookup: LookupMatch, writers: SparseWriters) -> str:
    table = lookup.full_spec.table
    if needs_cpu(lookup) and not is_on_cpu(view, lookup.anchor):
        return "sums of rows by dense ops are fused on CPUs alone"
    if table.strategy:
        return "its table is in shards"
    if table.max_norm is not None and not clips_in_op(lookup.full_spec):
        return "its rows are clipped by stock ops"
    if writers.change(view, table.shards[0].tensor):
        return "rows of its table are written in the same program"
    return "its table is elsewhere"


def has_gradient(view: GraphView, names: tuple[str, ...]) -> bool:
    """Whether a gradient reads what is inside a lookup."""
    stack = [use.node for name in names for use in view.uses(name)]
    seen = {*stack}
    while stack:
        user = stack.pop()
        if view.op(user) in _GRADIENTS and view.is_live(user):
            return True
        if view.op(user) in _PASSED:
            stack += [use.node for use in view.uses(user) if use.node not in seen]
            seen.update(stack)
    return False


def in_one_op(view: GraphView, fused: Container[str] = ()) -> Iterator[ColumnReport]:
    """Yields the columns of ops that do all of a lookup, but for those that others `fused` take."""
    for name in view.named(SINGLE):
        if name in fused:
            continue
        spec = column_spec(view, name, only_column(view, name))
        why = NoMatch("it is one fused op already", name)
        yield _before(view, spec.table.name, why, (spec.table.shards[0].tensor,), spec)
    for name in view.named(GROUPED):
        why = NoMatch("it is a part of one fused op already", name)
        for column in grouped_columns(view, name):
            if not column.is_copy:
                spec = column_spec(view, name, column)
                yield _before(view, spec.table.name, why, (column.inputs[0],), spec)
    for name in view.named(GROUPED_KEYED):
        why = NoMatch("it is a part of one fused op already", name)
        for table in _tables_of_keyed(view, name):
            yield _before(view, table_name(Value(view, table), name), why, (table,))
    for name in view.named(TABLE_STORE_GATHER):
        why = NoMatch("its rows come from a table store already", name)
        for table in list_attr(view, name, "tables").s:
            yield _before(view, table.decode(), why)


def _tables_of_keyed(view: GraphView, name: str) -> Iterator[Tensor]:
    """Yields the table of each column of an op that has columns of embedding variables, too."""
    inputs, keyed_count = view.inputs(name), view.int_attr(name, "num_keyed")
    # Behind them are as many initial rows, as many indices, and the steps.
    keyed_tables = iter(inputs[-3 * keyed_count - 1 :])
    keyed, forms = list_attr(view, name, "keyed").b, list_attr(view, name, "forms").s
    for table, is_keyed, form in zip(inputs, keyed, forms, strict=False):
        if form != b"copy":
            yield next(keyed_tables) if is_keyed else table


def trained_columns(view: GraphView) -> Iterator[ColumnReport]:
    """Yields the columns of ops for training."""
    for name in view.named(GROUPED_POST):
        why = NoMatch("it is fused for training already, around a gather", name)
        copied = list_attr(view, name, "copied").b
        for rows, is_copy in zip(view.inputs(name), copied, strict=False):
            if is_copy:
                continue
            source = view.resolve(rows)
            inputs = view.inputs(source.node)
            table = source
            if view.op(source.node) in ("ResourceGather", "GatherV2", "Gather"):
                table = inputs[0]
            elif view.op(source.node) == GROUPED_GATHER:
                table = inputs[source.index]
            yield _before(view, table_name(Value(view, table), name), why, (table,))


def _before(
    view: GraphView,
    name: str,
    why: NoMatch,
    tables: tuple[Tensor, ...] = (),
    spec: LookupSpec | None = None,
) -> ColumnReport:
    """Returns the report on a column that has fused ops already."""
    return ColumnReport(
        name=name,
        function=view.function,
        anchor=why.node,
        fused=False,
        reason=why.reason,
        node=why.node,
        spec=spec,
        tables=tables,
        fused_before=True,
    )
