"""Slots of embedding variables: zeros on demand, whose rows are filled when keys get theirs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from fusion import ops
from fusion.cpu_ops.keys.layout import MOST_SLOTS
from fusion.tables.initial_rows import memory_bytes


class _Slot(NamedTuple):
    """A slot that may be gone, what its rows begin with, [1, D], and its number; None for zeros."""

    reference: weakref.ref[Any]
    values: Any
    number: int | None


class Slots:
    """The slots of an embedding variable.

    The index knows those that begin with something else than zeros by number. A number is not used
    again: its rows are filled already.
    """

    def __init__(self) -> None:
        self._slots: list[_Slot] = []

    def add(self, slot: Any, values: Any) -> int | None:
        """The number of a new slot; None if it begins with zeros.

        Args:
          slot: a variable [capacity, D] of zeros on demand.
          values: what its rows begin with, [1, D], None for zeros.

        Raises:
          NotImplementedError: there are too many that do not begin with zeros.
        """
        numbers = sum(known.number is not None for known in self._slots)
        if values is not None and numbers == MOST_SLOTS:
            raise NotImplementedError(
                f"{slot.name} is one of more than {MOST_SLOTS} optimizer variables of a table that "
                "do not begin with zeros"
            )
        number = None if values is None else numbers
        self._slots.append(_Slot(weakref.ref(slot), values, number))
        return number

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
          For each slot that does not begin with zeros how many they were.
        """
        return [
            ops.fill_embedding_slot(
                slot=slot.handle,
                index=index.handle,
                values=known.values,
                dim=int(slot.shape[1]),
                number=known.number,
            )
            for known in self._slots
            if known.number is not None
            and (slot := known.reference()) is not None
            and (only is None or slot is only)
        ]

    def reset(self, rows: tf.Tensor, begin: Callable[[Any], Any]) -> list[Any]:
        """Makes rows of all slots that are still there what they were first.

        Args:
          rows: int64 [n].
          begin: in a graph, gives a slot its initial value if it has none; is waited for.
        """
        found = [(known.reference(), known.values) for known in self._slots]
        return [_reset(slot, values, rows, begin) for slot, values in found if slot is not None]


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


def first_values(initializer: Any, dimension: int, dtype: tf.DType) -> Any:
    """What the rows of a slot begin with, [1, D]; None for zeros.

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


def is_too_large(variable: Any) -> bool:
    """Whether a slot of an embedding variable that is written as a whole takes too much memory.

    That is a quarter of the machine's, or what a default capacity makes of it.
    """
    return variable.has_default_capacity or _slot_bytes(variable) > memory_bytes() // 4


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
