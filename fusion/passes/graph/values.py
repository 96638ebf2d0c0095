"""Nodes and values of a graph, by which a recogniser reads it: `ids.producer.op == "Unique"`.

They have no data of their own. A node is its view and its name, a value its view and its `Tensor`;
all else a `GraphView` says. What outlives the view, as a spec does, has Tensors and names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy.typing as npt
from tensorflow.core.framework import attr_value_pb2

from fusion.passes.graph.tensor import Shape, Tensor, Use
from fusion.passes.graph.view import GraphView

#: What the classes below are made by where speed matters: their own `__new__` is one more call.
_new = tuple.__new__


class Node(NamedTuple):
    """A node by its name."""

    view: GraphView
    name: str

    def __str__(self) -> str:
        return self.name

    @property
    def op(self) -> str:
        """The op, "" if there is no such node."""
        return self.view.op_of.get(self.name, "")

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The data inputs, in order."""
        view = self.view
        return tuple([_new(Value, (view, tensor)) for tensor in view.inputs(self.name)])

    @property
    def input_count(self) -> int:
        """How many data inputs there are."""
        return len(self.view.inputs(self.name))

    def input(self, index: int) -> Value:
        """Returns a data input, without looking at the others: a concat may have thousands."""
        view, name = self
        return _new(Value, (view, view.inputs(name)[index]))

    def output(self, index: int = 0) -> Value:
        """Returns an output."""
        view, name = self
        return _new(Value, (view, _new(Tensor, (name, index))))

    @property
    def controls(self) -> tuple[str, ...]:
        """The names of the nodes that it has control inputs from."""
        return self.view.controls(self.name)

    @property
    def uses(self) -> Iterator[Usage]:
        """The data uses of all outputs, function returns included."""
        view = self.view
        return (_usage(view, use) for use in view.uses(self.name))

    @property
    def is_live(self) -> bool:
        """Whether an output or a side effect of the graph depends on it."""
        return self.view.is_live(self.name)

    @property
    def is_preserved(self) -> bool:
        """Whether something outside the graph refers to it."""
        return self.name in self.view.preserved

    def attr(self, key: str) -> attr_value_pb2.AttrValue | None:
        """Returns an attribute, its op's default, or None."""
        return self.view.attr(self.name, key)

    def int_attr(self, key: str) -> int:
        """Returns an int attribute; 0 when it is absent and has no default."""
        return self.view.int_attr(self.name, key)

    def float_attr(self, key: str) -> float:
        """Returns a float attribute; 0.0 when it is absent and has no default."""
        return self.view.float_attr(self.name, key)

    def flag_attr(self, key: str) -> bool:
        """Returns a bool attribute; False when it is absent and has no default."""
        return self.view.flag_attr(self.name, key)

    def text_attr(self, key: str) -> str:
        """Returns a string attribute; "" when it is absent and has no default."""
        return self.view.text_attr(self.name, key)

    def type_attr(self, key: str) -> int:
        """Returns a type attribute as a DataType number; 0 (invalid) when absent."""
        return self.view.type_attr(self.name, key)


class Value(NamedTuple):
    """An output of a node."""

    view: GraphView
    tensor: Tensor

    def __str__(self) -> str:
        return str(self.tensor)

    @property
    def node(self) -> str:
        """The name of the node whose output it is."""
        return self.tensor.node

    @property
    def index(self) -> int:  # type: ignore[override]  # hides tuple.index, as in Tensor
        """Which output of the node it is."""
        return self.tensor.index

    @property
    def resolved(self) -> Value:
        """Where it comes from behind nodes that hand on their input unchanged."""
        view, tensor = self
        return _new(Value, (view, view.resolve(tensor)))

    @property
    def producer(self) -> Node:
        """The node that computes it, behind nodes that hand on their input unchanged."""
        view, tensor = self
        return _new(Node, (view, view.resolve(tensor).node))

    @property
    def aliases(self) -> tuple[str, ...]:
        """The names of the nodes that `producer` passes, outermost first."""
        return self.view.aliases(self.tensor)

    @property
    def path(self) -> tuple[str, ...]:
        """The names of these nodes, and that of the producer."""
        view, tensor = self
        return (*view.aliases(tensor), view.resolve(tensor).node)

    @property
    def uses(self) -> Iterator[Usage]:
        """The data uses of this output."""
        view = self.view
        return (_usage(view, use) for use in view.tensor_uses(self.tensor))

    @property
    def constant(self) -> npt.NDArray[Any] | None:
        """The elements of a constant, None if it is none."""
        return self.view.constant(self.tensor)

    @property
    def elements(self) -> object:
        """The elements of a constant as nested lists, None if it is none."""
        value = self.constant
        return None if value is None else value.tolist()

    @property
    def scalar(self) -> Any:
        """The number that a constant without dimensions is, None if it is none."""
        value = self.constant
        return None if value is None or value.ndim else value.item()

    @property
    def item(self) -> Any:
        """The only element of a constant of any rank, None if it is none, or has several."""
        value = self.constant
        return None if value is None or value.size != 1 else value.item()

    @property
    def shape(self) -> Shape | None:
        """The static shape with None for unknown sizes, None for an unknown rank."""
        return self.view.shape(self.tensor)

    @property
    def dtype(self) -> int:
        """The DataType, 0 (invalid) if it is not known."""
        return self.view.dtype(self.tensor)

    @property
    def origin(self) -> Value:
        """Where a handle comes from, also into v1 loops and branches."""
        return Value(self.view, self.view.origin(self.tensor))

    @property
    def read_handle(self) -> Value | None:
        """The handle of the variable that it is read from, None if it is read from none."""
        handle = self.view.read_handle(self.tensor)
        return None if handle is None else Value(self.view, handle)

    @property
    def variable_shape(self) -> Shape | None:
        """The static shape of the variable behind a handle, None if it is not known."""
        return self.view.variable_shape(self.tensor)


class Usage(NamedTuple):
    """Input `position` of `node` reads `tensor`; position -1 is a function's return value."""

    node: Node
    position: int
    tensor: Tensor


def _usage(view: GraphView, use: Use) -> Usage:
    return _new(Usage, (_new(Node, (view, use.node)), use.position, use.tensor))


def named(view: GraphView, *ops: str) -> Iterator[Node]:
    """Yields the nodes of some ops, in file order."""
    return (Node(view, name) for name in view.named(*ops))
