"""Makes the nodes of a rewrite, named after what they replace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
from tensorflow.core.framework import node_def_pb2, tensor_pb2, types_pb2

from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.tensor import Tensor
from fusion.passes.recognise.spec import LookupSpec
from fusion.runtime.tensorflow.private import tensor_util

AttrValue = bool | int | float | str | bytes


@dataclass
class NodeBuilder:
    """Adds nodes to an edit, named after the stock node whose place they take.

    Attributes:
        edit: the rewrite.
        base: the stock node.
        device: where nodes go unless said otherwise.
        frame: a node in the same v1 while loop, if there are any.
    """

    edit: GraphEdit
    base: str
    device: str
    frame: str

    @staticmethod
    def of(edit: GraphEdit, spec: LookupSpec) -> NodeBuilder:
        """Returns a builder for one lookup, on the device of its segment reduction."""
        device = edit.view.nodes[spec.anchor].device
        return NodeBuilder(edit, spec.output.node, device, spec.ids.values.node)

    def node(self, role: str, op: str, device: str | None = None) -> node_def_pb2.NodeDef:
        """Returns a new node, not added yet."""
        name = self.edit.unique_name(f"{self.base}/{role}")
        device = self.device if device is None else device
        return node_def_pb2.NodeDef(name=name, op=op, device=device)

    def replacement(self, op: str, device: str | None = None) -> node_def_pb2.NodeDef:
        """Returns a new node of the name of `base`, with its recorded shape, not added yet."""
        node = self.node("", op, device)
        self.take_name(node)
        return node

    def copy(self, role: str, stock: str) -> node_def_pb2.NodeDef:
        """Returns a copy of a stock node without its control inputs, not added yet."""
        view, node = self.edit.view, node_def_pb2.NodeDef()
        node.CopyFrom(view.nodes[stock])
        node.name = self.node(role, "").name
        del node.input[:]
        node.input.extend(view.text(tensor) for tensor in view.inputs(stock))
        return node

    def inputs(self, node: node_def_pb2.NodeDef, *tensors: Tensor) -> None:
        """Appends inputs."""
        node.input.extend(self.edit.text(tensor) for tensor in tensors)

    def replace_input(self, node: node_def_pb2.NodeDef, index: int, tensor: Tensor) -> None:
        """Sets one input."""
        node.input[index] = self.edit.text(tensor)

    def add(self, node: node_def_pb2.NodeDef) -> str:
        """Adds the node just before `base`, or in its place, and returns its name."""
        self.edit.add(node, at=self.base)
        return node.name

    def take_name(self, node: node_def_pb2.NodeDef) -> None:
        """Gives a node that is not added yet the name of `base`, with its recorded shape."""
        stock = self.edit.view.nodes[self.base]
        node.name = stock.name
        node.attr.pop("_output_shapes", None)
        if "_output_shapes" in stock.attr:
            shapes = node.attr["_output_shapes"].list.shape
            shapes.add().CopyFrom(stock.attr["_output_shapes"].list.shape[0])
        if stock.HasField("experimental_debug_info"):
            node.experimental_debug_info.CopyFrom(stock.experimental_debug_info)

    def result(
        self,
        op: str,
        inputs: tuple[Tensor, ...],
        types: Mapping[str, int],
        attrs: Mapping[str, AttrValue] | None = None,
    ) -> None:
        """Adds a node in the place of `base`."""
        node = self.replacement(op)
        self.inputs(node, *inputs)
        set_types(node, **types)
        set_attrs(node, **(attrs or {}))
        self.add(node)

    def shared(
        self,
        role: str,
        op: str,
        inputs: tuple[Tensor, ...],
        types: Mapping[str, int],
        attrs: Mapping[str, AttrValue] | None = None,
    ) -> Tensor:
        """Returns output 0 of a node that all lookups with the same inputs share."""
        attrs = attrs or {}
        key = (op, inputs, *types.items(), *attrs.items(), self.device)
        if key not in self.edit.shared:
            node = self.node(role, op)
            self.inputs(node, *inputs)
            set_types(node, **types)
            set_attrs(node, **attrs)
            self.edit.shared[key] = self.add(node)
        return Tensor(self.edit.shared[key])

    def constant(self, role: str, value: npt.NDArray[Any], device: str | None = None) -> Tensor:
        """Returns a constant, one for all lookups that need it on the device.

        Args:
            role: what its name ends with.
            value: the elements; not of strings that may end in zeros, see `texts`.
            device: where it is.
        """
        return self._constant(role, tensor_util.make_tensor_proto(value, shape=value.shape), device)

    def texts(self, role: str, texts: Sequence[bytes]) -> Tensor:
        """Returns a constant vector of any bytes."""
        proto = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=texts)
        proto.tensor_shape.dim.add(size=len(texts))
        return self._constant(role, proto, None)

    def text(self, role: str, text: bytes) -> Tensor:
        """Returns a constant without dimensions, of any bytes."""
        proto = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[text])
        proto.tensor_shape.SetInParent()
        return self._constant(role, proto, None)

    def _constant(self, role: str, proto: tensor_pb2.TensorProto, device: str | None) -> Tensor:
        device = self.device if device is None else device
        wait = self.frame_anchor()
        key = ("Const", proto.SerializeToString(deterministic=True), device, wait)
        if key not in self.edit.shared:
            node = self.node(role, "Const", device)
            node.attr["value"].tensor.CopyFrom(proto)
            set_types(node, dtype=proto.dtype)
            self.edit.shared[key] = self.add(node)
            self.edit.wait(node.name, wait)
        return Tensor(self.edit.shared[key])

    def frame_anchor(self) -> tuple[str, ...]:
        """Returns what a constant waits for so that it lives in the lookup's while loop.

        In a v1 loop a node without inputs belongs to no iteration. Elsewhere nothing is needed.
        """
        return (self.frame,) if self.edit.view.has_loops else ()


def set_types(node: node_def_pb2.NodeDef, **types: int | Sequence[int]) -> None:
    """Sets type attributes, and lists of types."""
    for key, value in types.items():
        if isinstance(value, Sequence):
            node.attr[key].list.type.extend(value)
        else:
            node.attr[key].type = value


def set_attrs(node: node_def_pb2.NodeDef, **attrs: AttrValue) -> None:
    """Sets attributes other than types."""
    for key, value in attrs.items():
        if isinstance(value, bool):
            node.attr[key].b = value
        elif isinstance(value, int):
            node.attr[key].i = value
        elif isinstance(value, float):
            node.attr[key].f = value
        else:
            node.attr[key].s = value if isinstance(value, bytes) else value.encode()


def set_lists(node: node_def_pb2.NodeDef, **attrs: Sequence[AttrValue]) -> None:
    """Sets attributes that are lists, of numbers or of strings."""
    for key, values in attrs.items():
        target = node.attr[key].list
        target.SetInParent()
        kinds = {type(value) for value in values}
        if kinds == {bool}:
            target.b.extend(values)
        elif kinds == {int}:
            target.i.extend(values)
        elif kinds == {str}:
            target.s.extend(str(value).encode() for value in values)
        elif kinds == {bytes}:
            target.s.extend(values)
        else:
            target.f.extend(values)
