"""A read-only view of a GraphDef's main graph or of one library function.

Both come with their own input syntax. A GraphDef says `node`, `node:1`, `^node`; a FunctionDef says
`arg`, `node:out_arg:0`, `^node` and has named returns. The view turns both into `Tensor(node,
index)` with a flat output index, and back.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from tensorflow.core.framework import (
    attr_value_pb2,
    function_pb2,
    graph_pb2,
    node_def_pb2,
    tensor_pb2,
    types_pb2,
)

from fusion.passes.graph.shapes import Shapes
from fusion.passes.graph.signatures import OpSignatures
from fusion.passes.graph.tensor import (
    ALIAS_OPS,
    ARG_OP,
    BRANCH_OPS,
    RETURN,
    VALUE_READS,
    Shape,
    Tensor,
    Use,
    dims,
)
from fusion.runtime.tensorflow.private import tensor_util
from fusion.schema.names import GROUPED_GATHER

#: How far handles are followed into loops and branches.
_MAX_DEPTH = 64
#: Stateful ops that running before or after something makes no difference to others.
_NO_EFFECT = frozenset(
    {"VarHandleOp", "VariableV2", "Variable", "Placeholder", "PlaceholderV2", ARG_OP}
    | {"ResourceGather", "HashTable", "HashTableV2", GROUPED_GATHER}
    | {"LookupTableFindV2", "LookupTableSizeV2"}
    | VALUE_READS
)
_FRAME_OPS = frozenset({"Enter", "RefEnter"})

_INTEGERS: dict[int, tuple[type[np.integer[Any]], str]] = {
    types_pb2.DT_INT32: (np.int32, "int_val"),
    types_pb2.DT_INT64: (np.int64, "int64_val"),
}


class GraphView:
    """Nodes, edges and static facts, indexed once; the protocol buffer is never changed.

    Attributes:
        function: the library function's name; "" for a main graph.
        nodes: NodeDefs by name, in file order; function arguments come first, with op `_Arg`.
        op_of: their ops by name.
        preserved: names that something outside the graph refers to.
        awaited: names that something outside waits for, without reading a value.
        home_type: the type of device that fused ops are put on where no node says otherwise.
        fetched: the nodes of a main graph that signatures return; empty in a function that no
            signature runs; None where all nodes count as run.
        inferred: what `inferred_shapes` was asked already, and its answers.
    """

    def __init__(
        self,
        nodes: Iterable[node_def_pb2.NodeDef],
        signatures: OpSignatures,
        preserved: frozenset[str] = frozenset(),
        definition: function_pb2.FunctionDef | None = None,
        awaited: frozenset[str] = frozenset(),
        home_type: str = "CPU",
        fetched: frozenset[str] | None = None,
    ) -> None:
        self.function: str = definition.signature.name if definition is not None else ""
        self.signatures = signatures
        self.preserved = preserved
        self.awaited = awaited
        self.home_type = home_type
        self.fetched = fetched
        self._in_function = definition is not None
        self._tensors: dict[str, Tensor] = {}
        self._strings: dict[Tensor, str] = {}
        self._suffixes: dict[str, dict[str, int]] = {}
        self._constants: dict[str, npt.NDArray[Any] | None] = {}
        self._argument_shapes: Mapping[str, Shape] = {}
        # A circle would be looked for long in a graph of many nodes.
        self._shapes = Shapes(weakref.proxy(self), {})
        self._has_loops: bool | None = None
        self._live: set[str] | None = None
        self._served: set[str] | None = None
        self._without_effect: set[str] = set()
        self.inferred: dict[Any, Any] = {}
        self.nodes: dict[str, node_def_pb2.NodeDef] = {}
        if definition is not None:
            for arg in _arg_nodes(definition):
                self.nodes[arg.name] = arg
        for node in nodes:
            self.nodes[node.name] = node
        self._inputs: dict[str, tuple[Tensor, ...]] = {}
        self._controls: dict[str, tuple[str, ...]] = {}
        self._uses: dict[str, list[Use]] = {}
        self._tensor_uses: dict[str, dict[Tensor, list[Use]]] = {}
        self._control_uses: dict[str, list[str]] = {}
        self.op_of = {name: node.op for name, node in self.nodes.items()}
        self._index_edges()
        self._aliases = self._alias_nodes()
        self._returned: set[str] = set()
        if definition is not None:
            for value in definition.ret.values():
                tensor = self.tensor(value)
                self._returned.add(tensor.node)
                self._uses.setdefault(tensor.node, []).append(Use(value, -1, tensor))
            self._returned.update(definition.control_ret.values())
            for name in definition.control_ret.values():
                self._control_uses.setdefault(name, []).append(RETURN)

    @staticmethod
    def of_graph(
        graph_def: graph_pb2.GraphDef, preserved: frozenset[str] = frozenset()
    ) -> GraphView:
        """Returns the view of the main graph; `preserved` names nodes that outsiders fetch."""
        signatures = OpSignatures(graph_def.library.function)
        return GraphView(graph_def.node, signatures, preserved)

    @staticmethod
    def of_function(
        definition: function_pb2.FunctionDef,
        signatures: OpSignatures | None = None,
        shapes: Mapping[str, Shape] | None = None,
        home_type: str = "CPU",
        fetched: frozenset[str] | None = None,
    ) -> GraphView:
        """Returns the view of a function's body, whose returns count as uses.

        Args:
            definition: the function.
            signatures: of the ops.
            shapes: static shapes of the variables whose handles are its arguments, by argument.
            home_type: see the class.
            fetched: see the class.
        """
        signatures = signatures or OpSignatures()
        view = GraphView(
            definition.node_def,
            signatures,
            definition=definition,
            home_type=home_type,
            fetched=fetched,
        )
        view._argument_shapes = shapes or {}
        return view

    def _index_edges(self) -> None:
        known = self._tensors
        for name, node in self.nodes.items():
            texts = tuple(node.input)
            if not texts:
                continue
            data = [known.get(text) or self.tensor(text) for text in texts if text[0] != "^"]
            self._inputs[name] = tuple(data)
            for position, tensor in enumerate(data):
                self._uses.setdefault(tensor.node, []).append(Use(name, position, tensor))
            if len(data) < len(texts):
                controls = tuple(text[1:] for text in texts if text[0] == "^")
                self._controls[name] = controls
                for before in controls:
                    self._control_uses.setdefault(before, []).append(name)

    def _alias_nodes(self) -> frozenset[str]:
        """Returns the nodes that hand on their input unchanged.

        One that waits for a control input orders a read after something, and is none of them.
        """
        return frozenset(
            name
            for name, op in self.op_of.items()
            if (op in ALIAS_OPS or op == "IdentityN") and name not in self._controls
        )

    # Names and edges

    @property
    def has_loops(self) -> bool:
        """Whether the graph has while loops made of v1 control-flow ops."""
        if self._has_loops is None:
            self._has_loops = not _FRAME_OPS.isdisjoint(self.op_of.values())
        return self._has_loops

    @property
    def has_controls(self) -> bool:
        """Whether any node has a control input."""
        return bool(self._controls)

    def tensor(self, text: str) -> Tensor:
        """Parses an input string (no control input) in this graph's syntax."""
        tensor = self._tensors.get(text)
        if tensor is None:
            tensor = self._parse(text)
            self._tensors[text] = tensor
            self._strings.setdefault(tensor, text)
        return tensor

    def _parse(self, text: str) -> Tensor:
        name, _, rest = text.partition(":")
        if not rest:
            return Tensor(name)
        if not self._in_function:
            return Tensor(name, int(rest))
        if name not in self.nodes or self.nodes[name].op == ARG_OP:
            return Tensor(name, int(rest.rpartition(":")[2]))
        suffixes = self._output_suffixes(name)
        # An unknown op: number its outputs as they are met, which keeps them distinct.
        return Tensor(name, suffixes.setdefault(rest, len(suffixes)))

    def _output_suffixes(self, name: str) -> dict[str, int]:
        if name not in self._suffixes:
            outputs = self.signatures.outputs(self.nodes[name]) or ()
            self._suffixes[name] = {suffix: i for i, suffix in enumerate(outputs)}
        return self._suffixes[name]

    def text(self, tensor: Tensor) -> str:
        """Returns the input string of `tensor` in this graph's syntax."""
        if (known := self._strings.get(tensor)) is not None:
            return known
        node = self.nodes[tensor.node]
        if not self._in_function or node.op == ARG_OP:
            return str(tensor)
        return f"{tensor.node}:{tuple(self._output_suffixes(tensor.node))[tensor.index]}"

    def inputs(self, name: str) -> tuple[Tensor, ...]:
        """Returns the data inputs of node `name`, in order."""
        return self._inputs.get(name, ())

    def controls(self, name: str) -> tuple[str, ...]:
        """Returns the names of the nodes that `name` has control inputs from."""
        return self._controls.get(name, ())

    def before(self, name: str) -> list[str]:
        """Returns the nodes that `name` reads or waits for."""
        return [*(tensor.node for tensor in self.inputs(name)), *self.controls(name)]

    def uses(self, name: str) -> list[Use]:
        """Returns all data uses of any output of node `name`, function returns included."""
        return self._uses.get(name, [])

    def tensor_uses(self, tensor: Tensor) -> list[Use]:
        """Returns the data uses of one tensor."""
        if tensor.node not in self._tensor_uses:
            # A node may have thousands of outputs, each of them asked for.
            uses = self._tensor_uses[tensor.node] = {}
            for use in self.uses(tensor.node):
                uses.setdefault(use.tensor, []).append(use)
        return self._tensor_uses[tensor.node].get(tensor, [])

    def control_uses(self, name: str) -> list[str]:
        """Returns the names of the nodes that have a control input from `name`."""
        return self._control_uses.get(name, [])

    def is_live(self, name: str) -> bool:
        """Returns whether an output or a side effect of the graph depends on the node.

        The outputs of a function are its returned values. Those of a main graph are the preserved
        nodes; if none is preserved, every node without consumers.
        """
        if self._live is None:
            self._live = self._needed_by(self._seen())
        return name in self._live

    def is_served(self, name: str) -> bool:
        """Whether signatures run the node."""
        if self.fetched is None:
            return True
        if self._served is None:
            self._served = self._needed_by(self.fetched & self.nodes.keys())
        return name in self._served

    def _needed_by(self, names: Iterable[str]) -> set[str]:
        """Returns nodes and all that they read or wait for."""
        needed, added = set[str](), set(names)
        while added:
            needed |= added
            read = {tensor.node for name in added for tensor in self.inputs(name)}
            awaited = {before for name in added for before in self.controls(name)}
            added = (read | awaited) - needed
        return needed

    def _seen(self) -> set[str]:
        """Returns the graph's outputs and the nodes with side effects."""
        effects = {op for op in self.ops if self.signatures.is_stateful(op)}
        seen = {name for name, op in self.op_of.items() if op in effects}
        seen |= self._returned | ((self.preserved | self.awaited) & self.nodes.keys())
        if not self._in_function and not self.preserved:
            read = self._uses.keys() | self._control_uses.keys()
            seen |= self.nodes.keys() - read
        return seen

    def has_effect(self, name: str) -> bool:
        """Returns whether it may matter to others when the node, and what it needs, runs."""
        seen: set[str] = set()
        stack = [name]
        while stack:
            node = stack.pop()
            if node in seen or node in self._without_effect:
                continue
            seen.add(node)
            if self.acts(node):
                return True
            stack += [*(tensor.node for tensor in self.inputs(node)), *self.controls(node)]
        self._without_effect |= seen
        return False

    def acts(self, name: str) -> bool:
        """Returns whether it may matter to others when the node itself runs."""
        op = self.op(name)
        return op not in _NO_EFFECT and self.signatures.is_stateful(op)

    @property
    def ops(self) -> frozenset[str]:
        """The ops of all nodes."""
        return frozenset(self.op_of.values())

    def named(self, *ops: str) -> Iterator[str]:
        """Yields the names of the nodes of some ops, in file order."""
        return (name for name, op in self.op_of.items() if op in ops)

    def op(self, name: str) -> str:
        """Returns the op of node `name`, or "" when there is no such node."""
        return self.op_of.get(name, "")

    # Attributes: a stripped attribute has its op's default value

    def attr(self, name: str, key: str) -> attr_value_pb2.AttrValue | None:
        """Returns attribute `key` of node `name`, its op's default, or None."""
        node = self.nodes[name]
        if key in node.attr:
            return node.attr[key]
        definition = self.signatures.op_def(node.op)
        for attr in definition.attr if definition is not None else ():
            if attr.name == key and attr.HasField("default_value"):
                return attr.default_value
        return None

    def int_attr(self, name: str, key: str) -> int:
        """Returns an int attribute; 0 when it is absent and has no default."""
        attr = self.attr(name, key)
        return int(attr.i) if attr is not None else 0

    def float_attr(self, name: str, key: str) -> float:
        """Returns a float attribute; 0.0 when it is absent and has no default."""
        attr = self.attr(name, key)
        return float(attr.f) if attr is not None else 0.0

    def flag_attr(self, name: str, key: str) -> bool:
        """Returns a bool attribute; False when it is absent and has no default."""
        attr = self.attr(name, key)
        return attr is not None and bool(attr.b)

    def text_attr(self, name: str, key: str) -> str:
        """Returns a string attribute; "" when it is absent and has no default."""
        attr = self.attr(name, key)
        return attr.s.decode(errors="replace") if attr is not None else ""

    def type_attr(self, name: str, key: str) -> int:
        """Returns a type attribute as a DataType number; 0 (invalid) when absent."""
        attr = self.attr(name, key)
        return int(attr.type) if attr is not None else 0

    # Values

    def resolve(self, tensor: Tensor) -> Tensor:
        """Follows ops that hand on their input unchanged, and says where the value comes from."""
        aliases = self._aliases
        if tensor.node in aliases:
            left = len(aliases)
            while left and tensor.node in aliases:
                tensor = self._inputs[tensor.node][tensor.index]
                left -= 1  # ends in a malformed graph, too, whose aliases go round in circles
        return tensor

    def aliases(self, tensor: Tensor) -> tuple[str, ...]:
        """Returns the nodes that `resolve(tensor)` passes, outermost first."""
        if tensor.node not in self._aliases:
            return ()
        names = []
        end = self.resolve(tensor)
        while tensor != end:
            names.append(tensor.node)
            tensor = self.inputs(tensor.node)[tensor.index]
        return tuple(names)

    def constant(self, tensor: Tensor) -> npt.NDArray[Any] | None:
        """Returns the value of a constant (through aliases), or None."""
        name = self.resolve(tensor).node
        if name not in self._constants:
            node = self.nodes.get(name)
            is_constant = node is not None and node.op == "Const" and "value" in node.attr
            self._constants[name] = (
                _decode(node.attr["value"].tensor) if node is not None and is_constant else None
            )
        return self._constants[name]

    def shape(self, tensor: Tensor) -> Shape | None:
        """Returns the static shape with None for unknown sizes, or None for an unknown rank."""
        return self._shapes.shape(tensor)

    def integers(self, tensor: Tensor) -> npt.NDArray[Any] | None:
        """Returns integers that are constant or follow from constants and known shapes, or None."""
        known = self.constant(tensor)
        return self._shapes.integers(tensor) if known is None else known

    def dtype(self, tensor: Tensor) -> int:
        """Returns the DataType of a tensor, 0 (invalid) when it is not known."""
        node = self.nodes.get(tensor.node)
        if node is None or node.op == ARG_OP:
            return 0 if node is None else int(node.attr["T"].type)
        types = self.signatures.output_types(node)
        return types[tensor.index] if tensor.index < len(types) else 0

    def shape_attr(self, name: str) -> Shape | None:
        """Returns the attribute `shape` of node `name`, None when absent or of unknown rank."""
        attr = self.attr(name, "shape")
        return dims(attr.shape) if attr is not None and not attr.shape.unknown_rank else None

    def origin(self, handle: Tensor) -> Tensor:
        """Returns where a handle comes from, also into v1 loops and branches.

        It is the same variable there; what its reads wait for is another matter.
        """
        handle = self.resolve(handle)
        for _ in range(_MAX_DEPTH):
            if self.op(handle.node) not in BRANCH_OPS | ALIAS_OPS:
                break
            handle = self.resolve(self.inputs(handle.node)[0])
        return handle

    def read_handle(self, value: Tensor) -> Tensor | None:
        """Returns the handle of the variable that a value is read from, None if it is none."""
        source = self.resolve(value)
        is_read = self.op(source.node) in VALUE_READS
        return self.inputs(source.node)[source.index] if is_read else None

    def variable_shape(self, handle: Tensor) -> Shape | None:
        """Returns the static shape of the variable behind a resource handle, or None."""
        node = self.nodes.get(self.origin(handle).node)
        if node is None:
            return None
        if node.op == "VarHandleOp":
            return self.shape_attr(node.name)
        if node.op == ARG_OP and "_handle_shapes" in node.attr:
            shapes = node.attr["_handle_shapes"].list.shape
            if shapes and not shapes[0].unknown_rank:
                return dims(shapes[0])
        return self._argument_shapes.get(node.name) if node.op == ARG_OP else None


def _decode(proto: tensor_pb2.TensorProto) -> npt.NDArray[Any]:
    """Returns a tensor's value; the integers that shapes are made of by a short way."""
    if proto.dtype in _INTEGERS:
        dtype, field = _INTEGERS[proto.dtype]
        shape = tuple(dim.size for dim in proto.tensor_shape.dim)
        if proto.tensor_content:
            return np.frombuffer(proto.tensor_content, dtype).reshape(shape)
        numbers = getattr(proto, field)
        if len(numbers) == 1:
            return _filled(shape, numbers[0], proto.dtype)
    value: npt.NDArray[Any] = tensor_util.MakeNdarray(proto)
    return value


@lru_cache(maxsize=1024)
def _filled(shape: tuple[int, ...], number: int, dtype: int) -> npt.NDArray[np.integer[Any]]:
    """Returns one read-only array for equal constants; each column has its own constant node."""
    value = np.full(shape, number, _INTEGERS[dtype][0])
    value.setflags(write=False)
    return value


def _arg_nodes(definition: function_pb2.FunctionDef) -> Iterator[node_def_pb2.NodeDef]:
    for i, arg in enumerate(definition.signature.input_arg):
        node = node_def_pb2.NodeDef(name=arg.name, op=ARG_OP)
        node.attr["T"].type = arg.type
        if i in definition.arg_attr:
            for key, value in definition.arg_attr[i].attr.items():
                node.attr[key].CopyFrom(value)
        yield node
