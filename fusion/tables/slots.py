"""Slots of embedding variables, which follow the rows of keys.

They are zeros on demand, whose rows are filled when keys get theirs, or stock's, which are filled
as a whole in the beginning.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from fusion import ops
from fusion.ops.tables.cpu_kernels.layout import MAX_SLOTS
from fusion.runtime.tensorflow.private import ResourceVariable
from fusion.tables.graph_order import is_of_session
from fusion.tables.initial_rows import takes_too_much


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
        # No strategy makes or places them, and no saver or initializer of a graph knows them.
        with tf.init_scope(), tf.device(None), tf.device(slot.device or None):
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


class _Slot(NamedTuple):
    """A slot that may be gone, and the initial value of its rows."""

    reference: weakref.ref[Any]
    values: Any  # [1, D]; None for zeros
    number: int | None  # None if its rows need not be filled
    is_filled: bool
    waiting: WaitingRows


class Slots:
    """The slots of an embedding variable.

    The index knows those on demand that begin with something else than zeros by number. A number is
    not used again: its rows are filled already.
    """

    def __init__(self) -> None:
        self._slots: list[_Slot] = []

    def add(self, slot: Any, values: Any, is_filled: bool = False) -> int | None:
        """The number of a new slot; None if its rows do not have to be filled.

        Args:
          slot: a variable [capacity, D].
          values: what its rows begin with, [1, D], None for zeros.
          is_filled: whether all of its rows have these values already, and are not zeros on demand.

        Raises:
          NotImplementedError: there are too many that do not begin with zeros.
        """
        numbers = sum(known.number is not None for known in self._slots)
        needs_number = values is not None and not is_filled
        if needs_number and numbers == MAX_SLOTS:
            raise NotImplementedError(
                f"{slot.name} is one of more than {MAX_SLOTS} optimizer variables of a table that "
                "do not begin with zeros"
            )
        number = numbers if needs_number else None
        waiting = WaitingRows(slot)
        self._slots.append(_Slot(weakref.ref(slot), values, number, is_filled, waiting))
        return number

    def is_filled(self, slot: Any) -> bool:
        """Whether it is a slot that was filled as a whole."""
        return any(known.is_filled and known.reference() is slot for known in self._slots)

    def beginning(self, slot: Any) -> tf.Tensor:
        """What a slot that is filled as a whole begins with."""
        values = next(known.values for known in self._slots if known.reference() is slot)
        first = tf.zeros([], slot.dtype) if values is None else values
        return tf.broadcast_to(first, slot.shape)

    @property
    def variables(self) -> list[Any]:
        """All slots in the order of `add`, None for those that are gone."""
        return [known.reference() for known in self._slots]

    def fill(self, index: Any, only: Any = None) -> list[tf.Tensor]:
        """Fills rows that keys have got since the last time, of all slots that are still there.

        Args:
          index: the variable of the index.
          only: a slot, to fill no other.

        Returns:
          For each slot with a number how many they were.
        """
        slots = [(known.reference(), known) for known in self._slots if known.number is not None]
        return [
            ops.fill_embedding_slot(
                slot=slot.handle,
                index=index.handle,
                values=known.values,
                dim=int(slot.shape[1]),
                number=known.number,
            )
            for slot, known in slots
            if slot is not None and (only is None or slot is only)
        ]

    def reset(self, rows: tf.Tensor, begin: Callable[[Any], Any], only: Any = None) -> list[Any]:
        """Resets rows of all slots that are still there to their initial values.

        Args:
          rows: int64 [n].
          begin: in a graph, gives a slot its initial value if it has none; is waited for.
          only: a slot, to reset no other.
        """
        slots = [(known.reference(), known.values) for known in self._slots]
        return [
            _reset(slot, values, rows, begin)
            for slot, values in slots
            if slot is not None and (only is None or slot is only)
        ]

    def hold(self, slot: Any, keys: tf.Tensor, values: tf.Tensor) -> Any:
        """Makes rows of a slot wait for their keys; see `WaitingRows`.

        Returns:
          In a graph, the op that does so.
        """
        known = next(known for known in self._slots if known.reference() is slot)
        writes = known.waiting.hold(slot, keys, values)
        return None if tf.executing_eagerly() else tf.group(*writes)

    def waiting(self, index: Any) -> list[tuple[Any, tf.Tensor, tf.Tensor, tf.Tensor]]:
        """The rows that wait for their keys.

        Args:
          index: the variable of the index.

        Returns:
          Of each slot itself, the keys [n], the values of their rows [n, D], and the rows that they
          have now, int64 [n], -1 for none.
        """
        slot_rows = [(known.reference(), known.waiting.read()) for known in self._slots]
        return [
            (slot, *rows, ops.find_embedding_keys(index=index.handle, keys=rows[0]))
            for slot, rows in slot_rows
            if slot is not None and rows is not None
        ]


def _reset(slot: Any, values: Any, rows: tf.Tensor, begin: Callable[[Any], Any]) -> Any:
    dimension = int(slot.shape[1])
    first = tf.zeros([1, dimension], slot.dtype) if values is None else values
    begun = begin(slot)
    with tf.control_dependencies([] if begun is None else [begun]):
        return tf.raw_ops.ResourceScatterUpdate(
            resource=slot.handle,
            indices=rows,
            updates=tf.broadcast_to(first, [tf.size(rows), dimension]),
        )


@contextlib.contextmanager
def following(variable: Any, first: Any, is_filled: bool = False) -> Iterator[None]:
    """A context in which an optimizer makes a variable that follows the rows of a table.

    The variable follows them before it can be restored.

    Args:
      variable: the embedding variable.
      first, is_filled: as of its `add_slot`.
    """

    def create(next_creator: Callable[..., Any], **arguments: Any) -> Any:
        slot = next_creator(**arguments)
        if has_rows(variable, slot.shape):
            variable.add_slot(slot, first, is_filled)
        return slot

    with tf.variable_creator_scope(create):
        yield


def first_values(initializer: Any, dimension: int, dtype: tf.DType) -> Any:
    """The initial value of a slot's rows, [1, D]; None for zeros.

    Args:
      initializer: of the slot, called with a shape and `dtype`.
      dimension, dtype: of the slot.

    Returns:
      An array, or in a graph a Tensor.
    """
    with tf.init_scope():  # the slot outlives the function that is being traced
        return known_values(tf.cast(initializer([1, dimension], dtype=dtype), dtype))


def known_values(values: tf.Tensor) -> Any:
    """The values of a tensor, itself if they are not known yet, None if all are zeros."""
    value = tf.get_static_value(values)
    if value is None:
        return values
    return value if np.any(value) else None


def first_values_of(initial_value: Any, slot_name: str) -> Any:
    """The initial value of the rows of a slot that is made of a value [capacity, D].

    Rows of different values are those of an average, and begin with zeros, as what no key has does
    in a table.

    Returns:
      As `first_values`.

    Raises:
      NotImplementedError: the value is not known in a graph.
    """
    if isinstance(initial_value, tf.Variable):
        return None
    value = tf.get_static_value(initial_value)
    if value is None:
        raise NotImplementedError(
            f"{slot_name} begins with rows that are not known yet, and cannot follow those of an "
            "embedding variable"
        )
    return known_values(tf.constant(value[:1])) if (value == value[:1]).all() else None


def is_too_large(variable: Any) -> bool:
    """Whether a slot of an embedding variable that is written as a whole takes too much memory."""
    return takes_too_much(variable.capacity, variable.dimension * variable.dtype.size)


def has_rows(variable: Any, shape: Any) -> bool:
    """Whether an optimizer's variable of this shape has something of each row of a table."""
    return len(shape) > 0 and int(shape[0]) == variable.capacity


def check_slot_shape(variable: Any, shape: Any, name: str) -> None:
    """Checks that a slot has a row of each key.

    Args:
      variable: the embedding variable.
      shape, name: of the slot.

    Raises:
      NotImplementedError: it has other rows.
    """
    if tuple(shape) != (variable.capacity, variable.dimension):
        raise NotImplementedError(
            f"{name} has the shape {tuple(shape)}, and cannot follow the rows of embedding "
            f"variable {variable.table.name!r}: {(variable.capacity, variable.dimension)}"
        )


def check_slot(variable: Any, name: str) -> None:
    """Checks that a slot that is written as a whole leaves the machine's memory to others.

    Args:
      variable: the embedding variable.
      name: of the slot.

    Raises:
      ValueError: it `is_too_large`.
    """
    if is_too_large(variable):
        raise ValueError(
            f"{name} would take memory for all {variable.capacity} rows of embedding variable "
            f"{variable.table.name!r}, {_slot_bytes(variable) / 2**30:.3g} GiB: give a smaller "
            "capacity, or use an optimizer of fusion.optimizers, whose memory is taken as keys get "
            "rows"
        )


def _slot_bytes(variable: Any) -> int:
    size: int = variable.capacity * variable.dimension * variable.dtype.size
    return size
