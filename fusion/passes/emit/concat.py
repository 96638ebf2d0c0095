"""Ops in the place of a concat, or of some of its inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tensorflow.core.framework import node_def_pb2

from fusion.passes.emit.node_builder import NodeBuilder, set_attrs
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.tensor import Tensor
from fusion.passes.plan.plan import Group
from fusion.passes.recognise.lookup import LookupMatch


@dataclass
class ConcatEmitter:
    """Puts the op of each group where its columns were."""

    edit: GraphEdit
    _parts: dict[str, list[tuple[Group, str]]] = field(default_factory=dict)

    def builder(self, group: Group, frame: str) -> NodeBuilder:
        """Returns a builder of nodes beside the group's concat, see `NodeBuilder`."""
        device = self.edit.view.nodes[group.concat].device
        return NodeBuilder(self.edit, group.concat, device, frame)

    def node(self, group: Group, build: NodeBuilder, op: str) -> node_def_pb2.NodeDef:
        """Returns the node for a group, of the concat's name if it is all of it; not added yet."""
        return build.replacement(op) if group.whole else build.node("grouped", op)

    def put(self, group: Group, name: str) -> None:
        """Lets the added node take its place; lookups have been taken out."""
        between = self.edit.view.inputs(group.concat)[group.start :][: len(group.columns)]
        if group.whole:
            between = tuple(self._inputs(group.concat, group.inner, name))
        for column, tensor in zip(group.columns, between, strict=True):
            if isinstance(column, LookupMatch):
                self.edit.remove(self.edit.view.aliases(tensor), name)
        if group.whole:
            self._replace(group.concat)
        else:
            self._parts.setdefault(group.concat, []).append((group, name))

    def finish(self) -> None:
        """Lets the concats that stay read the groups that are parts of them."""
        for concat, parts in self._parts.items():
            view = self.edit.view
            build = NodeBuilder(self.edit, concat, view.nodes[concat].device, "")
            inputs = list(view.inputs(concat))
            for group, name in sorted(parts, key=lambda part: part[0].start, reverse=True):
                inputs[group.start : group.start + len(group.columns)] = [Tensor(name)]
            node = build.copy("", concat)
            node.name = concat
            del node.input[:]
            build.inputs(node, *inputs)
            set_attrs(node, N=len(inputs) - 1)
            build.add(node)
            self._replace(concat)

    def _inputs(self, concat: str, inner: frozenset[str], successor: str) -> Iterator[Tensor]:
        """Yields a concat's inputs, those of inner ones in their place, which it takes out."""
        view = self.edit.view
        for tensor in view.inputs(concat)[:-1]:
            source = view.resolve(tensor).node
            if source in inner:
                self.edit.remove([*view.aliases(tensor), source], successor)
                yield from self._inputs(source, inner, successor)
            else:
                yield tensor

    def _replace(self, concat: str) -> None:
        self.edit.remove([concat], concat)
        self.edit.replace(Tensor(concat), Tensor(concat))
