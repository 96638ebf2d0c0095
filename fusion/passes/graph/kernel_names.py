"""Names of nodes by which TensorFlow may keep their kernels.

A Session keeps the kernels of stateful ops by the names of their nodes and their devices, for all
graphs that it makes of fetches; so do workers. Passes see such graphs one by one, and what they
make of the same nodes depends on what else is fetched. So the name of each new stateful node has a
digest of all that its kernel depends on: a kernel of that name is one for this node.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tensorflow.core.framework import node_def_pb2

from fusion.passes.graph.view import GraphView

_DIGITS = 12
#: No name that a program makes of a UUID ends in it.
_DIGEST = re.compile(rf"-x[0-9a-f]{{{_DIGITS}}}(?![0-9A-Za-z])")


def kernel_name(node: node_def_pb2.NodeDef) -> str:
    """Returns a node's name with the digest of its op and attrs."""
    digest = hashlib.blake2b(node.op.encode(), digest_size=_DIGITS // 2)
    for key, value in sorted(node.attr.items()):
        # The others are notes, which no kernel reads.
        if not key.startswith("_") or key == "_kernel":
            digest.update(key.encode() + b"\0" + value.SerializeToString(deterministic=True))
    return f"{node.name}-x{digest.hexdigest()}"


def plain_name(text: str) -> str:
    """Returns a name, or a text with names, without digests: as the program has them."""
    return _DIGEST.sub("", text)


@dataclass(frozen=True)
class KernelNames:
    """The names of new nodes whose kernels may be kept by them.

    Attributes:
        view: the graph.
        added: all new nodes, by the names that they have so far.
        final: the names of those that get another one.
    """

    view: GraphView
    added: Mapping[str, node_def_pb2.NodeDef] = field(default_factory=dict)
    final: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(view: GraphView, added: Mapping[str, node_def_pb2.NodeDef]) -> KernelNames:
        """Returns the names of new nodes, whose attrs do not change any more."""
        final: dict[str, str] = {}
        taken = {*view.nodes, *added}
        for name, node in added.items():
            definition = view.signatures.op_def(node.op)
            if definition is None or definition.is_stateful:
                base = final[name] = kernel_name(node)
                number = 0
                while final[name] in taken:
                    number += 1
                    final[name] = f"{base}_{number}"
                taken.add(final[name])
        return KernelNames(view, added, final)

    def name(self, name: str) -> str:
        """Returns the final name of a node."""
        return self.final.get(name, name)

    def text(self, text: str) -> str:
        """Returns an input string with the final name of its node."""
        mark = "^" if text[0] == "^" else ""
        name, colon, rest = text.removeprefix("^").partition(":")
        return f"{mark}{self.final[name]}{colon}{rest}" if name in self.final else text

    def applied(self, nodes: list[node_def_pb2.NodeDef]) -> list[node_def_pb2.NodeDef]:
        """Returns the nodes of the new graph with these names."""
        return [new for node in nodes for new in self._renamed(node)] if self.final else nodes

    def _renamed(self, node: node_def_pb2.NodeDef) -> Iterator[node_def_pb2.NodeDef]:
        """Yields a node, and behind one that was to take over a name what has the name."""
        is_renamed = node.name in self.final
        inputs, groups = [*map(self.text, node.input)], [*self._groups(node)]
        if not is_renamed and inputs == list(node.input) and not groups:
            yield node
            return
        new = node_def_pb2.NodeDef()
        new.CopyFrom(node)
        new.name, new.input[:] = self.name(node.name), inputs
        if groups:
            new.attr["_class"].list.s[:] = groups
        yield new
        if is_renamed and node.name in self.view.nodes:
            yield from self._result(node.name, new)

    def _groups(self, node: node_def_pb2.NodeDef) -> Iterable[bytes]:
        """Returns a node's colocation groups, none where no name in them changes."""
        groups = list(node.attr["_class"].list.s) if "_class" in node.attr else []
        names = [group.decode().removeprefix("loc:@") for group in groups]
        if self.final.keys().isdisjoint(names):
            return []
        return [f"loc:@{self.name(name)}".encode() for name in names]

    def _result(self, name: str, new: node_def_pb2.NodeDef) -> Iterator[node_def_pb2.NodeDef]:
        """Yields what has the result of a new node under the name of an old one.

        Fetches by name and reports need it; TensorFlow runs it for nothing else.
        """
        view, outputs = self.view, self.view.signatures.outputs(new)
        result = node_def_pb2.NodeDef(name=name, op="NoOp", device=new.device)
        if view.signatures.outputs(view.nodes[name]) and outputs:
            result.op = "Identity"
            result.input.append(f"{new.name}:{outputs[0]}" if view.function else new.name)
            result.attr["T"].type = view.signatures.output_types(new)[0]
            if "_output_shapes" in new.attr:
                result.attr["_output_shapes"].CopyFrom(new.attr["_output_shapes"])
            yield result
        elif name in view.preserved or name in view.awaited:
            result.input.append(f"^{new.name}")
            yield result
