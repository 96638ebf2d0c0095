"""Pending changes to one graph, applied at once: new nodes, moved edges, removed dead code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from tensorflow.core.framework import function_pb2, graph_pb2, node_def_pb2

from fusion.passes.graph.kernel_names import KernelNames
from fusion.passes.graph.liveness import dead_with
from fusion.passes.graph.signatures import OpSignatures
from fusion.passes.graph.tensor import ARG_OP, NEXT_ITERATIONS, Tensor, Use
from fusion.passes.graph.view import GraphView

_INPUT_OPS = frozenset({ARG_OP, "Placeholder", "PlaceholderV2", "PlaceholderWithDefault"})


@dataclass
class GraphEdit:
    """Collects a rewrite of `view`'s graph.

    In the result new nodes of stateful ops have longer names, see `kernel_names`.

    Attributes:
        added: new nodes by name.
        removed: names of replaced nodes, each with the new node that takes over its control edges.
        shared: new nodes that several lookups may read, by what they compute.
    """

    view: GraphView
    added: dict[str, node_def_pb2.NodeDef] = field(default_factory=dict)
    removed: dict[str, str] = field(default_factory=dict)
    shared: dict[tuple[object, ...], str] = field(default_factory=dict)
    _placed: dict[str, list[str]] = field(default_factory=dict)
    _renamed: dict[str, str] = field(default_factory=dict)
    _waits: dict[str, dict[str, None]] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)
    _names: KernelNames | None = None
    _built: list[node_def_pb2.NodeDef] | None = None

    def unique_name(self, base: str) -> str:
        """Returns `base`, with a number behind it if a node of that name exists."""
        number = self._numbers.get(base, 0)
        name = f"{base}_{number}" if number else base
        while name in self.view.nodes or name in self.added:
            number += 1
            name = f"{base}_{number}"
        self._numbers[base] = number
        return name

    def add(self, node: node_def_pb2.NodeDef, at: str) -> None:
        """Adds a node, in file order just before the existing node `at` (or in its place)."""
        self.added[node.name] = node
        self._placed.setdefault(at, []).append(node.name)

    def changed(self, name: str) -> node_def_pb2.NodeDef:
        """Returns the new node in the place of an existing one of this name, first a copy of it."""
        if name not in self.added:
            node = node_def_pb2.NodeDef()
            node.CopyFrom(self.view.nodes[name])
            self.add(node, at=name)
            self.remove([name], name)
        return self.added[name]

    def positions(self) -> dict[str, str]:
        """Returns the existing node that each new one stands before, or in whose place it is."""
        return {name: at for at, names in self._placed.items() for name in names}

    def text(self, tensor: Tensor) -> str:
        """Returns the input string of a new or an existing tensor."""
        node = self.added.get(tensor.node)
        if node is None:
            return self.view.text(tensor)
        if not self.view.function:
            return str(tensor)
        outputs = self.view.signatures.outputs(node)
        assert outputs is not None, f"unknown op {node.op}"
        return f"{tensor.node}:{outputs[tensor.index]}"

    def sources(self, tensors: Iterable[Tensor]) -> list[str]:
        """Returns the existing nodes that tensors, new ones or not, are computed from."""
        names: dict[str, None] = {}
        stack = [tensor.node for tensor in tensors]
        for name in stack:
            if name in self.view.nodes:
                names[name] = None
            else:
                stack += (s for s in _source_names(self.added[name]) if s not in stack)
        return [*names]

    def replace(self, old: Tensor, new: Tensor) -> None:
        """Lets every user of `old` read `new`, of a new node or of one that is there."""
        self._renamed[self.view.text(old)] = self.text(new)

    def remove(self, names: Iterable[str], successor: str) -> None:
        """Removes nodes; their control edges, in and out, move to the new node `successor`.

        A node that a remaining node still reads stays after all.
        """
        for name in names:
            self.removed.setdefault(name, successor)
            self.wait(successor, self.view.controls(name))

    def remove_pure(self, names: Iterable[str], successor: str) -> None:
        """Removes nodes as `remove` does, whose order among others that have no effect is free."""
        for name in names:
            self.removed.setdefault(name, successor)
            self.wait(successor, filter(self.view.has_effect, self.view.controls(name)))

    def wait(self, successor: str, names: Iterable[str]) -> None:
        """Lets the new node `successor` run after the nodes `names`."""
        self._waits.setdefault(successor, {}).update(dict.fromkeys(names))

    def returned(self, text: str) -> str:
        """Returns the new input string for a function's return value."""
        text = self._renamed.get(text, text)
        return text if self._names is None else self._names.text(text)

    def successor(self, name: str) -> str:
        """Returns the node that stands for `name` in control edges after the rewrite."""
        name = self.removed.get(name, name)
        return name if self._names is None else self._names.name(name)

    def build(self) -> list[node_def_pb2.NodeDef]:
        """Returns all nodes after the rewrite, without function arguments, in file order.

        Nothing can be changed any more; `returned` and `successor` are final from then on.
        """
        if self._built is None:
            self._built = self._build()
        return self._built

    def is_circular(self) -> bool:
        """Whether the rewrite makes nodes wait for each other, in one iteration of a v1 loop."""
        nodes = self.build()
        names = {node.name for node in nodes if node.op not in NEXT_ITERATIONS}
        before = {node.name: {*_source_names(node)} & names for node in nodes}
        after: dict[str, list[str]] = {}
        for name, sources in before.items():
            for source in sources:
                after.setdefault(source, []).append(name)
        ready = [name for name, sources in before.items() if not sources]
        left = {name: len(sources) for name, sources in before.items()}
        count = 0
        while ready:
            count += 1
            for name in after.get(ready.pop(), ()):
                left[name] -= 1
                if not left[name]:
                    ready.append(name)
        return count < len(nodes)

    def _build(self) -> list[node_def_pb2.NodeDef]:
        for node in self.added.values():
            node.input[:] = [self._renamed.get(text, text) for text in node.input]
        self._keep_what_is_read()
        for name, node in self.added.items():
            # An order among replaced nodes has no meaning any more: they wait for data alone.
            waits = (before for before in self._waits.get(name, {}) if before not in self.removed)
            node.input.extend(f"^{before}" for before in waits)
        gone = {*self.removed, *self._dead()}
        missing = gone - self.added.keys()
        for node in self.added.values():
            _drop_colocation(node, missing)
        result: list[node_def_pb2.NodeDef] = []
        for name, node in self.view.nodes.items():
            if name in self._placed:
                result.extend(self.added[new] for new in self._placed[name])
            if name not in gone:
                if not (self.view.function and node.op == ARG_OP):
                    result.append(self._rewired(node, missing))
            elif name in self.view.awaited and name not in self.added:
                result.append(self._stand_in(node))
        self._names = KernelNames.of(self.view, self.added)
        return self._names.applied(result)

    def _keep_what_is_read(self) -> None:
        view = self.view
        read = {name for node in self.added.values() for name in _source_names(node)}
        for name in sorted(dead_with(view, self.removed) - read):
            self.removed[name] = name  # no node waits for it
        stack = [
            name
            for name in self.removed
            if name in read or any(self._reads(use) for use in view.uses(name))
        ]
        while stack:
            name = stack.pop()
            if name in self.removed and name not in self.added:
                del self.removed[name]
                stack += (source.node for source in view.inputs(name) if self._stays(source))

    def _reads(self, use: Use) -> bool:
        """Whether the tensor keeps this consumer after the edit."""
        return use.node not in self.removed and self._stays(use.tensor)

    def _stays(self, tensor: Tensor) -> bool:
        """Whether those who read the tensor go on doing so: there is no other in its place."""
        return self.view.text(tensor) not in self._renamed

    def _rewired(self, node: node_def_pb2.NodeDef, missing: set[str]) -> node_def_pb2.NodeDef:
        """Returns the node with its inputs and colocation following the rewrite, or itself."""
        inputs = [self._input(text) for text in node.input]
        if inputs == list(node.input) and not _missing_groups(node, missing):
            return node
        changed = node_def_pb2.NodeDef()
        changed.CopyFrom(node)
        del changed.input[:]
        changed.input.extend(_without_repeated_controls(inputs))
        _drop_colocation(changed, missing)
        return changed

    def _stand_in(self, node: node_def_pb2.NodeDef) -> node_def_pb2.NodeDef:
        """Returns a node for those who wait for a removed one by its name."""
        waits = [f"^{self.successor(node.name)}"]
        return node_def_pb2.NodeDef(name=node.name, op="NoOp", input=waits, device=node.device)

    def _input(self, text: str) -> str:
        if text[0] == "^":
            return f"^{self.successor(text[1:])}"
        return self._renamed.get(text, text)

    def _dead(self) -> set[str]:
        """Returns the removable nodes that lose their last consumer by this rewrite."""
        view = self.view
        needed = {name for node in self.added.values() for name in _source_names(node)}
        needed.update(self.removed, view.preserved, view.awaited)
        needed.update(text.partition(":")[0] for text in self._renamed.values())
        dead: set[str] = set()
        # One entry per edge from a node to a user of it that is gone, to count those that are left.
        stack = [before for name in self.removed for before in view.before(name)]
        left: dict[str, int] = {}
        while stack:
            name = stack.pop()
            if name in needed:
                continue
            if name not in left:
                left[name] = len(view.uses(name)) + len(view.control_uses(name))
            left[name] -= 1
            if not left[name] and _is_removable(view, name):
                dead.add(name)
                stack.extend(view.before(name))
        return dead


def _is_removable(view: GraphView, name: str) -> bool:
    op = view.op(name)
    return bool(op) and op not in _INPUT_OPS and not view.signatures.is_stateful(op)


def _source_names(node: node_def_pb2.NodeDef) -> Iterator[str]:
    return (text.removeprefix("^").partition(":")[0] for text in node.input)


def _without_repeated_controls(inputs: list[str]) -> list[str]:
    data = [text for text in inputs if text[0] != "^"]
    return data + list(dict.fromkeys(text for text in inputs if text[0] == "^"))


def _missing_groups(node: node_def_pb2.NodeDef, missing: set[str]) -> list[bytes]:
    """Returns the node's colocation entries that name a missing node."""
    if "_class" not in node.attr:
        return []
    groups = node.attr["_class"].list.s
    return [group for group in groups if group.decode().removeprefix("loc:@") in missing]


def _drop_colocation(node: node_def_pb2.NodeDef, missing: set[str]) -> None:
    for group in _missing_groups(node, missing):
        node.attr["_class"].list.s.remove(group)
    if "_class" in node.attr and not node.attr["_class"].list.s:
        del node.attr["_class"]


def bodies(graph_def: graph_pb2.GraphDef, preserved: frozenset[str]) -> Iterator[GraphView]:
    """Yields the views of the main graph, with nodes that outsiders fetch, and of each function."""
    signatures = OpSignatures(graph_def.library.function)
    yield GraphView(graph_def.node, signatures, preserved)
    for definition in graph_def.library.function:
        yield GraphView.of_function(definition, signatures)


def with_replaced(
    graph_def: graph_pb2.GraphDef,
    preserved: frozenset[str],
    op: str,
    replace: Callable[[GraphEdit, str], None],
) -> graph_pb2.GraphDef:
    """Returns the graph with what takes the place of the nodes of an op, or itself.

    Args:
        graph_def: the graph, which is not changed.
        preserved: names of main-graph nodes that outsiders refer to.
        op: the op.
        replace: puts something in the place of a node, by its name, or leaves it.
    """
    graphs = (graph_def.node, *(function.node_def for function in graph_def.library.function))
    if not any(node.op == op for nodes in graphs for node in nodes):
        return graph_def
    edits = {}
    for view in bodies(graph_def, preserved):
        edit = GraphEdit(view)
        for name in [*view.named(op)]:
            replace(edit, name)
        if edit.added:
            edits[view.function] = edit
    return apply_edits(graph_def, edits) if edits else graph_def


def apply_edits(graph_def: graph_pb2.GraphDef, edits: dict[str, GraphEdit]) -> graph_pb2.GraphDef:
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
    outputs: dict[str, str] = {}
    for output in definition.signature.control_output:
        outputs.setdefault(edit.successor(definition.control_ret[output]), output)
    definition.signature.control_output[:] = outputs.values()
    definition.control_ret.clear()
    definition.control_ret.update({output: node for node, output in outputs.items()})
