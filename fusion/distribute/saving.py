"""Shards saved as one table, and restored from it into any number of replicas."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from fusion.distribute.exchange import COUNTS, WHOLE, Peers
from fusion.distribute.layout import BLOCK_ROWS, Layout, positions
from fusion.distribute.replicas import Replicas
from fusion.runtime.tensorflow.private import Trackable
from fusion.tables.checkpoint import copy_saved, when_written
from fusion.tables.keyed_rows import gather_rows
from fusion.tables.replicas import beside

#: The name of what is saved.
WHOLE_TABLE = "table"

#: Where that is put together.
_HOST = "CPU:0"


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

    def _copy_trackable_to_cpu(self, object_map: Any) -> None:
        (first, *_) = (variable() for variable in self._variables.values())
        copy_saved(self, self.saved_tensors, first.device, object_map)

    def _restore_from_tensors(self, restored_tensors: Mapping[str, tf.Tensor]) -> Any:
        return self.restore(restored_tensors)

    def saved_tensors(self) -> Mapping[str, tf.Tensor]:
        """The whole, [rows, D]; in processes other than the first, which writes it, no rows."""
        (one, *_) = (variable() for variable in self._variables.values())
        peers, size = self.replicas.peers, BLOCK_ROWS * self.layout.count
        is_writer = peers is None or peers.rank == 0
        with tf.device(_HOST):
            shape = [self.layout.rows if is_writer else 0, one.shape[1]]
            whole = tf.raw_ops.Empty(shape=shape, dtype=one.dtype)
        for first in range(0, self.layout.rows, size):
            block_rows = self._block(range(first, first + size))
            with tf.device(_HOST):
                for numbers, rows in block_rows if is_writer else ():
                    whole = tf.raw_ops.InplaceUpdate(x=whole, i=numbers, v=rows)
        return {WHOLE_TABLE: whole}

    def _block(self, block: range) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Of each replica the numbers [n] of its rows in a block, and these, [n, D].

        Other processes send theirs to the first one, and have none of others.
        """
        numbers, own, peers = [], {}, self.replicas.peers
        for replica in range(self.layout.count):
            rows = self.layout.rows_of(replica)
            inside = positions(rows, block)
            some = rows[inside.start : inside.stop]
            numbers.append(tf.range(some.start, some.stop, some.step))
            if replica in self._variables:
                variable = self._variables[replica]()
                with beside(variable):
                    own[replica] = gather_rows(variable, tf.range(inside.start, inside.stop))
        if peers is None:
            return [(numbers[replica], rows) for replica, rows in own.items()]
        (rows,) = own.values()
        # All to the first process, nothing to others.
        parts = [tf.reshape(rows if peer == 0 else rows[:0], [-1]) for peer in range(peers.count)]
        width = 0 if peers.rank else rows.shape[1]
        sizes = [tf.size(some, tf.int64) * width for some in numbers]
        received = peers.exchange(WHOLE, parts, sizes)
        return [
            (some, tf.reshape(part, [-1, rows.shape[1]]))
            for some, part in zip(numbers, received, strict=True)
        ]

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
