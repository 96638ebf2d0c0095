"""Ops in the place of a concat or pack, or of some of a concat's inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from tensorflow.core.framework import node_def_pb2, types_pb2

from fusion.passes.analysis.rearrangements import REARRANGEMENTS, rearranged_input
from fusion.passes.emit.node_builder import NodeBuilder, set_attrs, set_types
from fusion.passes.emit.sizes import shape_tensor
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node
from fusion.passes.plan.plan import Group, Place
from fusion.passes.recognise.lookup_match import LookupMatch


@dataclass(frozen=True)
class _Part:
    """What takes the place of some inputs of a concat or sum.

    Attributes:
        start, count: which.
        tensors: one, or as many as they were.
    """

    start: int
    count: int
    tensors: tuple[Tensor, ...]


@dataclass
class ConcatEmitter:
    """Puts the op of each group where its columns were."""

    edit: GraphEdit
    _parts: dict[str, list[_Part]] = field(default_factory=dict)
    _summed: set[Tensor] = field(default_factory=set)

    def builder(self, group: Group, frame: str) -> NodeBuilder:
        """Returns a builder of nodes beside the group's concat, see `NodeBuilder`."""
        device = self.edit.view.nodes[group.concat].device
        return NodeBuilder(self.edit, group.concat, device, frame)

    def node(self, group: Group, build: NodeBuilder, op: str) -> node_def_pb2.NodeDef:
        """Returns the node for a group, of the concat's name if it is all of it; not added yet."""
        return build.replacement(op) if group.whole else build.node("grouped", op)

    def put(self, group: Group, name: str) -> None:
        """Lets the added node take its place; lookups have been taken out."""
        for place in group.places:
            self._put_into(place, group, name)
        if group.places:
            return
        between = self.edit.view.inputs(group.concat)[group.start :][: len(group.columns)]
        if group.whole:
            between = tuple(self._inputs(group.concat, group.inner, name))
        for column, tensor in zip(group.columns, between, strict=True):
            if isinstance(column, LookupMatch):
                self._remove_between(column, tensor, name)
        if group.whole:
            self._replace(group.concat)
        else:
            part = _Part(group.start, len(group.columns), (Tensor(name),))
            self._parts.setdefault(group.concat, []).append(part)

    def finish(self) -> None:
        """Lets the concats and sums that stay read the groups that are parts of them."""
        for concat, parts in self._parts.items():
            view = self.edit.view
            build = NodeBuilder(self.edit, concat, view.nodes[concat].device, "")
            inputs = list(view.inputs(concat))
            for part in sorted(parts, key=lambda part: part.start, reverse=True):
                inputs[part.start : part.start + part.count] = part.tensors
            node = build.copy("", concat)
            node.name = concat
            del node.input[:]
            build.inputs(node, *inputs)
            set_attrs(node, N=len(inputs) - (node.op == "ConcatV2"))
            build.add(node)
            self._replace(concat)

    def _put_into(self, place: Place, group: Group, name: str) -> None:
        """Lets the matrix of a group take one of its places, in the shape that it has there."""
        view, join, count = self.edit.view, place.join, len(group.columns)
        build = NodeBuilder(self.edit, join, view.nodes[join].device, name)
        for column, tensor in zip(group.lookups, view.inputs(join)[place.start :], strict=False):
            self._remove_between(column, tensor, name)
        if view.op(join) == "AddN":
            tensors = tuple(self._summands(place, group, name))
            self._parts.setdefault(join, []).append(_Part(place.start, count, tensors))
            return
        node = build.replacement("Identity") if place.whole else None
        if place.shape is not None:
            node = build.replacement("Reshape") if place.whole else build.node("shaped", "Reshape")
        if node is not None:
            build.inputs(node, Tensor(name))
            if place.shape is not None:
                build.inputs(node, shape_tensor(build, place.shape, place.measured))
                set_types(node, Tshape=types_pb2.DT_INT32)
            set_types(node, T=group.lookups[0].full_spec.table.dtype)
            name = build.add(node)
        if place.whole:
            self._replace(join)
        else:
            self._parts.setdefault(join, []).append(_Part(place.start, count, (Tensor(name),)))

    def _summands(self, place: Place, group: Group, name: str) -> Iterator[Tensor]:
        """Yields the columns of a group's matrix, from nodes of the names that they had.

        TensorFlow's optimizer sorts the inputs of an AddN by their names, which is the order of its
        additions then: outputs of one Split would be added in another one.
        """
        view, offset = self.edit.view, 0
        summands = view.inputs(place.join)[place.start :]
        for lookup, tensor in zip(group.lookups, map(view.resolve, summands), strict=False):
            table = lookup.full_spec.table
            _, width = table.shape
            assert width is not None
            if tensor not in self._summed:
                build = NodeBuilder(self.edit, tensor.node, view.nodes[place.join].device, name)
                node = build.replacement("Slice")
                begin = build.constant("begin", np.array([0, offset], np.int32))
                size = build.constant("size", np.array([-1, width], np.int32))
                build.inputs(node, Tensor(name), begin, size)
                set_types(node, T=table.dtype, Index=types_pb2.DT_INT32)
                build.add(node)
                self._summed.add(tensor)
            offset += width
            yield Tensor(tensor.node)

    def _remove_between(self, lookup: LookupMatch, tensor: Tensor, successor: str) -> None:
        """Takes out what hands on a lookup's result to an input of a join."""
        view, output = self.edit.view, lookup.full_spec.output
        names = [*view.aliases(tensor)]
        tensor = view.resolve(tensor)
        while tensor != output and view.op(tensor.node) in REARRANGEMENTS:
            inner = rearranged_input(Node(view, tensor.node)).tensor
            names += [tensor.node, *view.aliases(inner)]
            tensor = view.resolve(inner)
        self.edit.remove(names, successor)

    def _inputs(self, concat: str, inner: frozenset[str], successor: str) -> Iterator[Tensor]:
        """Yields a join's inputs, those of inner ones in their place, which it takes out."""
        view = self.edit.view
        inputs = view.inputs(concat)
        for tensor in inputs if view.op(concat) == "Pack" else inputs[:-1]:
            source, names = view.resolve(tensor), [*view.aliases(tensor)]
            while source.node not in inner and view.op(source.node) in REARRANGEMENTS:
                below = rearranged_input(Node(view, source.node)).tensor
                names += [source.node, *view.aliases(below)]
                source = view.resolve(below)
            if source.node in inner:
                self.edit.remove([*names, source.node], successor)
                yield from self._inputs(source.node, inner, successor)
            else:
                yield tensor

    def _replace(self, concat: str) -> None:
        self.edit.remove([concat], concat)
        self.edit.replace(Tensor(concat), Tensor(concat))
