"""Models over embedding layers, stock ones and ours, with the same weights."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

ROWS, DIM, BATCH, COLUMNS = 40, 5, 16, 3
RNG = np.random.default_rng(5)
#: With ids that are repeated, within a batch and within a row.
IDS = [RNG.integers(0, ROWS, (4 * BATCH, length)).astype(np.int32) for length in (1, 1, 4)]
LABELS = RNG.integers(0, 2, (4 * BATCH, 1)).astype(np.float32)


def functional(layer: Any, **arguments: Any) -> Any:
    """A model of embedding layers of a class, side by side."""
    keras.utils.set_random_seed(3)
    inputs = [keras.Input(ids.shape[1:], dtype="int32") for ids in IDS]
    parts = [
        keras.layers.Flatten()(layer(ROWS, DIM, name=f"table_{i}", **arguments)(one))
        for i, one in enumerate(inputs)
    ]
    hidden = keras.layers.Dense(8, "relu", name="hidden")(keras.layers.Concatenate()(parts))
    return keras.Model(inputs, keras.layers.Dense(1, name="logit")(hidden))


def fit(model: Any, optimizer: Any, steps: int = 8) -> list[float]:
    """The losses of the first and the second half of the steps."""
    model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True))
    return fit_more(model, steps)


def fit_more(model: Any, steps: int = 8) -> list[float]:
    """As `fit`, of a compiled model."""
    batches = tf.data.Dataset.from_tensor_slices((tuple(IDS), LABELS)).batch(BATCH).repeat()
    history = model.fit(batches, epochs=2, steps_per_epoch=steps // 2, verbose=0)
    losses: list[float] = history.history["loss"]
    return losses


def assert_same_state(one: Any, other: Any) -> None:
    """Compares all variables of two models, those of optimizers too, to the bit."""
    pairs = [(one.variables, other.variables)]
    if one.optimizer is not None:
        pairs.append((one.optimizer.variables, other.optimizer.variables))
    for ours, theirs in pairs:
        assert [v.path.partition("/")[2] for v in ours] == [
            v.path.partition("/")[2] for v in theirs
        ]
        for a, b in zip(ours, theirs, strict=True):
            if a.dtype != "string":
                np.testing.assert_array_equal(a.numpy(), b.numpy(), err_msg=a.path)


def ops_of(function: Any, *arguments: Any) -> list[str]:
    """The types of the ops of a traced function and of those that it calls."""
    graph = tf.function(function).get_concrete_function(*arguments).graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    return [node.op for node in nodes]
