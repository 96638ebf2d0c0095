"""The variables behind function arguments, so that reports name tables as the user does.

In a library function a table is an argument with a made-up name. Which variable it is follows from
the calls, starting at the main graph and at the functions whose arguments are known from elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import NamedTuple

from tensorflow.core.framework import graph_pb2, node_def_pb2

from fusion.passes.analysis.handles import VARIABLE_OPS, Handles, Place, shared_name
from fusion.passes.analysis.order import Order
from fusion.passes.graph.calls import callees, first_argument
from fusion.passes.graph.signatures import OpSignatures
from fusion.passes.graph.tensor import VALUE_READS, Shape, Tensor
from fusion.passes.graph.view import GraphView
from fusion.schema.names import GROUPED_GATHER, UPDATE


class Variable(NamedTuple):
    """A variable by its name and static shape, None where unknown."""

    name: str
    shape: Shape


def variables_name(
    view: GraphView, tables: Iterable[Tensor], known: Mapping[tuple[str, str], Variable]
) -> str | None:
    """Returns the name of a table whose shards are arguments, if the variables behind are known."""
    variables = source_variables(view, tables, known)
    names = [variable.name for variable in variables if variable is not None]
    return shards_name(names) if len(names) == len(variables) else None


def source_variables(
    view: GraphView, tables: Iterable[Tensor], known: Mapping[tuple[str, str], Variable]
) -> list[Variable | None]:
    """Returns the variable behind each handle or value that is an argument; None: not known."""
    return [known.get((view.function, _handle(view, tensor).node)) for tensor in tables]


def _handle(view: GraphView, tensor: Tensor) -> Tensor:
    """Returns the handle of a table: through a read, what that reads."""
    if tensor.node in view.nodes:
        tensor = view.origin(tensor)
        if (handle := view.read_handle(tensor)) is not None:
            tensor = view.origin(handle)
    return tensor


def shards_name(variables: Sequence[str]) -> str:
    """Returns the name of a table whose shards are variables of these names."""
    return variables[0] if len(variables) == 1 else variables[0].removesuffix("/part_0")


class VariableSearch:
    """Hands variables down from callers to callees until nothing new is learned.

    Args:
        graph_def: the main graph and its library.
        bound: (function, argument, variable) known from elsewhere.
    """

    def __init__(
        self, graph_def: graph_pb2.GraphDef, bound: Iterable[tuple[str, str, Variable]] = ()
    ) -> None:
        self._functions = {f.signature.name: f for f in graph_def.library.function}
        signatures = OpSignatures(self._functions.values())
        self._views = {
            name: GraphView.of_function(f, signatures) for name, f in self._functions.items()
        }
        self._views[""] = GraphView(graph_def.node, signatures)
        # None: callers disagree.
        self._known: dict[tuple[str, str], Variable | None] = {}
        for function, argument, variable in bound:
            self._learn(function, argument, variable)
        self._follow_calls()

    @property
    def known(self) -> dict[tuple[str, str], Variable]:
        """The variable behind (function, argument), where all callers agree on one."""
        return {key: variable for key, variable in self._known.items() if variable is not None}

    def view(self, function: str) -> GraphView:
        """Returns the view of a function; "" is the main graph."""
        return self._views[function]

    def behind(self, function: str, tensor: Tensor) -> Variable | None:
        """Returns the variable behind a table: through a read, the one of its handle."""
        return self._known.get((function, _handle(self._views[function], tensor).node))

    def _follow_calls(self) -> None:
        """Visits each function again whenever one of its arguments became known."""
        pending = list(self._views)
        while pending:
            caller = pending.pop()
            for node in self._views[caller].nodes.values():
                for callee in callees(node, self._functions):
                    if self._pass_on(caller, node, callee):
                        pending.append(callee)

    def _pass_on(self, caller: str, node: node_def_pb2.NodeDef, callee: str) -> bool:
        view = self._views[caller]
        inputs = view.inputs(node.name)[first_argument(node) :]
        news = False
        for argument, tensor in zip(
            self._functions[callee].signature.input_arg, inputs, strict=False
        ):
            variable = self._variable(caller, view, view.resolve(tensor))
            before = self._known.get((callee, argument.name))
            if variable is not None and not (before and _is_numbered(variable.name, before.name)):
                news |= self._learn(callee, argument.name, variable)
        return news

    def _variable(self, caller: str, view: GraphView, tensor: Tensor) -> Variable | None:
        if (known := self._known.get((caller, tensor.node))) is not None:
            return known
        node = view.nodes.get(tensor.node)
        if caller or node is None or node.op not in VARIABLE_OPS:
            return None
        dims = node.attr["shape"].shape.dim if "shape" in node.attr else ()
        return Variable(node.name, tuple(d.size if d.size >= 0 else None for d in dims))

    def _learn(self, function: str, argument: str, variable: Variable) -> bool:
        """Notes a variable; returns whether this changed what is known."""
        key = (function, argument)
        if key not in self._known:
            self._known[key] = variable
            return True
        before = self._known[key]
        if before is not None and before.name != variable.name:
            self._known[key] = None
        return False


def _is_numbered(name: str, before: str) -> bool:
    """Whether a node is called like a variable and a number: so are those of exports of Keras 3."""
    return re.fullmatch(f"{re.escape(before)}_[0-9]+", name) is not None


_READERS = frozenset(
    {"ResourceGather", "VariableShape", "DisableCopyOnRead", "VarIsInitializedOp"}
    | {GROUPED_GATHER}
    | VALUE_READS
)


def has_other_handles(view: GraphView, source: Tensor) -> bool:
    """Whether there may be another handle of a variable that has one from `source`.

    Arguments of a function are different variables, unless a caller passes one handle twice:
    tf.function makes one argument of a variable, however often it is passed or captured.
    """
    op = view.op(source.node)
    if op not in VARIABLE_OPS:
        return False
    own = shared_name(view, source.node)
    others = (name for name in view.named(op) if name != source.node)
    return any(shared_name(view, name) == own for name in others)


def writers(view: GraphView, source: Tensor) -> list[str]:
    """Returns the nodes that are given the handle from `source` and may change the variable."""
    nodes: list[str] = []
    stack = [source.node]
    while stack:
        # Of all outputs: those of a switch are the same variable.
        for use in view.uses(stack.pop()):
            if use.position < 0:
                continue
            if view.origin(Tensor(use.node)) == source:
                stack.append(use.node)
            elif view.op(use.node) not in _READERS:
                nodes.append(use.node)
    return nodes


def sinkable_reads(view: GraphView, ends: Mapping[str, frozenset[str | Tensor]]) -> frozenset[str]:
    """Returns the reads that give the same value just before the first of their ends is computed.

    That is so if whatever may change the variable waits for one of these: what does can wait for
    the read as well. Through a Merge it has to wait for them whichever input that takes, unless all
    of them are dead then.

    Args:
        view: the graph.
        ends: for each ReadVariableOp a start of an `Order`.
    """
    sources = {read: view.origin(view.inputs(read)[0]) for read in ends}
    order = Order(view, ends.values())
    return frozenset(
        read
        for read, source in sources.items()
        if not has_other_handles(view, source)
        if all(order.is_before(ends[read], writer) for writer in writers(view, source))
    )


def is_accessed_by_rows(view: GraphView, source: Tensor) -> bool:
    """Whether an op of the graph gathers or changes single rows of the variable from `source`.

    From then on TensorFlow copies the variable for each op that reads it whole.
    """
    stack = [source.node]
    while stack:
        for use in view.uses(stack.pop()):
            if use.position >= 0 and view.origin(Tensor(use.node)) == source:
                stack.append(use.node)
            elif _ROW_ACCESS.match(view.op(use.node)):
                return True
    return False


_ROW_ACCESS = re.compile("Resource(Gather|Scatter|SparseApply)|ReadEmbeddingTables")
_WRITER = re.compile(f"(Resource)?(Scatter|SparseApply|StridedSliceAssign)|{UPDATE}")


def writes_rows(view: GraphView, name: str) -> bool:
    """Whether a node changes some rows of a variable, which all reads of it copy from then on."""
    op = view.op(name)
    if op == UPDATE:
        attr = view.attr(name, "sparse")
        return attr is not None and any(attr.list.b)
    return _WRITER.match(op) is not None and view.signatures.is_stateful(op)


class SparseWriters:
    """Follows handles from callers to callees, where they are all one variable.

    Args:
        views: the main graph and its functions.
        variables: those behind arguments of functions, as far as they are known from elsewhere.
    """

    def __init__(
        self, views: Iterable[GraphView], variables: Mapping[tuple[str, str], Variable]
    ) -> None:
        views = list(views)
        writers = [
            (view, name)
            for view in views
            for op in view.ops
            if _WRITER.match(op)
            for name in view.named(op)
            if writes_rows(view, name)
        ]
        names = {argument: variable.name for argument, variable in variables.items()}
        self._handles = Handles(views, names) if writers else Handles((), {})
        #: The functions that write each variable.
        self._written: dict[Place, set[str]] = {}
        for view, name in writers:
            for tensor in view.inputs(name):
                place = self._handles.first(view, tensor)
                self._written.setdefault(place, set()).add(view.function)
        self._ignored: str | None = None

    def change(self, view: GraphView, table: Tensor) -> bool:
        """Whether rows of the table, a handle or what is read of one, are written somewhere."""
        if not self._written:
            return False
        source = view.read_handle(table) or view.resolve(table)
        written = self._written.get(self._handles.first(view, source), set())
        return bool(written - {self._ignored})

    def outside(self, view: GraphView) -> SparseWriters:
        """Returns the writers outside a graph: the graph itself orders those that are in it."""
        result = copy(self)
        result._ignored = view.function
        return result
