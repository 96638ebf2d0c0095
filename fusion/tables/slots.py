"""Slots of embedding variables: zeros on demand, whose rows are filled when keys get theirs."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import tensorflow as tf

from fusion import ops
from fusion.cpu_ops.index_layout import MOST_SLOTS
from fusion.tables.initial_rows import memory_bytes


class FilledSlots:
    """The slots of an embedding variable that begin with something else than zeros.

    The index knows them by number. A number is not used again: its rows are filled already.
    """

    def __init__(self) -> None:
        self._slots: list[tuple[Any, Any]] = []

    def add(self, slot: Any, values: Any) -> int:
        """The number of a new slot.

        Args:
          slot: a variable [capacity, D] of zeros on demand.
          values: what its rows begin with, [1, D].

        Raises:
          NotImplementedError: there are too many.
        """
        if len(self._slots) == MOST_SLOTS:
            raise NotImplementedError(
                f"{slot.name} is one of more than {MOST_SLOTS} optimizer variables of a table that "
                "do not begin with zeros"
            )
        self._slots.append((weakref.ref(slot), values))
        return len(self._slots) - 1

    def fill(self, index: Any) -> list[tf.Tensor]:
        """Fills rows that keys have got since the last time, of all slots that are still there.

        Args:
          index: the variable of the index.

        Returns:
          For each slot how many they were.
        """
        found = [(number, ref(), values) for number, (ref, values) in enumerate(self._slots)]
        return [
            ops.fill_embedding_slot(
                slot=slot.handle,
                index=index.handle,
                values=values,
                dim=int(slot.shape[1]),
                number=number,
            )
            for number, slot, values in found
            if slot is not None
        ]


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
