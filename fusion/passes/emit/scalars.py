"""Numbers that several updates need, from nodes of their own in each update."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fusion.passes.analysis.order import Order
from fusion.passes.analysis.variables import has_other_handles, writers
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.tensor import Tensor

#: So many ops deep a number is looked at.
_MAX_DEPTH = 24


@dataclass
class SharedScalars:
    """Finds out which scalars are equal; the nodes of all but one of them go.

    An optimizer reads its learning rate, and computes the same of it, for each table again.

    Attributes:
        edit: the rewrite.
    """

    edit: GraphEdit
    _keys: dict[Tensor, int | None] = field(default_factory=dict)
    _known: dict[Any, int] = field(default_factory=dict)
    _first: dict[Any, Tensor] = field(default_factory=dict)

    def of(self, scalar: Tensor, reader: str) -> Tensor:
        """Returns the tensor to read for a scalar, which may be another with the same value.

        Args:
            scalar: of the graph.
            reader: the new node that reads it.
        """
        key = self._key(scalar, 0)
        if key is None:
            return scalar
        first = self._first.setdefault(key, scalar)
        if first != scalar:
            self.edit.remove_pure(self._cone(scalar), reader)
        return first

    def _key(self, tensor: Tensor, depth: int) -> int | None:
        """A number that equal tensors have alone; None if it is not known which are."""
        view = self.edit.view
        if not view.preserved.isdisjoint((tensor.node, *view.aliases(tensor))):
            return None  # It may be fed.
        tensor = view.resolve(tensor)
        if tensor not in self._keys:
            key = self._computed_key(tensor, depth)
            self._keys[tensor] = (
                None if key is None else self._known.setdefault(key, len(self._known))
            )
        return self._keys[tensor]

    def _computed_key(self, tensor: Tensor, depth: int) -> Any:
        """What a tensor is computed by, equal for equal ones; None if that is not known."""
        view, name = self.edit.view, tensor.node
        if depth > _MAX_DEPTH or name not in view.nodes or name in view.preserved:
            return None
        node, controls = view.nodes[name], tuple(sorted(view.controls(name)))
        if node.op == "ReadVariableOp":
            return self._version(name)
        if node.op == "Merge":
            return None  # Which of its inputs it is depends on what is taken.
        if view.signatures.is_stateful(node.op) or (not view.inputs(name) and node.op != "Const"):
            return None
        keys = [self._key(operand, depth + 1) for operand in view.inputs(name)]
        if None in keys:
            return None
        attrs = [
            (key, value.SerializeToString(deterministic=True))
            for key, value in sorted(node.attr.items())
            if not key.startswith("_")
        ]
        return (node.op, tensor.index, node.device, tuple(attrs), tuple(keys), controls)

    def _version(self, read: str) -> Any:
        """A variable and the changes that a read of it comes after; None if that is not known."""
        view = self.edit.view
        handle = view.resolve(view.inputs(read)[0])
        is_number = view.variable_shape(handle) == () and handle == view.origin(handle)
        if not is_number or has_other_handles(view, handle):
            return None
        changes = writers(view, handle)
        before = [change for change in changes if self._order.is_before(change, read)]
        after = [change for change in changes if self._order.is_before(read, change)]
        controls = tuple(sorted(view.controls(read)))
        return (handle, controls, *before) if len(before) + len(after) == len(changes) else None

    @cached_property
    def _order(self) -> Order:
        """Of all reads and writes of numbers."""
        view = self.edit.view
        reads = [*view.named("ReadVariableOp")]
        handles = dict.fromkeys(view.resolve(view.inputs(name)[0]) for name in reads)
        scalars = [handle for handle in handles if view.variable_shape(handle) == ()]
        changes = [name for handle in scalars for name in writers(view, handle)]
        return Order(view, [*reads, *changes])

    def _cone(self, scalar: Tensor) -> list[str]:
        """The nodes that a scalar is computed by."""
        view, seen = self.edit.view, dict[str, None]()
        stack = [scalar.node]
        while stack:
            name = stack.pop()
            if name in seen or name in view.preserved:
                continue
            seen[name] = None
            if view.op(name) != "ReadVariableOp":
                stack += (tensor.node for tensor in view.inputs(name))
        return [*seen]
