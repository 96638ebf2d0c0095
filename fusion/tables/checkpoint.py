"""Checkpoints of embedding variables: rows of keys, in place of whole variables.

A table and its slots are as large as their capacity, and the words of an index mean nothing in
another process. So each of these variables is saved as keys and what belongs to them, by
`tf.train.Checkpoint` and the Saver of `tf.compat.v1`. A restored variable gives the keys rows, if
they have none, wherever these are: so variables can be restored in any order, into any capacity.
Restoring the index takes the keys out that the checkpoint does not have.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.training.saving import saveable_object, saveable_object_util

from fusion import ops
from fusion.tables.initial_rows import ZerosOnDemand

#: What makes the tensors that a variable is saved as, by name.
Save = Callable[[], Mapping[str, tf.Tensor]]
#: Takes them, and returns what is to be done for it in a graph.
Restore = Callable[[Mapping[str, tf.Tensor]], Any]

_SAVED_BY_KEYS = "_fusion_is_saved_by_keys"


def save_by_keys(variable: Any, save: Save, restore: Restore) -> None:
    """Has a variable saved and restored in another way than as a whole."""
    variable._serialize_to_tensors = save
    variable._restore_from_tensors = restore
    setattr(variable, _SAVED_BY_KEYS, True)
    _extend_v1_saver()


def save_rows(variable: Any, index: Any, before: Callable[[], Any]) -> Mapping[str, tf.Tensor]:
    """The rows of keys that have one.

    Args:
      variable: [capacity, D].
      index: the variable of the index.
      before: is called first; in a graph what it returns is waited for.
    """
    with _after(before()):
        entries = ops.embedding_key_entries(index=index.handle)
    has_row = entries.rows >= 0
    rows = tf.boolean_mask(entries.rows, has_row)
    values = tf.raw_ops.ResourceGather(resource=variable.handle, indices=rows, dtype=variable.dtype)
    return {"keys": tf.boolean_mask(entries.keys, has_row), "values": values}


def restore_rows(
    tensors: Mapping[str, tf.Tensor],
    variable: Any,
    index: Any,
    begin: Callable[[], Any],
    fill: Callable[[], Any],
) -> tf.Operation | None:
    """Writes rows of keys, which get one if they have none.

    Args:
      tensors: of `save_rows`.
      variable, index: likewise.
      begin: makes an empty index where there is none; what it returns is waited for.
      fill: fills rows that were never filled; in a graph what it returns is waited for.

    Raises:
      tf.errors.InvalidArgumentError: rows of another size.
      tf.errors.ResourceExhaustedError: there is no room for all keys.
    """
    keys, values = tensors["keys"], tensors["values"]
    width = tf.debugging.assert_equal(
        tf.shape(values)[1],
        variable.shape[1],
        f"the checkpoint has rows of another dimension than {variable.name}",
    )
    zeros = ZerosOnDemand()
    with _after(width):
        ready = initialize(variable, lambda: zeros(variable.shape, variable.dtype))
    with _after(begin()), _after(ready):
        rows = ops.add_embedding_keys(
            index=index.handle,
            keys=keys,
            counts=tf.zeros_like(keys, tf.int32),
            steps=tf.zeros_like(keys),
        )
    with _after(rows), _after(fill()):
        return tf.raw_ops.ResourceScatterUpdate(
            resource=variable.handle, indices=rows, updates=tf.cast(values, variable.dtype)
        )


def save_index(index: Any, before: Callable[[], Any]) -> Mapping[str, tf.Tensor]:
    """All keys, with what is known of each."""
    with _after(before()):
        entries = ops.embedding_key_entries(index=index.handle)
    return {"keys": entries.keys, "counts": entries.counts, "steps": entries.steps}


def restore_index(
    tensors: Mapping[str, tf.Tensor], index: Any, begin: Callable[[], Any]
) -> tf.Operation | None:
    """Makes the keys those of a checkpoint; `begin` as in `restore_rows`."""
    with _after(begin()):
        known = ops.embedding_key_entries(index=index.handle).keys
    others = tf.raw_ops.ListDiff(x=known, y=tensors["keys"]).out
    removed = ops.remove_embedding_keys(
        index=index.handle, keys=others, release=tf.constant(0, tf.int64)
    )
    with _after(removed):
        rows = ops.add_embedding_keys(index=index.handle, **tensors)
    return None if tf.executing_eagerly() else rows.op


def initialize(variable: Any, initial_value: Callable[[], tf.Tensor]) -> Any:
    """In a graph, an op that gives a variable its initial value if it has none."""
    if tf.executing_eagerly():
        return None

    def assign() -> tf.Tensor:
        value = initial_value()
        assigned = tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)
        with tf.control_dependencies([assigned]):
            return tf.constant(True)

    is_initialized = tf.raw_ops.VarIsInitializedOp(resource=variable.handle)
    return tf.cond(is_initialized, lambda: tf.constant(False), assign)


def _after(what: Any) -> Any:
    """A context in which ops of a graph wait for an op or a tensor."""
    waits = [] if what is None or tf.executing_eagerly() else [what]
    return tf.control_dependencies(waits)


class _KeyedSaveable(saveable_object.SaveableObject):
    """A variable that is saved by keys, for the Saver of `tf.compat.v1`."""

    def __init__(self, variable: Any) -> None:
        self._variable = variable
        name = variable.op.name if not tf.executing_eagerly() else variable._shared_name
        tensors = variable._serialize_to_tensors()
        self._names = tuple(tensors)
        specs = [
            saveable_object.SaveSpec(tensor, "", f"{name}/{part}")
            for part, tensor in tensors.items()
        ]
        super().__init__(variable, specs, name)

    def restore(self, restored_tensors: list[tf.Tensor], restored_shapes: Any) -> Any:
        """Assigns what was read."""
        del restored_shapes
        tensors = dict(zip(self._names, restored_tensors, strict=True))
        return self._variable._restore_from_tensors(tensors)


def _extend_v1_saver() -> None:
    """Has the Saver of `tf.compat.v1` save variables by keys that want it.

    TensorFlow has no hook for it: the function that makes names of variables is replaced by one
    that does the same for all others.
    """
    known = saveable_object_util.op_list_to_dict
    if hasattr(known, _SAVED_BY_KEYS):
        return

    @functools.wraps(known)
    def op_list_to_dict(op_list: Any, *args: Any, **named: Any) -> Any:
        if isinstance(op_list, list | tuple | set):
            op_list = [
                _KeyedSaveable(op) if getattr(op, _SAVED_BY_KEYS, False) else op
                for op in tf.nest.flatten(list(op_list))
            ]
        return known(op_list, *args, **named)

    setattr(op_list_to_dict, _SAVED_BY_KEYS, True)
    saveable_object_util.op_list_to_dict = op_list_to_dict
