"""Which library functions a node refers to."""

from __future__ import annotations

from collections.abc import Iterator

from tensorflow.core.framework import attr_value_pb2, node_def_pb2


def called(node: node_def_pb2.NodeDef) -> Iterator[str]:
    """Yields the op's name, which may be a function's, and every function in an attribute."""
    yield node.op
    for value in node.attr.values():
        yield from _functions_in(value)


def _functions_in(value: attr_value_pb2.AttrValue) -> Iterator[str]:
    if value.HasField("func"):
        yield value.func.name
    elif value.HasField("list"):
        yield from (func.name for func in value.list.func)
