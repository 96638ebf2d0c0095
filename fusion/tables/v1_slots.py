"""Slots on demand for the optimizers of `tf.compat.v1`.

They make a slot as large as its variable, and write all of it in the beginning, which for an
embedding variable of default capacity is all the memory there is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.training import slot_creator

from fusion.ops.tables.slots import note_slot
from fusion.runtime.tensorflow.graph_notes import notes
from fusion.tables.initial_rows import ZerosOnDemand

#: The note of a graph's embedding variables.
EMBEDDING_VARIABLES = "embedding_variables"

#: The classes of initializers that give zeros.
_ZEROS = frozenset({"Zeros", "ZerosOnDemand"})


def owner_of(table: Any) -> Any:
    """The embedding variable that a table belongs to, or None."""
    known = notes(tf.compat.v1.get_default_graph(), EMBEDDING_VARIABLES)
    return next((found for found in known if found.table is table), None)


def _on_demand(make_slot: Callable[..., Any]) -> Callable[..., Any]:
    """`slot_creator.create_slot_with_initializer`, for tables of embedding variables with zeros.

    The rows begin with what the initializer gives for one row.
    """

    @functools.wraps(make_slot)
    def make(
        primary: Any, initializer: Any, shape: Any, dtype: Any, name: str, *args: Any, **named: Any
    ) -> Any:
        owner = owner_of(primary)
        if owner is None or shape != primary.shape:
            return make_slot(primary, initializer, shape, dtype, name, *args, **named)
        slot = make_slot(primary, ZerosOnDemand(), shape, dtype, name, *args, **named)
        values, number = None, 0
        if type(initializer).__name__ not in _ZEROS:
            values = tf.cast(initializer([1, int(shape[1])], dtype=dtype), dtype)
            number = note_slot(primary.handle, slot, values)
        owner.add_slot(slot, values, number)
        return slot

    return make


def make_slots_on_demand() -> None:
    """Has v1 optimizers make slots of embedding variables on demand from now on.

    TensorFlow has no hook for it: the function that makes slots is replaced by one that does the
    same for all other variables.
    """
    made = slot_creator.create_slot_with_initializer
    if not hasattr(made, "_is_on_demand"):
        replaced = _on_demand(made)
        replaced._is_on_demand = True  # type: ignore[attr-defined]
        slot_creator.create_slot_with_initializer = replaced
