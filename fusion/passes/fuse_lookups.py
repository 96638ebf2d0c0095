"""The pass: finds stock embedding lookups in a graph and its functions, and fuses them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tensorflow.core.framework import function_pb2, graph_pb2

from fusion.passes.calls import called
from fusion.passes.edit import GraphEdit
from fusion.passes.forward import match_forward
from fusion.passes.graph_view import GraphView
from fusion.passes.match import NoMatch
from fusion.passes.plan import Form, Group, Plan
from fusion.passes.planner import reads_table_well, settle
from fusion.passes.recognise import Recognition, recognise_all
from fusion.passes.recognise_table import Table
from fusion.passes.report import ColumnReport, FusionReport, FusionResult
from fusion.passes.safety import refuse_unsafe
from fusion.passes.signatures import OpSignatures
from fusion.passes.sparse_writers import SparseWriters
from fusion.passes.static_shapes import Shape
from fusion.passes.variables import Variable
from fusion.passes.words import describe

_COMPILED = "_XlaMustCompile"


@dataclass(frozen=True)
class FuseLookups:
    """Replaces stock embedding lookups by fused ops, in the main graph and in library functions.

    The numbers stay the same; whatever is not understood stays as it is. Applying the pass twice
    changes nothing more, and equal graphs give equal results.

    Attributes:
        preserve: names of main-graph nodes that outsiders refer to (fetches, signature outputs,
            initializers); they keep their names and values.
        awaited: names of main-graph nodes that outsiders wait for, without reading a value (a
            function's control outputs). A node of that name stays, and runs after what it stood
            for.
        variables: those whose handles are arguments of library functions, by (function, argument),
            as far as they are known.
        tasks: the processes that know the fused ops, as device names begin with them; None: all. A
            lookup that the graph places elsewhere is left alone.
        device_types: the device types that the fused ops have kernels for. A lookup that the graph
            places on another one is left alone.
    """

    preserve: frozenset[str] = frozenset()
    awaited: frozenset[str] = frozenset()
    variables: Mapping[tuple[str, str], Variable] = field(default_factory=dict)
    tasks: frozenset[str] | None = None
    device_types: frozenset[str] = frozenset({"CPU"})

    def apply(self, graph_def: graph_pb2.GraphDef) -> FusionResult:
        """Returns the rewritten graph and the report; the argument is not changed.

        When nothing is fused, the result holds the argument itself.
        """
        verdicts = list(self._verdicts(graph_def))
        columns = tuple(column for verdict in verdicts for column in verdict.columns)
        edits = {one.function: one.edit for one in verdicts if one.edit is not None}
        result = rewritten(graph_def, edits) if edits else graph_def
        counts = _count_nodes(graph_def), _count_nodes(result)
        return FusionResult(result, FusionReport(columns, *counts))

    def explain(self, graph_def: graph_pb2.GraphDef) -> FusionReport:
        """Returns what `apply` would fuse and why it would leave the rest, changing nothing."""
        columns = tuple(c for verdict in self._verdicts(graph_def) for c in verdict.columns)
        count = _count_nodes(graph_def)
        return FusionReport(columns, count, count)

    def _bodies(self, graph_def: graph_pb2.GraphDef) -> Iterator[tuple[GraphView, str]]:
        """Yields the main graph and each function, with the reason to leave all of it alone."""
        signatures = OpSignatures(graph_def.library.function)
        yield GraphView(graph_def.node, signatures, self.preserve, awaited=self.awaited), ""
        compiled = _compiled_functions(graph_def)
        shapes: defaultdict[str, dict[str, Shape]] = defaultdict(dict)
        for (function, argument), variable in self.variables.items():
            shapes[function][argument] = variable.shape
        for definition in graph_def.library.function:
            name = definition.signature.name
            refusal = "the function is compiled by XLA" if name in compiled else ""
            yield GraphView.of_function(definition, signatures, shapes[name]), refusal

    def _verdicts(self, graph_def: graph_pb2.GraphDef) -> Iterator[_Verdict]:
        bodies = list(self._bodies(graph_def))
        writers = SparseWriters((view for view, _ in bodies), self.variables)
        return (self._verdict(view, refusal, writers) for view, refusal in bodies)

    def _verdict(self, view: GraphView, refusal: str, writers: SparseWriters) -> _Verdict:
        found = [one for one in recognise_all(view) if _can_gain(view, one, writers)]
        refusals = refuse_unsafe(view, found, self.device_types, self.tasks)
        refused, forward = refusals.all, list[Recognition]()
        if refusal:
            refused = {one.anchor: NoMatch(refusal, one.anchor) for one in found} | refused
        else:
            inside = (one for one in found if one.anchor in refusals.inside)
            forward = [one for one in inside if match_forward(view, one) is not None]
        plan, edit = Plan(()), None
        while True:
            lookups = [one for one in found if one.spec and one.anchor not in refused]
            if not lookups and not forward:
                break
            settled = settle(view, lookups, writers, forward)
            if settled is not None:
                plan, edit = settled
                break
            refused |= {} if forward else _refuse_circular(view, lookups)
            forward = []
        groups = {one.anchor: group for group in plan.groups for one in group.lookups}
        # Of lookups that have fused ops already there is nothing to say if they stay as they are.
        told = [one for one in found if one.anchor in groups or not one.is_fused]
        columns = (_column(view, one, refused, groups.get(one.anchor)) for one in told)
        return _Verdict(view.function, tuple(columns), edit)


@dataclass(frozen=True)
class _Verdict:
    """The verdict on every segment reduction of a graph, and the edit that it leads to."""

    function: str
    columns: tuple[ColumnReport, ...]
    edit: GraphEdit | None


def _can_gain(view: GraphView, one: Recognition, writers: SparseWriters) -> bool:
    """Whether there may be better ops for a lookup; those that are fused have one chance left."""
    if not one.is_fused:
        return True
    return one.spec is not None and reads_table_well(view, one, writers)


def _refuse_circular(view: GraphView, lookups: Sequence[Recognition]) -> dict[str, NoMatch]:
    """Returns why those of the lookups stay that wait for something, which leads round in a circle.

    A lookup's emitted ops are fewer than its stock ones, so that one waits for more than it did.
    """
    waiting = [one for one in lookups if one.waits(view)] or lookups
    why = "with other lookups, control dependencies would lead round in a circle"
    return {one.anchor: NoMatch(why, one.anchor) for one in waiting}


def _column(
    view: GraphView, one: Recognition, refused: Mapping[str, NoMatch], group: Group | None
) -> ColumnReport:
    failure = one.failure if one.failure is not None else refused.get(one.anchor)
    is_forward = group is not None and group.form is Form.FORWARD
    return ColumnReport(
        name=one.name,
        function=view.function,
        anchor=one.anchor,
        fused=failure is None or is_forward,
        reason=failure.reason if failure is not None else None,
        node=failure.node if failure is not None else None,
        form=None if group is None else group.form.value,
        op=None if group is None else group.op,
        spec=one.spec,
        explained=tuple(describe(part) for part in one.parts),
        tables=tuple(s.tensor for p in one.parts if isinstance(p, Table) for s in p.shards),
    )


def rewritten(graph_def: graph_pb2.GraphDef, edits: dict[str, GraphEdit]) -> graph_pb2.GraphDef:
    """Returns the graph with the edits by function name ("" is the main graph) applied."""
    result = graph_pb2.GraphDef()
    for described, value in graph_def.ListFields():
        if described.name in ("node", "library"):
            continue
        if described.message_type is not None:
            getattr(result, described.name).CopyFrom(value)
        else:
            setattr(result, described.name, value)
    result.node.extend(edits[""].build() if "" in edits else graph_def.node)
    library = graph_def.library
    if graph_def.HasField("library"):
        result.library.function.extend(
            _rewritten_function(function, edits[function.signature.name])
            if function.signature.name in edits
            else function
            for function in library.function
        )
        result.library.gradient.extend(library.gradient)
        result.library.registered_gradients.extend(library.registered_gradients)
    return result


def _rewritten_function(
    definition: function_pb2.FunctionDef, edit: GraphEdit
) -> function_pb2.FunctionDef:
    nodes = edit.build()
    rewritten = function_pb2.FunctionDef()
    rewritten.CopyFrom(definition)
    del rewritten.node_def[:]
    rewritten.node_def.extend(nodes)
    for key, text in definition.ret.items():
        rewritten.ret[key] = edit.returned(text)
    _rename_control_outputs(rewritten, edit)
    return rewritten


def _rename_control_outputs(definition: function_pb2.FunctionDef, edit: GraphEdit) -> None:
    """Lets control outputs stand for what nodes became; TensorFlow takes each node only once."""
    kept: dict[str, str] = {}
    for output in definition.signature.control_output:
        kept.setdefault(edit.successor(definition.control_ret[output]), output)
    definition.signature.control_output[:] = kept.values()
    definition.control_ret.clear()
    definition.control_ret.update({output: node for node, output in kept.items()})


def _count_nodes(graph_def: graph_pb2.GraphDef) -> int:
    functions = graph_def.library.function
    return len(graph_def.node) + sum(len(function.node_def) for function in functions)


def _compiled_functions(graph_def: graph_pb2.GraphDef) -> set[str]:
    """Returns the functions that XLA compiles: those marked so, and all that they call."""
    functions = {f.signature.name: f for f in graph_def.library.function}
    found: set[str] = set()
    stack = [name for name, f in functions.items() if _COMPILED in f.attr and f.attr[_COMPILED].b]
    bodies = (graph_def.node, *(f.node_def for f in functions.values()))
    for body in bodies:
        for node in body:
            if _COMPILED in node.attr and node.attr[_COMPILED].b:
                stack.extend(called(node))
    while stack:
        name = stack.pop()
        if name in found or name not in functions:
            continue
        found.add(name)
        for node in functions[name].node_def:
            stack.extend(called(node))
    return found
