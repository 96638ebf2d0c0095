"""Slots on demand for the optimizers of `tf.compat.v1`.

They make a slot as large as its variable, and write all of it in the beginning, which for an
embedding variable of default capacity is all the memory there is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tensorflow.python.framework.ops import EagerTensor
from tensorflow.python.training import slot_creator

from fusion.ops.tables.slots import note_slot
from fusion.tables.initial_rows import ZerosOnDemand
from fusion.tables.registry import embedding_variable_of
from fusion.tables.replicas import whole_variables
from fusion.tables.slots import check_slot, first_values


def _on_demand(make_slot: Callable[..., Any]) -> Callable[..., Any]:
    """`slot_creator.create_slot_with_initializer`, for tables of embedding variables with zeros.

    The rows begin with what the initializer gives for one row. In TensorFlow 2's eager mode nobody
    would fill them in time: there slots that begin with something else are as stock's.
    """
    make_beside = whole_variables()(make_slot)

    @functools.wraps(make_slot)
    def make(
        primary: Any, initializer: Any, shape: Any, dtype: Any, name: str, *args: Any, **named: Any
    ) -> Any:
        variable = embedding_variable_of(primary)
        if variable is None or shape != primary.shape:
            return make_slot(primary, initializer, shape, dtype, name, *args, **named)
        values = first_values(initializer, int(shape[1]), dtype)
        if values is not None and isinstance(primary.handle, EagerTensor):
            check_slot(variable, name)
            return make_beside(primary, initializer, shape, dtype, name, *args, **named)
        slot = make_beside(primary, ZerosOnDemand(), shape, dtype, name, *args, **named)
        number = variable.add_slot(slot, values)
        if number is not None:
            note_slot(primary.handle, slot, values, number)
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
