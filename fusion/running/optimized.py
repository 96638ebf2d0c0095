"""What `enable` makes of a graph or a function: TensorFlow optimizes it, and does not run it.

A Session that prepares a call places the graph, lowers its functions and optimizes it, in the same
steps as those that come before a tf.function first runs. Of the graph fusion only sees what they
leave: shared and folded nodes, inlined functions, no more than what is fetched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import function_pb2, graph_pb2, node_def_pb2
from tensorflow.core.protobuf import config_pb2

from fusion.ops.registered import DEVICES
from fusion.passes.analysis.variables import Variable, VariableSearch
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.graph.calls import called
from fusion.passes.graph.signatures import OpSignatures
from fusion.passes.graph.tensor import ARG_OP
from fusion.passes.graph.view import GraphView
from fusion.passes.lookup_pass import COMPILED, is_compiled
from fusion.passes.report.columns import named_columns
from fusion.passes.report.front import FrontReport
from fusion.passes.report.report import ColumnReport, FusionReport
from fusion.printable import printable
from fusion.running.functions import Library, explain_function
from fusion.running.graphs import checked_outputs, final_nodes
from fusion.running.grappler import observed
from fusion.running.imported import imported_graph
from fusion.runtime.tensorflow.private import ConcreteFunction, context, handle_data_util

_PLACEHOLDERS = frozenset({"Placeholder", "PlaceholderV2"})
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_LOWERED, _NOT_INLINED = "_lower_using_switch_merge", "_noinline"
#: Facts about arguments, which TensorFlow takes out of a graph that is imported.
_FACTS = ("_output_shapes", "_handle_dtypes", "_handle_shapes")


def explain_optimized_graph(
    graph_def: graph_pb2.GraphDef, outputs: Iterable[str] | None = None
) -> FusionReport:
    """Returns what `enable` would fuse in a graph that is run.

    Args:
        graph_def: the graph.
        outputs: what is fetched, see `fuse_graph`. By default all final nodes that do something, as
            steps of training, at once; and of the columns that these do not have what all others
            do, which may be results, or ends that gradients leave.

    Raises:
        ValueError: TensorFlow cannot run the graph here; no such output.
    """
    nodes = {node.name: node.op for node in graph_def.node}
    if outputs is not None:
        fetched = [sorted(checked_outputs("explain", graph_def, outputs))]
    else:
        signatures = OpSignatures(graph_def.library.function)
        steps, results = list[str](), list[str]()
        for name in sorted(final_nodes(graph_def)):
            acts = nodes[name] == "NoOp" or signatures.is_stateful(nodes[name])
            (steps if acts else results).append(name)
        fetched = [steps, results]
    feeds = [f"{name}:0" for name, op in nodes.items() if op in _PLACEHOLDERS]
    runs = []
    for names in fetched:
        targets = [name for name in names if nodes[name] not in _PLACEHOLDERS]
        if targets:
            runs.append(_Run(graph_def, config_pb2.CallableOptions(target=targets, feed=feeds)))
    is_seen = not any(map(_is_compiled, graph_def.library.function))
    others = None if is_seen else FuseLookups(devices=DEVICES).explain(graph_def)
    return _explained(graph_def, runs, others)


def explain_optimized_function(function: ConcreteFunction) -> FusionReport | None:
    """Returns what `enable` would fuse in a function; None of one that XLA compiles whole.

    Raises:
        ValueError: TensorFlow cannot run the function here.
    """
    library = Library.of(function, add_shapes=False)
    functions = library.graph_def.library.function
    definition = next(f for f in functions if f.signature.name == library.top)
    if _is_compiled(definition):
        return None
    run = _function_run(definition, library.graph_def.library)
    arguments = [node for node in run.graph_def.node if node.op == ARG_OP]
    for node, tensor in zip(arguments, function.graph.inputs, strict=True):
        _declare_handle(node, tensor)
    run.config.graph_options.MergeFrom(context.context().config.graph_options)
    captured = library.captured_variables(function)
    variables = {argument: variable for _, argument, variable in captured}
    others = explain_function(function) if any(map(_is_compiled, functions)) else None
    return _explained(run.graph_def, [replace(run, variables=variables, function="")], others)


def _declare_handle(argument: node_def_pb2.NodeDef, tensor: tf.Tensor) -> None:
    """Adds what TensorFlow knows of a variable that a function is called with."""
    known = handle_data_util.get_resource_handle_data(tensor)
    if known is not None and known.is_set and len(known.shape_and_type) == 1:
        (variable,) = known.shape_and_type
        argument.attr["_handle_dtypes"].list.type.append(variable.dtype)
        argument.attr["_handle_shapes"].list.shape.add().CopyFrom(variable.shape)


_Numbered = tuple[int, ColumnReport]


@dataclass(frozen=True)
class _Run:
    """A graph that is prepared to run.

    Attributes:
        graph_def: a graph, or a function as one.
        options: what is fed and fetched.
        config: of the session.
        variables: those that arguments stand for, by argument.
        awaited: fetched nodes whose values are not read.
        function: the name of a function that runs on its own.
    """

    graph_def: graph_pb2.GraphDef
    options: config_pb2.CallableOptions
    config: config_pb2.ConfigProto = field(default_factory=config_pb2.ConfigProto)
    variables: Mapping[str, Variable] = field(default_factory=dict)
    awaited: frozenset[str] = frozenset()
    function: str = ""

    def reports(self) -> list[FusionReport]:
        """Returns what is said of the graph each time that TensorFlow optimizes it."""
        reports: list[FusionReport] = []

        def observe(seen: graph_pb2.GraphDef, report: FusionReport) -> None:
            bound = (("", argument, variable) for argument, variable in self.variables.items())
            reports.append(named_columns(report, VariableSearch(seen, bound)))

        # As tf.function does; sessions do so only if configured.
        self.config.allow_soft_placement = True
        try:
            graph = _imported(self.graph_def)
        except (ValueError, tf.errors.OpError) as error:
            raise _cannot_run(error) from error
        session = tf.compat.v1.Session(graph=graph, config=self.config)
        with observed(observe, self.awaited), session:
            try:
                session._make_callable_from_options(self.options)
            except tf.errors.OpError as error:
                raise _cannot_run(error) from error
        return [self._as_function(report) for report in reports]

    def _as_function(self, report: FusionReport) -> FusionReport:
        """Returns a report in which the graph has the name of the function that it is."""
        columns = (replace(one, function=one.function or self.function) for one in report.columns)
        front = (replace(one, function=one.function or self.function) for one in report.front)
        return replace(report, columns=tuple(columns), front=tuple(front))


def _function_run(
    definition: function_pb2.FunctionDef, library: function_pb2.FunctionDefLibrary
) -> _Run:
    """Returns how a function runs on its own: as a graph with arguments and returned values."""
    view = GraphView.of_function(definition, OpSignatures(library.function))
    graph_def = graph_pb2.GraphDef(library=library)
    graph_def.versions.producer = tf.version.GRAPH_DEF_VERSION
    number = 0
    for name, original in view.nodes.items():
        node = graph_def.node.add()
        node.CopyFrom(original)
        node.input[:] = [*map(str, view.inputs(name)), *(f"^{b}" for b in view.controls(name))]
        if node.op == ARG_OP:
            node.attr["index"].i, number = number, number + 1
    awaited = frozenset(definition.control_ret.values())
    targets = sorted(awaited)
    for index, output in enumerate(definition.signature.output_arg):
        node = graph_def.node.add(name=f"{output.name}_RetVal", op="_Retval")
        node.input.append(str(view.tensor(definition.ret[output.name])))
        node.attr["T"].type, node.attr["index"].i = output.type, index
        targets.append(node.name)
    _drop_unknown_colocations(graph_def)
    options = config_pb2.CallableOptions(target=targets)
    config = config_pb2.ConfigProto()
    config.graph_options.optimizer_options.do_function_inlining = True  # as eager contexts do
    return _Run(graph_def, options, config, awaited=awaited, function=definition.signature.name)


def _drop_unknown_colocations(graph_def: graph_pb2.GraphDef) -> None:
    """Lets go of names that arguments had in the program, which only an import minds."""
    names = {f"loc:@{node.name}".encode() for node in graph_def.node}
    for node in graph_def.node:
        if "_class" in node.attr:
            groups = node.attr["_class"].list.s
            groups[:] = [group for group in groups if group in names]


def _imported(graph_def: graph_pb2.GraphDef) -> tf.Graph:
    graph = imported_graph(graph_def)
    for node in graph_def.node:
        if node.op == ARG_OP:
            op: Any = graph.get_operation_by_name(node.name)
            for key in _FACTS:
                if key in node.attr:
                    op._set_attr(key, node.attr[key])
    return graph


def _cannot_run(error: Exception) -> ValueError:
    what = printable(str(error).partition("\n")[0])
    return ValueError(
        f"explain: model cannot be run here, so `enable` does nothing to it ({what}); "
        "under='rewrite' explains it as it is"
    )


def _explained(
    graph_def: graph_pb2.GraphDef, runs: list[_Run], others: FusionReport | None
) -> FusionReport:
    """Returns the report on runs, and on functions that stay functions.

    Of a column that is seen several times that is the form in which it is fused in the end, or else
    what was said of it first.

    Args:
        graph_def: the graph.
        runs: of it.
        others: on the graph as it is, for functions that XLA compiles, which TensorFlow passes to
            no optimizer; None if there are none.
    """
    library = {f.signature.name: f for f in graph_def.library.function}
    apart = (library[name] for name in _functions_apart(graph_def, library))
    runs += [_function_run(function, graph_def.library) for function in apart]
    reports = [report for run in runs for report in run.reports()]
    if others is not None:
        compiled = tuple(filter(is_compiled, others.columns))
        front = tuple(filter(is_compiled, others.front))
        reports.append(FusionReport(compiled, front=front))
    traces = [numbered for report in reports for numbered in _numbered(report.columns)]
    columns: dict[tuple[str, str, str, int], ColumnReport] = {}
    fused = {(column.function, column.op) for _, column in traces if column.fused}
    for number, column in traces:
        if not column.fused and column.fused_before and (column.function, column.anchor) in fused:
            continue  # its fused ops are the pass's own
        key = (column.function, column.anchor, column.name, number)
        if key not in columns or (column.fused and not columns[key].fused):
            columns[key] = column
    count = len(graph_def.node) + sum(len(f.node_def) for f in graph_def.library.function)
    return FusionReport(tuple(columns.values()), count, count, front=_distinct(reports))


def _distinct(reports: Iterable[FusionReport]) -> tuple[FrontReport, ...]:
    """Returns what is said of each op in front of lookups: that it is fused, or what came first."""
    front: dict[tuple[str, str], FrontReport] = {}
    for one in (one for report in reports for one in report.front):
        key = one.function, one.name
        if key not in front or (one.fused and not front[key].fused):
            front[key] = one
    return tuple(front.values())


def _numbered(columns: Iterable[ColumnReport]) -> Iterator[_Numbered]:
    """Yields the columns of a report, each with its number among those of one op and one name."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for column in columns:
        key = (column.function, column.anchor, column.name)
        yield counts[key], column
        counts[key] += 1


def _functions_apart(
    graph_def: graph_pb2.GraphDef, library: Mapping[str, function_pb2.FunctionDef]
) -> list[str]:
    """Returns the functions that TensorFlow runs, at any depth, and optimizes on their own."""
    apart: dict[str, None] = {}
    seen: set[str] = set()
    stack = list(graph_def.node)
    while stack:
        node = stack.pop()
        for name in called(node):
            if name not in library or _is_compiled(library[name]):
                continue
            if not _is_inlined(node, library[name]):
                apart[name] = None
            if name not in seen:
                seen.add(name)
                stack.extend(library[name].node_def)
    return [*apart]


def _is_inlined(node: node_def_pb2.NodeDef, definition: function_pb2.FunctionDef) -> bool:
    """Whether the function that a node calls becomes a part of the graph around it."""
    attributes = definition.attr
    if _NOT_INLINED in attributes and attributes[_NOT_INLINED].b:
        return False
    if node.op in _CALLS or node.op == definition.signature.name:
        return True
    return _LOWERED in node.attr and node.attr[_LOWERED].b


def _is_compiled(definition: function_pb2.FunctionDef) -> bool:
    return COMPILED in definition.attr and definition.attr[COMPILED].b
