"""Crosses of features whose ids a fused lookup reads become one op.

What the lookup needs is given as it takes least: ids of crosses of matrices are a matrix, others
have row splits, if lookups alone read which row ids are of; else they have indices, as in stock.
"""

from __future__ import annotations

from collections.abc import Iterator

from fusion.passes.analysis.results import is_needed_with, results_of
from fusion.passes.emit.crossing import emit_crosses
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.reach import reached
from fusion.passes.graph.tensor import Tensor, Use
from fusion.passes.graph.values import Node, Usage, named
from fusion.passes.graph.view import GraphView
from fusion.passes.parse_to_splits import (
    DENSE_SHAPES,
    ENTRY_ROWS,
    IDS,
    column_of,
    is_read,
    set_form,
    weighs,
)
from fusion.passes.plan.safety import IN_LOOP, refuse_device
from fusion.passes.recognise.crossing import CROSSES, CrossSpec, match_cross
from fusion.passes.recognise.match import NoMatch
from fusion.passes.report.front import CrossReport
from fusion.schema.names import GROUPED_CROSS, ID_READERS

#: Outputs of a stock cross, and the inputs of SparseToDense that read them.
_INDICES, _IDS, _SHAPE = range(3)
_TO_DENSE = {_INDICES: 0, _IDS: 2, _SHAPE: 1}
#: Between crosses and lookups.
_PASSED = frozenset({"Cast", "ExpandDims", "Reshape", "SparseToDense", "Squeeze"})
_MAX_PASSED = 8


def group_crosses(
    edit: GraphEdit, refusal: str, tasks: frozenset[str] | None
) -> Iterator[CrossReport]:
    """Has one op make the crosses of a fused lookup, which waits for all; yields reports.

    Args:
        edit: of the graph.
        refusal: why all of it has to stay as it is; "" if it need not.
        tasks: the processes that know the fused op; None: all.
    """
    view, taken = edit.view, set[str]()
    for node in named(view, GROUPED_CROSS):
        count = node.int_attr("num_crosses")
        served = view.is_served(node.name)
        yield CrossReport(node.name, view.function, count, fused_before=True, served=served)
    if CROSSES.isdisjoint(view.ops):
        return
    refusal = refusal or (IN_LOOP if view.has_loops else "")
    for lookup in () if refusal else named(view, *ID_READERS):
        specs = [spec for spec in _crosses(lookup, tasks) if spec.node.name not in taken]
        specs = _independent(view, specs)
        if specs:
            taken |= {spec.node.name for spec in specs}
            name = emit_crosses(
                edit, f"{lookup.name}/crosses", specs, [_form(view, spec) for spec in specs]
            )
            _read_crosses(edit, name, specs)
            served = view.is_served(lookup.name)
            yield CrossReport(name, view.function, len(specs), served=served)
    for node in named(view, *CROSSES):
        if node.name not in taken and view.is_served(node.name):
            why = _refuse(node, tasks, refusal)
            yield CrossReport(node.name, view.function, 1, reason=why.reason, node=why.node)


def _refuse(node: Node, tasks: frozenset[str] | None, refusal: str) -> NoMatch:
    """Returns why a cross stays as it is."""
    if refusal:
        return NoMatch(refusal, node.name)
    spec = _match(node, tasks)
    if isinstance(spec, NoMatch):
        return spec
    reason = (
        "no fused lookup reads its ids, or another cross comes first, or another result needs them"
    )
    return NoMatch(reason, node.name)


def _match(node: Node, tasks: frozenset[str] | None) -> CrossSpec | NoMatch:
    """Returns a cross that another op can make."""
    if node.is_preserved:
        return NoMatch("its ids are fetched", node.name)
    if node.controls or node.view.control_uses(node.name):
        return NoMatch("there is a control dependency", node.name)
    device = refuse_device(node.view, node.name, tasks)
    return match_cross(node) if device is None else device


def _crosses(lookup: Node, tasks: frozenset[str] | None) -> Iterator[CrossSpec]:
    """Yields the crosses of a lookup's ids that another op can make, each once."""
    view, names = lookup.view, dict[str, None]()
    for value in lookup.inputs:
        node = value.producer
        for _ in range(_MAX_PASSED):
            if node.op not in _PASSED:
                break
            node = node.input(_TO_DENSE[_IDS] if node.op == "SparseToDense" else 0).producer
        if node.op in CROSSES:
            names[node.name] = None
    results = results_of(view, lookup.name)
    for name in names:
        spec = _match(Node(view, name), tasks)
        if isinstance(spec, CrossSpec) and is_needed_with(view, name, lookup.name, results):
            yield spec


def _independent(view: GraphView, specs: list[CrossSpec]) -> list[CrossSpec]:
    """Leaves out crosses that others are computed from."""
    starts = (value.node for spec in specs for one in spec.features for value in one.inputs)
    before = reached([*starts], view.before)
    return [spec for spec in specs if spec.node.name not in before]


def _form(view: GraphView, spec: CrossSpec) -> str:
    """Returns the form that the results of a cross may have."""
    uses = [use for use in spec.node.uses if not _is_to_dense(use, spec)]
    rows = [use for use in uses if use.tensor.index != _IDS]
    columns = {_column(view, use) for use in rows}
    # Else a column has the indices of one cross and the shape of another.
    are_pairs = len(rows) == 2 * len(columns)
    if not are_pairs or not all(_is_row_read(view, use) for use in rows):
        return "indices"
    ids = [use for use in uses if use.tensor.index == _IDS]
    are_ids = all(_is_id_read(view, use) for use in ids)
    if spec.is_regular and are_ids and {_column(view, use) for use in ids} == columns:
        return "matrix"
    return "row_splits" if len(uses) == len([*spec.node.uses]) else "indices"


def _column(view: GraphView, use: Usage) -> tuple[str, int]:
    """Returns a lookup that reads a tensor, and its column."""
    return use.node.name, column_of(view, Use(use.node.name, use.position, use.tensor))


def _is_row_read(view: GraphView, use: Usage) -> bool:
    """Whether a lookup reads indices or a shape as those of its column's entries."""
    which = ENTRY_ROWS if use.tensor.index == _INDICES else DENSE_SHAPES
    return is_read(view, Use(use.node.name, use.position, use.tensor), which)


def _is_id_read(view: GraphView, use: Usage) -> bool:
    """Whether a lookup without weights reads ids as such."""
    plain = Use(use.node.name, use.position, use.tensor)
    return is_read(view, plain, IDS) and not weighs(view, plain)


def _is_to_dense(use: Usage, spec: CrossSpec) -> bool:
    """Whether a SparseToDense makes a matrix of a cross, all of whose rows are whole."""
    node = use.node
    if node.op != "SparseToDense" or not spec.is_regular or use.position < 0:
        return False
    if node.is_preserved or node.controls or node.view.control_uses(node.name):
        return False
    inputs = [value.tensor for value in node.inputs]
    return all(inputs[at] == Tensor(spec.node.name, index) for index, at in _TO_DENSE.items())


def _read_crosses(edit: GraphEdit, name: str, specs: list[CrossSpec]) -> None:
    """Lets all who read crosses read the op in their place, and lookups what it gives."""
    view, count = edit.view, len(specs)
    forms = edit.added[name].attr["forms"].list.s
    for index, spec in enumerate(specs):
        old, form = spec.node.name, forms[index].decode()
        numbers = {_IDS: index, _INDICES: count + index, _SHAPE: 2 * count + index}
        for output, number in numbers.items():
            edit.replace(Tensor(old, output), Tensor(name, number))
        edit.remove([old], name)
        for use in [*spec.node.uses] if form != "indices" else ():
            if use.node.op == "SparseToDense":
                edit.replace(Tensor(use.node.name, 0), Tensor(name, index))
                edit.remove([use.node.name], name)
            elif use.tensor.index == _INDICES:
                lookup, column = _column(view, use)
                set_form(edit, lookup, column, "dense" if form == "matrix" else form)
