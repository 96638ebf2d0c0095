"""Slots on demand for the optimizers of `tf.compat.v1`.

They make a slot as large as its variable, and write all of it in the beginning, which for an
embedding variable of default capacity is all the memory there is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from fusion.ops.tables.slots import note_slot
from fusion.runtime.tensorflow.private import EagerTensor, optimizer, slot_creator
from fusion.tables.initial_rows import ZerosOnDemand
from fusion.tables.registry import embedding_variable_of, shard_of
from fusion.tables.slots import (
    check_slot,
    check_slot_shape,
    first_values,
    first_values_of,
    has_rows,
)


def _on_demand(make_slot: Callable[..., Any]) -> Callable[..., Any]:
    """`slot_creator.create_slot_with_initializer`, for tables of embedding variables with zeros.

    The rows begin with what the initializer gives for one row. In TensorFlow 2's eager mode they
    would not be filled in time: there slots that do not begin with zeros are filled as a whole.
    """

    @functools.wraps(make_slot)
    def make(
        primary: Any, initializer: Any, shape: Any, dtype: Any, name: str, *args: Any, **named: Any
    ) -> Any:
        variable = embedding_variable_of(primary)
        if variable is None or not has_rows(variable, shape):
            return make_slot(primary, initializer, shape, dtype, name, *args, **named)
        check_slot_shape(variable, shape, name)
        values = first_values(initializer, int(shape[1]), dtype)
        is_filled = values is not None and isinstance(primary.handle, EagerTensor)
        if is_filled:
            check_slot(variable, name)
        else:
            initializer = ZerosOnDemand()
        with variable.own_variables():
            slot = make_slot(primary, initializer, shape, dtype, name, *args, **named)
        number = variable.add_slot(slot, values, is_filled)
        if number is not None:
            note_slot(primary.handle, slot, values, number)
        return slot

    return make


def _filled(make_slot: Callable[..., Any]) -> Callable[..., Any]:
    """`slot_creator.create_slot`, for tables of embedding variables with slots that follow them."""

    @functools.wraps(make_slot)
    def make(primary: Any, val: Any, name: str, *args: Any, **named: Any) -> Any:
        variable = embedding_variable_of(primary)
        if variable is None or not has_rows(variable, val.shape):
            return make_slot(primary, val, name, *args, **named)
        check_slot_shape(variable, val.shape, name)
        check_slot(variable, name)
        values = first_values_of(val, name)
        with variable.own_variables():
            slot = make_slot(primary, val, name, *args, **named)
        variable.add_slot(slot, values, is_filled=True)
        return slot

    return make


def make_slots_follow() -> None:
    """Makes v1 optimizers create slots that follow the rows of embedding variables.

    TensorFlow has no hook for it: the functions that make slots are replaced by ones that do the
    same for all other variables.
    """
    for name, wrap in (("create_slot_with_initializer", _on_demand), ("create_slot", _filled)):
        function = getattr(slot_creator, name)
        if not hasattr(function, "_makes_followers"):
            replaced = wrap(function)
            replaced._makes_followers = True  # type: ignore[attr-defined]
            setattr(slot_creator, name, replaced)


def refuse_shards() -> None:
    """Makes optimizers of `tf.compat.v1` refuse shards, whose gradients they would sum up.

    TensorFlow has no hook for it: the method that all of them have is replaced by one that does the
    same for all other variables.
    """
    apply = optimizer.Optimizer.apply_gradients
    if hasattr(apply, "_refuses_shards"):
        return

    @functools.wraps(apply)
    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **named: Any) -> Any:
        pairs = list(grads_and_vars)
        for shard in filter(None, (shard_of(variable) for _, variable in pairs)):
            if shard.table.replicas.count > 1:
                raise NotImplementedError(
                    f"{type(self).__name__} of TensorFlow 1 cannot train sharded table "
                    f"{shard.table.name!r} in {shard.table.replicas.count} replicas: use an "
                    "optimizer of Keras"
                )
        return apply(self, pairs, *args, **named)

    apply_gradients._refuses_shards = True  # type: ignore[attr-defined]
    optimizer.Optimizer.apply_gradients = apply_gradients
