"""Slots on demand of v1 graphs: filled before a gradient is there, after the keys have their rows.

An optimizer makes its slots when gradients are there already, or before others. So both are noted
in the graph, and whichever comes later is connected with all that came before.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.framework.ops import colocate_with

from fusion.runtime.tensorflow.graph_notes import notes

_GRADIENTS, _SLOTS = "keyed_gradients", "filled_slots"


def note_gradient(gather: Any, gradient: Any) -> None:
    """Notes a KeyedEmbeddingGather, and the op that its gradient waits for."""
    graph = gradient.graph
    notes(graph, _GRADIENTS).append((gather, gradient))
    for handle, slot, values, number in notes(graph, _SLOTS):
        _connect(gather, gradient, handle, slot, values, number)


def note_slot(handle: Any, slot: Any, values: Any, number: int) -> None:
    """Notes a slot of a table, what its rows begin with, [1, D], and its number."""
    graph = handle.graph
    notes(graph, _SLOTS).append((handle, slot, values, number))
    for gather, gradient in notes(graph, _GRADIENTS):
        _connect(gather, gradient, handle, slot, values, number)


def _connect(gather: Any, gradient: Any, handle: Any, slot: Any, values: Any, number: int) -> None:
    """Has a slot filled between a gather and its gradient."""
    from fusion import ops

    if gather.inputs[0] is not handle:
        return
    with gradient.graph.as_default(), tf.control_dependencies([gather]), colocate_with(slot):
        filled = ops.fill_embedding_slot(
            slot=slot.handle,
            index=gather.inputs[1],
            values=values,
            dim=slot.shape[1],
            number=number,
        )
    gradient._add_control_input(filled.op)
