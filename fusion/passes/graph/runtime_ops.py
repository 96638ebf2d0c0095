"""Whether nodes are known to the TensorFlow release that a graph is written for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from tensorflow.core.framework import graph_pb2, node_def_pb2, types_pb2

from fusion.runtime.tensorflow.private import op_def_registry, versions
from fusion.schema.op_history import NEWEST, OLDEST, PRODUCERS, Release, first_release, history

TOO_OLD = (
    f"the model is for a TensorFlow older than {OLDEST}, whose ops are not known: name a newer "
    "runtime"
)
"""Why nothing is written for releases before the history."""
IS_FOR = "the model is for"


class Use(NamedTuple):
    """What a node needs a runtime to know.

    Attributes:
        op: an op.
        attr: an attr of it; "" for the op alone.
        dtype: the DataType that is the value of the attr, 0 for values of other kinds.
    """

    op: str
    attr: str = ""
    dtype: int = 0

    def refusal(self, release: Release) -> str:
        """Returns why a lookup does not become what a release lacks."""
        return f"it needs TensorFlow {first_release(*self)} for {self}, and {IS_FOR} {release}"

    def __str__(self) -> str:
        if not self.attr:
            return self.op
        dtype = types_pb2.DataType.Name(self.dtype).removeprefix("DT_").lower()
        return f"{f'{dtype} as ' if self.dtype else ''}{self.attr} of {self.op}"


def recorded_release(graph_def: graph_pb2.GraphDef, version: str = "") -> Release:
    """Returns the TensorFlow release that a graph is from.

    Args:
        graph_def: the graph. Without a recorded version the release follows from its producer, and
            without a producer it is that of the running TensorFlow.
        version: of the TensorFlow that has saved it, as a SavedModel records it; "" if none is.
    """
    try:
        return Release.parse(version)
    except ValueError:
        producer = graph_def.versions.producer
    if not producer:
        return running_release()
    known = (number for number in PRODUCERS if number <= producer)
    return PRODUCERS.get(max(known, default=0), Release(0, 0))


def running_release() -> Release:
    """Returns the release of the running TensorFlow."""
    try:
        return Release.parse(versions.VERSION)
    except ValueError:
        return NEWEST


def uses(nodes: Iterable[node_def_pb2.NodeDef]) -> Iterator[Use]:
    """Yields what nodes need a runtime to know."""
    for node in nodes:
        yield Use(node.op)
        for key in sorted(node.attr):
            if not key.startswith("_"):
                yield Use(node.op, key, node.attr[key].type)


def lacking(
    node: node_def_pb2.NodeDef, release: Release, before: Iterable[node_def_pb2.NodeDef]
) -> Use | None:
    """Returns what a new node needs and a release lacks; None if it can load the node.

    Args:
        node: the node.
        release: the release.
        before: the nodes of the source, which may use what the release lacks, or what is missing
            in the history: the rewrite does not refuse that.
    """
    missing = [use for use in uses([node]) if not release.has(*use)]
    known = {*uses(one for one in before if one.op == node.op)} if missing else ()
    return next((use for use in missing if use not in known), None)


def drop_later_defaults(node: node_def_pb2.NodeDef, release: Release) -> None:
    """Takes out attrs that a release does not know, if they have the value that it goes by."""
    if release >= NEWEST:
        return
    later = [key for key in node.attr if not release.has(node.op, key) and _is_default(node, key)]
    for key in later:
        del node.attr[key]


def newer_than(graph_def: graph_pb2.GraphDef, release: Release) -> tuple[str, ...]:
    """Returns what of a graph is known to be newer than a release, each with its own release."""
    if release >= NEWEST:
        return ()
    functions = (function.node_def for function in graph_def.library.function)
    uses = (_newer(node, release) for node in chain(graph_def.node, *functions))
    newer = sorted({use for use in uses if use is not None})
    return tuple(f"{use} (TensorFlow {first_release(*use)})" for use in newer)


def _newer(node: node_def_pb2.NodeDef, release: Release) -> Use | None:
    """Returns the first thing that a node needs and that is known to be newer than a release."""
    attrs = history().get(node.op, {})
    for use in uses([node]):
        if use.attr in attrs and not release.has(*use) and not _is_default(node, use.attr):
            return use
    return None


def _is_default(node: node_def_pb2.NodeDef, key: str) -> bool:
    """Whether an attr has the value that its op goes by without it."""
    definition = op_def_registry.get(node.op)
    attrs = () if definition is None else definition.attr
    return any(
        attr.name == key and attr.HasField("default_value") and attr.default_value == node.attr[key]
        for attr in attrs
    )
