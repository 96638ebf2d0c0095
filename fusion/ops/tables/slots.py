"""Slots on demand of v1 graphs: filled before a gradient is there, after the keys have their rows.

An optimizer makes its slots when gradients are there already, or before others. So both are noted
in the graph, and whichever comes later is connected with all that came before.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from fusion import ops
from fusion.runtime.process import notes
from fusion.runtime.tensorflow.private import colocate_with

_GRADIENTS, _SLOTS = "keyed_gradients", "filled_slots"


class _Gradient(NamedTuple):
    """That of a table."""

    table: Any  # the handles
    index: Any
    gather: Any  # the op that gives rows to keys
    gradient: Any  # the op that it waits for


def note_gradient(table: Any, index: Any, gather: Any, gradient: Any) -> None:
    """Notes handles, the op that gathers by them, and the op that their gradient waits for."""
    noted = _Gradient(table, index, gather, gradient)
    notes(gradient.graph, _GRADIENTS).append(noted)
    for handle, slot, values, number in notes(gradient.graph, _SLOTS):
        _connect(noted, handle, slot, values, number)


def note_slot(handle: Any, slot: Any, values: Any, number: int) -> None:
    """Notes a slot of a table, what its rows begin with, [1, D], and its number."""
    graph = handle.graph
    notes(graph, _SLOTS).append((handle, slot, values, number))
    for noted in notes(graph, _GRADIENTS):
        _connect(noted, handle, slot, values, number)


def _connect(noted: _Gradient, handle: Any, slot: Any, values: Any, number: int) -> None:
    """Has a slot filled between a gather and its gradient."""
    if noted.table is not handle:
        return
    graph = noted.gradient.graph
    with graph.as_default(), tf.control_dependencies([noted.gather]), colocate_with(slot):
        filled = ops.fill_embedding_slot(
            slot=slot.handle,
            index=noted.index,
            values=values,
            dim=slot.shape[1],
            number=number,
        )
    noted.gradient._add_control_input(filled.op)
