"""Stock ops that make ids of texts."""

from __future__ import annotations

from dataclasses import dataclass

from tensorflow.core.framework import types_pb2

from fusion.passes.graph.values import Node, Value
from fusion.schema.attributes import STOCK_HASHES

_INTEGERS = frozenset({types_pb2.DT_INT32, types_pb2.DT_INT64})
_HASHED = _INTEGERS | {types_pb2.DT_STRING}
#: The attrs of AsString by which it writes an integer as it is.
_PLAIN = {"width": -1, "precision": -1}


@dataclass(frozen=True)
class HashSpec:
    """A node that hashes strings, or integers as text.

    Attributes:
        node: the node.
        values: what it hashes.
        hash: as of the fused op.
        buckets: how many there are.
        key: two words, of "strong".
    """

    node: Node
    values: Value
    hash: str
    buckets: int
    key: tuple[int, int] = (0, 0)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of all of the nodes."""
        return (self.node.name,)

    @property
    def is_of_numbers(self) -> bool:
        """Whether integers are hashed."""
        return self.values.dtype in _INTEGERS


def match_hash(node: Node) -> HashSpec | None:
    """Returns what a node hashes; None if it does something else."""
    if node.op not in STOCK_HASHES:
        return None
    kind, values, key = STOCK_HASHES[node.op], node.input(0), (0, 0)
    if kind == "strong":
        attr = node.attr("key")
        if attr is None or len(attr.list.i) != 2:
            return None
        key = (attr.list.i[0], attr.list.i[1])
    writer = values.producer
    if writer.op == "AsString" and _is_plain(writer):
        values = writer.input(0)
    if values.dtype not in _HASHED:
        return None
    return HashSpec(node, values, kind, node.int_attr("num_buckets"), key)


def _is_plain(writer: Node) -> bool:
    """Whether AsString writes the digits of integers and nothing else."""
    if writer.controls or writer.input(0).dtype not in _INTEGERS:
        return False
    flags = writer.flag_attr("scientific"), writer.flag_attr("shortest"), writer.text_attr("fill")
    return not any(flags) and all(writer.int_attr(key) == value for key, value in _PLAIN.items())
