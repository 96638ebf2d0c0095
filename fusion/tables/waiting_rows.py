"""Rows that were restored of a slot, and wait for their keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from fusion.tables.graph_order import is_of_session


class WaitingRows:
    """Rows of a slot whose keys have none in the table, until that is restored.

    They are in variables, since restoring may be done by a graph, or by a function.
    """

    def __init__(self, slot: Any) -> None:
        self._variables: list[Any] = []
        if is_of_session():  # the table may be restored by ops that are made before the slot's
            self._make(slot)

    def _make(self, slot: Any) -> None:
        shapes = {tf.int64: [], slot.dtype: [int(slot.shape[1])]}
        # No strategy makes them, and no saver or initializer of a graph knows them.
        with tf.init_scope(), tf.device(slot.device or None):
            self._variables = [
                ResourceVariable(
                    lambda dtype=dtype, shape=shape: tf.zeros([0, *shape], dtype),
                    trainable=False,
                    collections=[],
                    name="waiting_rows",
                    dtype=dtype,
                    shape=[None, *shape],
                )
                for dtype, shape in shapes.items()
            ]

    def hold(self, slot: Any, keys: tf.Tensor, values: tf.Tensor) -> Sequence[Any]:
        """Has rows of keys wait instead of those that do; in a graph, the ops that do so.

        Args:
          slot: the slot.
          keys: int64 [n].
          values: [n, D].
        """
        if not self._variables:
            if tf.executing_eagerly() and keys.shape[0] == 0:
                return []
            self._make(slot)
        pairs = zip(self._variables, (keys, tf.cast(values, slot.dtype)), strict=True)
        return [variable.assign(value, read_value=False) for variable, value in pairs]

    def read(self) -> list[tf.Tensor] | None:
        """The keys [n] and rows [n, D] that wait; None if there were never any."""
        if not self._variables:
            return None
        if tf.executing_eagerly():
            return [variable.read_value() for variable in self._variables]
        return [_value_or_empty(variable) for variable in self._variables]


def _value_or_empty(variable: Any) -> tf.Tensor:
    """The value of a variable, none of its rows if it has none yet."""
    is_initialized = tf.raw_ops.VarIsInitializedOp(resource=variable.handle)
    empty = [0, *variable.shape[1:]]
    value: tf.Tensor = tf.cond(
        is_initialized,
        lambda: tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype),
        lambda: tf.zeros(empty, variable.dtype),
    )
    return value
