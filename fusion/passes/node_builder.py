"""Makes the nodes of one lookup's rewrite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
from tensorflow.core.framework import node_def_pb2
from tensorflow.python.framework import tensor_util

from fusion.passes.edit import GraphEdit
from fusion.passes.graph_view import Tensor
from fusion.passes.spec import LookupSpec

AttrValue = bool | int | float | str


@dataclass
class NodeBuilder:
    """Adds nodes to an edit, named after the lookup they belong to.

    Attributes:
        edit: the rewrite.
        known: names of the nodes that several lookups may share, by what they compute.
        spec: the lookup.
    """

    edit: GraphEdit
    known: dict[tuple[object, ...], str]
    spec: LookupSpec

    @property
    def device(self) -> str:
        """Where the lookup's own nodes go: the device of its segment reduction."""
        return self.edit.view.nodes[self.spec.anchor].device

    def node(self, role: str, op: str, device: str | None = None) -> node_def_pb2.NodeDef:
        """Returns a new node, not added yet."""
        name = self.edit.unique_name(f"{self.spec.output.node}/{role}")
        device = self.device if device is None else device
        return node_def_pb2.NodeDef(name=name, op=op, device=device)

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

    def replace_input(self, node: node_def_pb2.NodeDef, place: int, tensor: Tensor) -> None:
        """Sets one input."""
        node.input[place] = self.edit.text(tensor)

    def add(self, node: node_def_pb2.NodeDef) -> str:
        """Adds the node just before the lookup's output and returns its name."""
        self.edit.add(node, at=self.spec.output.node)
        return node.name

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
        if key not in self.known:
            node = self.node(role, op)
            self.inputs(node, *inputs)
            set_types(node, **types)
            set_attrs(node, **attrs)
            self.known[key] = self.add(node)
        return Tensor(self.known[key])

    def constant(self, role: str, value: npt.NDArray[Any], device: str | None = None) -> Tensor:
        """Returns a constant, one for all lookups that need it on the device."""
        device = self.device if device is None else device
        wait = self._frame_anchor()
        key = ("Const", value.shape, value.tobytes(), value.dtype.name, device, wait)
        if key not in self.known:
            node = self.node(role, "Const", device)
            proto = tensor_util.make_tensor_proto(value, shape=value.shape)
            node.attr["value"].tensor.CopyFrom(proto)
            set_types(node, dtype=proto.dtype)
            self.known[key] = self.add(node)
            self.edit.wait(node.name, wait)
        return Tensor(self.known[key])

    def _frame_anchor(self) -> tuple[str, ...]:
        """Returns what a constant waits for so that it lives in the lookup's while loop.

        In a v1 loop a node without inputs belongs to no iteration. Elsewhere nothing is needed.
        """
        return (self.spec.ids.values.node,) if self.edit.view.has_loops else ()


def set_types(node: node_def_pb2.NodeDef, **types: int) -> None:
    """Sets type attributes."""
    for key, value in types.items():
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
            node.attr[key].s = value.encode()


def keep_shape(stock: node_def_pb2.NodeDef, node: node_def_pb2.NodeDef) -> None:
    """Copies the replaced tensor's recorded static shape; the second output has one per row."""
    if "_output_shapes" not in stock.attr:
        return
    result = stock.attr["_output_shapes"].list.shape[0]
    shapes = node.attr["_output_shapes"].list.shape
    shapes.add().CopyFrom(result)
    if result.unknown_rank or not result.dim:
        shapes.add().unknown_rank = True
    else:
        shapes.add().dim.add().size = result.dim[0].size
