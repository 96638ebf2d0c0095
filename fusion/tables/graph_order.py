"""The order of what reads and restores embedding variables, where it is ops of a graph.

Eagerly, and in a function, ops run in the order in which they are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from fusion.runtime.process import notes
from fusion.runtime.tensorflow.private import FuncGraph

_GATES = "table_gates"


def after(what: Any) -> Any:
    """A context in which ops of a graph wait for an op or a tensor."""
    return tf.control_dependencies(in_graph([] if what is None else [what]))


def in_graph(what: Sequence[Any]) -> Sequence[Any]:
    """What a graph can wait for: nothing of what has run already."""
    return [] if tf.executing_eagerly() else what


def is_of_session() -> bool:
    """Whether ops are those of a graph of `tf.compat.v1`, which run in any order."""
    graph = tf.compat.v1.get_default_graph()
    return not tf.executing_eagerly() and not isinstance(graph, FuncGraph)


def table_gate(read: tf.Tensor, index: Any) -> Any:
    """What a slot waits for that is restored in a graph: the table, if the same restore has it.

    It may be made before the table's ops are. None where ops run in their order.

    Args:
      read: what is restored, as it was read.
      index: the variable of the embedding variable's index.
    """
    if not is_of_session():
        return None
    file, known = _file_of(read), notes(tf.compat.v1.get_default_graph(), _GATES)
    if file is None:
        return None
    for other_file, other_index, gate in known:
        if other_file is file and other_index is index:
            return gate
    with tf.control_dependencies(None):
        gate = tf.no_op()
    known.append((file, index, gate))
    return gate


def table_is_restored(read: tf.Tensor, index: Any, restored: tf.Operation) -> None:
    """Has slots wait for a table that is restored; see `table_gate`."""
    gate = table_gate(read, index)
    if gate is not None:
        gate._add_control_input(restored)


def _file_of(read: tf.Tensor) -> Any:
    """The tensor of the file's name that a tensor was read by; None if it is of no file."""
    ops, seen = [read.op], set()
    while ops:
        op = ops.pop()
        if op.type == "RestoreV2":
            return op.inputs[0]
        if op.name not in seen:
            seen.add(op.name)
            ops.extend(tensor.op for tensor in op.inputs)
    return None
