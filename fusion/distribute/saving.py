"""Shards saved as one table, and restored from it into any number of replicas."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.trackable.base import Trackable

from fusion.distribute.exchange import COUNTS, WHOLE, Peers
from fusion.distribute.layout import Layout
from fusion.distribute.replicas import Replicas
from fusion.tables.checkpoint import when_written

#: The name of what is saved.
WHOLE_TABLE = "table"


class SavedShards(Trackable):
    """Variables of one thing, the table or a slot of it, one of each replica of this process.

    Attributes:
      layout: which rows each has.
      replicas: the replicas.
    """

    def __init__(self, layout: Layout, replicas: Replicas) -> None:
        self.layout, self.replicas = layout, replicas
        self._variables: dict[int, Any] = {}  # weak references
        self._waiting: dict[int, tf.Tensor] = {}

    def add(self, replica: int, variable: Any) -> None:
        """Adds the variable of a replica, which takes what was restored before it was there."""
        self._variables[replica] = weakref.ref(variable)
        waiting = self._waiting.pop(replica, None)
        if waiting is not None:
            with tf.init_scope():  # a function may make it
                variable.assign(waiting, read_value=False)

    def has(self, replica: int) -> bool:
        """Whether the variable of a replica was added."""
        return replica in self._variables

    def _serialize_to_tensors(self) -> Mapping[str, Any]:
        (first, *_) = (variable() for variable in self._variables.values())
        return when_written(self.saved_tensors, [WHOLE_TABLE], first.dtype, first.device)

    def _restore_from_tensors(self, restored_tensors: Mapping[str, tf.Tensor]) -> Any:
        return self.restore(restored_tensors)

    def saved_tensors(self) -> Mapping[str, tf.Tensor]:
        """The whole, [rows, D]; in processes other than the first, which writes it, no rows."""
        found = {replica: variable() for replica, variable in self._variables.items()}
        peers = self.replicas.peers
        if peers is None:
            shards = [found[replica].read_value() for replica in range(self.layout.count)]
            return {WHOLE_TABLE: self.layout.whole(shards)}
        own = found[peers.rank].read_value()
        shards = rows_in_first(own, peers)
        return {WHOLE_TABLE: self.layout.whole(shards) if peers.rank == 0 else own[:0]}

    def restore(self, tensors: Mapping[str, tf.Tensor]) -> Any:
        """Takes the rows of each replica from the whole."""
        whole, assigned = tensors[WHOLE_TABLE], []
        rows = tf.shape(whole)[0]
        checked = tf.debugging.assert_equal(
            rows, self.layout.rows, "rows of the checkpoint's table"
        )
        for replica in self.replicas.devices:
            with tf.control_dependencies([] if checked is None else [checked]):
                rows = self.layout.shard(whole, replica)
            variable = self._variables.get(replica, lambda: None)()
            if variable is None:
                self._waiting[replica] = rows
            else:
                assigned.append(variable.assign(rows, read_value=False))
        return None if tf.executing_eagerly() else tf.group(*assigned)


def rows_in_first(own: tf.Tensor, peers: Peers) -> list[tf.Tensor]:
    """What each process has, of any number of rows, in the first one; nothing in others.

    Args:
      own: what this one has, [n] or [n, D].
      peers: the processes, which all call it.
    """
    processes = range(peers.count)
    size = tf.bitcast(tf.size(own, tf.int64), tf.int32)
    sizes = peers.exchange(
        COUNTS, [size for _ in processes], [tf.constant(2, tf.int64)] * peers.count
    )
    is_first = tf.constant(peers.rank == 0, tf.int64)
    come = [is_first * tf.bitcast(size, tf.int64) for size in sizes]
    parts = [tf.reshape(own if peer == 0 else own[:0], [-1]) for peer in processes]
    received = peers.exchange(WHOLE, parts, come)
    return [tf.reshape(vector, [-1, *own.shape[1:]]) for vector in received]
