"""`fuse_function`: a concrete function in, one with the same signature and fused lookups out.

The function and all functions that it calls are exported as a library of FunctionDefs, the pass
rewrites the library, and what changed is imported again, callees first. Whatever the pass does not
touch is shared with the original: variables, captured tensors, unchanged callees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import function_pb2, graph_pb2
from tensorflow.core.function.polymorphism.function_type import (
    FunctionType,
    from_structured_signature,
)

from fusion.arguments import wrong_type
from fusion.ops.registered import DEVICES
from fusion.passes.analysis.variables import Variable, VariableSearch
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.graph.calls import called
from fusion.passes.report.report import FusionReport, Networks, NetworkSource, RewrittenGraph
from fusion.running.imported import imported_function
from fusion.runtime.tensorflow.private import (
    AtomicFunction,
    ConcreteFunction,
    ControlStatusCtx,
    FuncGraph,
    Status,
    WrappedFunction,
    _WrapperFunction,
    custom_gradient,
    nest,
    ops,
)

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
# Derived again, from the rebuilt graph, when a function is made of it.
_DERIVED_ATTRIBUTES = ("_input_shapes", "_construction_context")


def fuse_function(concrete_function: ConcreteFunction) -> ConcreteFunction:
    """Returns a concrete function that computes the same with fused embedding lookups.

    It is called like the original, with the same structured arguments and results, and uses the
    same variables, tables and captured tensors; like every concrete function it does not keep
    variables alive. Gradients flow as through the original, which stays as it is, and
    `tf.saved_model.save` takes the result as a signature.

    `fusion.explain(concrete_function, under="rewrite")` of the original shows what was fused, and
    why the rest was not. A function in which nothing can be fused, also one compiled by XLA, is
    returned itself.

    Args:
        concrete_function: what `tf.function(...).get_concrete_function(...)` returns, or a
            signature of a loaded SavedModel.

    Raises:
        TypeError: not a concrete function.
    """
    if not isinstance(concrete_function, ConcreteFunction):
        expected = "a concrete function"
        raise wrong_type("fuse_function", "concrete_function", expected, concrete_function)
    # Called while a function is traced: AutoGraph would translate all of it.
    with ControlStatusCtx(Status.DISABLED):
        library = Library.of(concrete_function)
        result = _pass_over(library, concrete_function).apply(library.graph_def)
        fused = {column.function for column in result.report.columns if column.fused}
        fused |= {one.function for one in result.report.front if one.is_replaced}
        if not fused:
            return concrete_function
        return _Rebuild(library, result.graph_def, fused).function(concrete_function)


def explain_function(concrete_function: ConcreteFunction) -> FusionReport:
    """Returns what `fuse_function` would fuse, and why it would leave the rest.

    Columns of the function itself have `function` "", others the name of the called function.
    """
    library = Library.of(concrete_function)
    lookups = _pass_over(library, concrete_function)
    report = library.report_of_top(lookups.explain(library.graph_def))
    return replace(report, networks=NetworkSource(partial(_networks, concrete_function)))


def _pass_over(library: Library, concrete_function: ConcreteFunction) -> FuseLookups:
    search = VariableSearch(library.graph_def, library.captured_variables(concrete_function))
    return FuseLookups(variables=search.known, devices=DEVICES)


def _networks(concrete_function: ConcreteFunction, report: FusionReport) -> Networks:
    from fusion.passes.report.networks import networks

    library = Library.of(concrete_function)
    graph = _pass_over(library, concrete_function).rewritten(library.graph_def)
    before, after = (
        {"" if name == library.top else name: view for name, view in views.items() if name}
        for views in (graph.before, graph.after)
    )
    now = library.report_of_top(graph.report)
    return networks(report, [RewrittenGraph(now, before, after)])


@dataclass(frozen=True)
class Library:
    """A function and all that it calls, at any depth.

    Attributes:
        graph: a graph that all of them are registered with.
        graph_def: its export: an empty main graph and the functions, with static shapes.
        top: the name of the function itself.
    """

    graph: tf.Graph
    graph_def: graph_pb2.GraphDef
    top: str

    @staticmethod
    def of(function: ConcreteFunction, *, add_shapes: bool = True) -> Library:
        """Returns that of a function, by default with all static shapes that Python knows."""
        graph = tf.Graph()
        function.add_to_graph(graph)
        return Library(graph, graph.as_graph_def(add_shapes=add_shapes), function.name.decode())

    def report_of_top(self, report: FusionReport) -> FusionReport:
        """Returns a report that takes the function itself for the main graph."""
        columns = (
            replace(column, function="") if column.function == self.top else column
            for column in report.columns
        )
        front = (
            replace(one, function="") if one.function == self.top else one for one in report.front
        )
        return replace(
            report,
            columns=tuple(sorted(columns, key=lambda c: c.function != "")),
            front=tuple(sorted(front, key=lambda one: one.function != "")),
        )

    def captured_variables(self, function: ConcreteFunction) -> Iterator[tuple[str, str, Variable]]:
        """Yields (function, argument, variable) for every variable that the function captured."""
        variables = {id(v.handle): v for v in function.variables if hasattr(v, "handle")}
        captured = list(function.captured_inputs)
        definition = next(
            f for f in self.graph_def.library.function if f.signature.name == self.top
        )
        arguments = definition.signature.input_arg[-len(captured) :] if captured else ()
        for argument, handle in zip(arguments, captured, strict=True):
            variable = variables.get(id(handle))
            if variable is not None and variable.shape.rank is not None:
                name = variable.name.removesuffix(":0")
                yield self.top, argument.name, Variable(name, tuple(variable.shape.as_list()))


class _Rebuild:
    """Makes functions of a rewritten library, callees before callers."""

    def __init__(self, library: Library, rewritten: graph_pb2.GraphDef, fused: set[str]) -> None:
        self._library = library
        self._definitions = {f.signature.name: f for f in rewritten.library.function}
        self._rebuilt = _to_rebuild(self._definitions, fused)
        self._done: dict[str, ConcreteFunction] = {}

    def function(self, original: ConcreteFunction) -> ConcreteFunction:
        """Returns the counterpart of the library's top function."""
        definition = self._definitions[self._library.top]
        graph = self._graph(definition, original.graph)
        _adopt_captures(graph, original.graph)
        attributes = _attributes(definition)
        if isinstance(original, WrappedFunction):
            result = WrappedFunction(
                graph, original._variable_holder, attributes, original._signature
            )
        else:
            function_type = original.inference_fn.function_type
            result = ConcreteFunction.from_func_graph(graph, function_type, attributes)
        result._function_type = original._function_type
        result._arg_keywords = original._arg_keywords
        result._num_positional_args = original._num_positional_args
        result._captured_inputs = list(original._captured_inputs)
        # Loaded functions pick, of distributed variables, the replica's.
        return _WrapperFunction(result) if isinstance(original, _WrapperFunction) else result

    def _callee(self, name: str) -> ConcreteFunction:
        if name not in self._done:
            definition = self._definitions[name]
            original, function_type = self._original(name)
            graph = self._graph(definition, original)
            self._done[name] = ConcreteFunction.from_func_graph(
                graph, function_type, _attributes(definition)
            )
            self._done[name].add_to_graph(self._library.graph)
        return self._done[name]

    def _original(self, name: str) -> tuple[FuncGraph, FunctionType]:
        function = self._library.graph._get_function(name)
        if isinstance(function, AtomicFunction):
            return function.graph, function.function_type
        # In a model of TensorFlow 1 a function is its definition and nothing else.
        with self._library.graph.as_default():
            graph = imported_function(function.cached_definition)
        signature = graph.structured_input_signature, graph.structured_outputs
        return graph, from_structured_signature(*signature, graph.function_captures.capture_types)

    def _graph(self, definition: function_pb2.FunctionDef, original: FuncGraph) -> FuncGraph:
        """Returns the body of a rewritten function, calling the rebuilt functions."""
        renamed = function_pb2.FunctionDef()
        renamed.CopyFrom(definition)
        renamed.signature.name = original.name
        names = {name for node in definition.node_def for name in called(node)}
        rebuilt = {name: self._callee(name) for name in sorted(names & self._rebuilt)}
        _rename_calls(renamed, {name: new.name.decode() for name, new in rebuilt.items()})
        rebind_gradients(renamed, original)
        with self._library.graph.as_default():
            graph = imported_function(renamed, original.structured_input_signature)
        graph.structured_outputs = _like(original.structured_outputs, original, graph)
        for name in sorted(names & self._definitions.keys()):
            function = rebuilt.get(name) or self._library.graph._get_function(name)
            graph._add_function_recursive(getattr(function, "inference_fn", function))
        _restore_gradients(graph, original, {f.name.decode(): f for f in rebuilt.values()})
        graph.variables = original.variables
        if not original.saveable:
            graph.mark_as_unsaveable(original.saving_errors)
        return graph


def _to_rebuild(
    definitions: Mapping[str, function_pb2.FunctionDef], fused: set[str]
) -> frozenset[str]:
    """Returns `fused`, what calls them at any depth, and all bodies of control flow in these.

    TensorFlow derives the names of a body's gradients from the body's own: two conditionals may
    not share one.
    """
    callers: dict[str, set[str]] = {name: set() for name in definitions}
    bodies: dict[str, set[str]] = {name: set() for name in definitions}
    for name, definition in definitions.items():
        for node in definition.node_def:
            callees = definitions.keys() & set(called(node))
            for callee in callees:
                callers[callee].add(name)
            if node.op not in _CALLS:
                bodies[name] |= callees
    calling = _closure(fused, callers)
    return _closure(calling, bodies)


def _closure(start: Iterable[str], edges: Mapping[str, set[str]]) -> frozenset[str]:
    closure: set[str] = set()
    stack = list(start)
    while stack:
        name = stack.pop()
        if name not in closure:
            closure.add(name)
            stack.extend(edges[name])
    return frozenset(closure)


def _rename_calls(definition: function_pb2.FunctionDef, names: Mapping[str, str]) -> None:
    for node in definition.node_def:
        node.op = names.get(node.op, node.op)
        for value in node.attr.values():
            for function in (value.func, *value.list.func):
                if function.name in names:
                    function.name = names[function.name]


def _attributes(definition: function_pb2.FunctionDef) -> dict[str, Any]:
    return {k: v for k, v in definition.attr.items() if k not in _DERIVED_ATTRIBUTES}


def _like(structure: Any, original: FuncGraph, graph: FuncGraph) -> Any:
    """Returns `structure` with the original's outputs replaced by the new graph's."""
    # Gradients append outputs and inputs to the graphs that they were taken of.
    new = {id(old): new for old, new in zip(original.outputs, graph.outputs, strict=False)}
    flat = nest.flatten(structure, expand_composites=True)
    if not any(id(value) in new for value in flat):
        return structure
    return nest.pack_sequence_as(
        structure, [new.get(id(value), value) for value in flat], expand_composites=True
    )


def _restore_gradients(
    graph: FuncGraph, original: FuncGraph, rebuilt: Mapping[str, ConcreteFunction]
) -> None:
    """Gives calls the gradients of their functions, which no protocol buffer holds.

    Args:
        rebuilt: the rebuilt functions by their new names.
    """
    for op in graph.get_operations():
        if op.type not in _CALLS:
            continue
        callee = rebuilt.get(op.get_attr("f").name)
        if callee is not None:
            op._gradient_function = callee._get_gradient_function()
        else:
            op._gradient_function = original.get_operation_by_name(op.name)._gradient_function


def _adopt_captures(graph: FuncGraph, original: FuncGraph) -> None:
    """Binds what the original captured to the arguments of the same index."""
    new = {id(old): new for old, new in zip(original.inputs, graph.inputs, strict=False)}
    captures, own = original.function_captures, graph.function_captures
    for key, internal in captures.by_val_internal.items():
        if id(internal) in new:
            external, kind = captures.by_val_external[key], captures.by_val_tracetype[key]
            own.add_or_replace(key, external, new[id(internal)], kind)
    for key, nested in captures.by_ref_internal.items():
        internal = nest.map_structure(lambda t: new[id(t)], nested, expand_composites=True)
        external, kind = captures.by_ref_external[key], captures.by_ref_tracetype[key]
        own.add_or_replace(key, external, internal, kind, is_by_ref=True)


_ATTRIBUTE = "_gradient_op_type"


# Calls have gradients of their own; the attribute is an old way to say so.
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def rebind_gradients(definition: function_pb2.FunctionDef, original: FuncGraph) -> None:
    """Gives ops with gradients of their own, in place, gradients that work in any graph.

    Args:
        definition: a function with ops of `original`, under the same names.
        original: the graph that the gradients were written for; it is kept alive.
    """
    for node in definition.node_def:
        if _ATTRIBUTE in node.attr and node.op not in _CALLS:
            gradient = ops.gradient_registry.lookup(node.attr[_ATTRIBUTE].s.decode())
            name = custom_gradient.generate_name()
            ops.RegisterGradient(name)(_rebound(gradient, original))
            node.attr[_ATTRIBUTE].s = name.encode()


def _rebound(gradient: Callable[..., Any], original: FuncGraph) -> Callable[..., Any]:
    def rebound(op: tf.Operation, *output_gradients: tf.Tensor | None) -> Any:
        specs = [g if g is None else tf.TensorSpec(g.shape, g.dtype) for g in output_gradients]
        old_op = original.get_operation_by_name(op.name)
        with original.as_default():
            traced = tf.function(lambda *grads: gradient(old_op, *grads), autograph=False)
            function = traced.get_concrete_function(*specs)
        captured = [_counterpart(tensor, original, op) for tensor in function.captured_inputs]
        gradients = [g for g in output_gradients if g is not None]
        return function._call_flat(gradients, captured)

    return rebound


def _counterpart(tensor: tf.Tensor, original: FuncGraph, op: tf.Operation) -> tf.Tensor:
    """Returns what `tensor` of the original graph is in the graph of `op`."""
    if getattr(tensor, "graph", None) is not original:
        return tensor
    try:
        return op.graph.get_tensor_by_name(tensor.name)
    except KeyError as error:
        raise LookupError(
            f"the gradient of {op.name} needs {tensor.name}, which is inside a fused lookup; take "
            "the gradient of the function that was fused"
        ) from error
