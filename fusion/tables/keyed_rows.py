"""The rows of keys as tensors: reads, saves and restores of a table and its slots.

Training goes on while a table is read: keys come, and rows go from evicted keys to others. The
index is read at one moment, and rows after it; a row counts if its key still has it then. A table
and its slots are read one after the other, so the table alone says which keys there are. What is
restored of a slot goes to keys that have a row, and waits for a table that is restored later; keys
that the slot does not have get initial values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from fusion import ops
from fusion.tables.graph_order import after, in_graph, table_gate, table_is_restored
from fusion.tables.slots import Slots

#: Gives a variable its initial value where it has none; what does so in a graph.
Begin = Callable[[Any], Any]

#: What an embedding variable is saved as: [n] of each key, and [rows, D] of those that have a row.
TABLE_TENSORS = ("keys", "counts", "steps", "values")


def gather_rows(variable: Any, rows: Any) -> tf.Tensor:
    """Rows of a variable, which is never read whole."""
    if tf.executing_eagerly():  # where the other op knows no shape of a variable of a server
        return tf.raw_ops.ResourceGather(
            resource=variable.handle, indices=rows, dtype=variable.dtype
        )
    # In a SavedModel a ResourceGather would look like a lookup.
    return tf.raw_ops.ResourceGatherNd(
        resource=variable.handle, indices=rows[:, tf.newaxis], dtype=variable.dtype
    )


def read_rows(
    variables: Sequence[Any], index: Any, keys: Any, rows: Any
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The rows [n, D] of keys in a table or slots, and a mask [n] of those that are theirs.

    Others have lost the row since, which another key may have by now.

    Args:
      variables: [capacity, D].
      index: the variable of the index.
      keys, rows: int64 [n], as the index had them.
    """
    values = [gather_rows(variable, rows) for variable in variables]
    with tf.control_dependencies(in_graph(values)):
        now = ops.find_embedding_keys(index=index.handle, keys=keys)
    return values, tf.equal(now, rows)


def _where(mask: tf.Tensor, *tensors: tf.Tensor) -> Sequence[tf.Tensor]:
    """The masked elements of tensors; the tensors themselves if that is all of them."""
    whole: Sequence[tf.Tensor] = tf.cond(
        tf.reduce_all(mask),
        lambda: list(tensors),
        lambda: [tf.boolean_mask(tensor, mask) for tensor in tensors],
    )
    return whole


def save_slot(slot: Any, index: Any, slots: Slots) -> Mapping[str, tf.Tensor]:
    """The rows of a slot, of keys that have one.

    Args:
      slot: [capacity, D].
      index: the variable of the index.
      slots: of the embedding variable.
    """
    entries = ops.embedding_key_entries(index=index.handle)
    has_row = entries.rows >= 0
    keys, rows = (tf.boolean_mask(some, has_row) for some in (entries.keys, entries.rows))
    with after(rows):
        filled = slots.fill(index, slot)
    with tf.control_dependencies(in_graph(filled)):
        (values,), are_theirs = read_rows([slot], index, keys, rows)
    keys, values = _where(are_theirs, keys, values)
    return {"keys": keys, "values": values}


def restore_slot(
    tensors: Mapping[str, tf.Tensor], slot: Any, index: Any, begin: Begin, slots: Slots
) -> tf.Operation | None:
    """Writes rows of a slot to those of keys; other keys get initial values.

    Rows of keys that have none wait until the table is restored, or are forgotten.

    Args:
      tensors: of `save_slot`.
      slot: [capacity, D].
      index: the variable of the index.
      begin: in a graph, gives a variable its initial value if it has none; is waited for.
      slots: of the embedding variable.

    Raises:
      tf.errors.InvalidArgumentError: rows of another size.
    """
    keys, values = tf.reshape(tensors["keys"], [-1]), tensors["values"]
    gate = table_gate(tensors["keys"], index)
    with after(_same_width(values, slot)), after(begin(slot)), after(begin(index)), after(gate):
        entries = ops.embedding_key_entries(index=index.handle)
        rows = ops.find_embedding_keys(index=index.handle, keys=keys)
    has_row = rows >= 0
    with tf.control_dependencies(in_graph([rows, entries.rows])):
        waiting = slots.hold(slot, *(tf.boolean_mask(x, ~has_row) for x in (keys, values)))
        written = _write(slot, index, slots, *(tf.boolean_mask(x, has_row) for x in (rows, values)))
        known = tf.boolean_mask(entries.rows, entries.rows >= 0)
        others = tf.raw_ops.ListDiff(x=known, y=rows).out
    with tf.control_dependencies(in_graph([written])):
        begun = slots.reset(others, begin, slot)
    return None if tf.executing_eagerly() else tf.group(waiting, written, *begun)


def put_slot_rows(keys: Any, values: Any, slot: Any, index: Any, slots: Slots) -> None:
    """Writes rows of a slot to those of keys that have one; eagerly. Other rows stay."""
    rows = ops.find_embedding_keys(index=index.handle, keys=keys)
    has_row = rows >= 0
    _write(slot, index, slots, *(tf.boolean_mask(x, has_row) for x in (rows, values)))


def _write(slot: Any, index: Any, slots: Slots, rows: tf.Tensor, values: tf.Tensor) -> Any:
    """Writes rows of a slot that keys have, after they have begun."""
    with tf.control_dependencies(in_graph([rows])):
        filled = slots.fill(index, slot)
    with tf.control_dependencies(in_graph(filled)):
        return tf.raw_ops.ResourceScatterUpdate(
            resource=slot.handle, indices=rows, updates=tf.cast(values, slot.dtype)
        )


def give_waiting(waiting: Sequence[Any], index: Any, slots: Slots, ends: bool) -> list[Any]:
    """Writes rows of slots that have waited for their keys, of keys that have got a row.

    Args:
      waiting: of `Slots.waiting`, before keys were added.
      index: the variable of the index.
      slots: of the embedding variable.
      ends: whether other rows wait no more.
    """
    writes = []
    for slot, keys, values, before in waiting:
        rows = ops.find_embedding_keys(index=index.handle, keys=keys)
        is_new, still_waits = (rows >= 0) & (before < 0), (rows < 0) & (not ends)
        new = (tf.boolean_mask(some, is_new) for some in (rows, values))
        writes.append(_write(slot, index, slots, *new))
        rest = (tf.boolean_mask(some, still_waits) for some in (keys, values))
        writes.append(slots.hold(slot, *rest))
    return writes


def put_rows(keys: tf.Tensor, values: tf.Tensor, table: Any, index: Any) -> tf.Tensor:
    """Gives keys rows of these values; returns which.

    Args:
      keys: int64 [n].
      values: [n, D].
      table, index: the variables of the embedding variable.
    """
    counts, steps = tf.zeros_like(keys, tf.int32), tf.zeros_like(keys)
    return _add(keys, counts, steps, values, table=table, index=index)


def _add(*entries: tf.Tensor, table: Any, index: Any) -> tf.Tensor:
    keys, counts, steps, values = entries
    return ops.add_embedding_keys(
        table=table.handle,
        index=index.handle,
        keys=keys,
        counts=counts,
        steps=steps,
        values=tf.cast(values, table.dtype),
        dim=table.shape[1],
    )


def save_table(
    table: Any, index: Any, initial: Any, begin: Begin, before: Callable[[], Any]
) -> Mapping[str, tf.Tensor]:
    """All keys, with their counts and steps, and the rows of those that have one, in order.

    Args:
      table: [capacity, D].
      index: the variable of the index.
      initial: the variable of what rows begin with.
      begin: as in `restore_slot`: who loads a SavedModel saves it before anything is restored.
      before: is called first; in a graph what it returns is waited for.
    """
    with after(begin(index)), after(begin(table)), after(before()):
        entries = ops.embedding_key_entries(index=index.handle)
    with after(begin(initial)):
        first = initial.read_value()
    has_row = entries.rows >= 0
    keys, rows = (tf.boolean_mask(some, has_row) for some in (entries.keys, entries.rows))
    (values,), are_theirs = read_rows([table], index, keys, rows)  # waits for all that
    is_there = tf.tensor_scatter_nd_update(tf.ones_like(has_row), tf.where(has_row), are_theirs)
    about_keys = _where(is_there, entries.keys, entries.counts, entries.steps)
    tensors = *about_keys, *_where(are_theirs, values)
    return {**dict(zip(TABLE_TENSORS, tensors, strict=True)), "initial": first}


def restore_table(
    tensors: Mapping[str, tf.Tensor],
    table: Any,
    index: Any,
    initial: Any,
    begin: Begin,
    slots: Slots,
) -> tf.Operation | None:
    """Makes keys and rows those of a checkpoint.

    Args:
      tensors: of `save_table`.
      table, index, initial: likewise.
      begin: as in `restore_slot`.
      slots: of the embedding variable: rows of keys that have none yet get initial values.

    Raises:
      tf.errors.InvalidArgumentError: rows of another size.
      tf.errors.ResourceExhaustedError: there is no room for all keys.
    """
    *about_keys, values = (tensors[name] for name in TABLE_TENSORS)
    keys, counts, steps = (tf.reshape(tensor, [-1]) for tensor in about_keys)
    with after(_same_width(values, table)), after(begin(index)), after(begin(table)):
        known = ops.embedding_key_entries(index=index.handle)
    has_row = known.rows >= 0
    with_row = tf.boolean_mask(known.keys, has_row), tf.boolean_mask(keys, steps >= 0)
    others = tf.raw_ops.ListDiff(x=with_row[0], y=with_row[1]).out
    waiting = tf.boolean_mask(known.keys, tf.logical_not(has_row))  # whose counts would add up
    removed = ops.remove_embedding_keys(
        index=index.handle,
        keys=tf.concat([others, waiting], 0),
        release=tf.constant(-1, tf.int64),
    )
    with after(removed):
        pending = ops.embedding_key_entries(index=index.handle).pending
        slot_rows = slots.waiting(index)
    resets = [pending, *slots.reset(pending, begin), *(before for *_, before in slot_rows)]
    with tf.control_dependencies(in_graph(resets)):
        rows = _add(keys, counts, steps, values, table=table, index=index)
    with after(rows):
        writes = give_waiting(slot_rows, index, slots, ends=True)
        own = getattr(initial, "_primary", initial)  # of a strategy's the one
        assigned = own.assign(tensors["initial"], read_value=False)
    if tf.executing_eagerly():
        return None
    restored = tf.group(assigned, *writes)
    table_is_restored(tensors["keys"], index, restored)
    return restored


def _same_width(values: tf.Tensor, variable: Any) -> Any:
    """Checks that rows of a checkpoint are of the dimension of a variable's."""
    return tf.debugging.assert_equal(
        tf.shape(values)[1],
        variable.shape[1],
        f"the checkpoint has rows of another dimension than {variable.name}",
    )


def initialize(variable: Any, initial_value: Callable[[], tf.Tensor]) -> Any:
    """Gives a variable its initial value if it has none; returns the op that does so in a graph."""
    if tf.executing_eagerly():
        if not variable.is_initialized():
            variable.assign(initial_value(), read_value=False)
        return None

    def assign() -> tf.Tensor:
        value = initial_value()
        assigned = tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)
        with tf.control_dependencies([assigned]):
            return tf.constant(True)

    is_initialized = tf.raw_ops.VarIsInitializedOp(resource=variable.handle)
    return tf.cond(is_initialized, lambda: tf.constant(False), assign)
