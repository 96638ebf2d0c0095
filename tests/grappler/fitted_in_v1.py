"""Program: tf_keras in the mode of TensorFlow 1, where one Session trains, validates and predicts.

A model as DeepCTR makes them is trained without fusion and with it, by each optimizer. A process
of its own, since the mode is one of the process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
import tf_keras

import fusion

Array = npt.NDArray[Any]
Batch = tuple[dict[str, Array], Array]

FIELDS, SEQUENCES, LENGTH = ("user", "item", "shop", "brand"), ("clicks", "visits"), 5
ROWS, DIM, COUNT, BATCH = 40, 8, 96, 16


class MaskedMean(tf_keras.layers.Layer):
    """Mean over a sequence of rows whose ids are not 0, [batch, 1, D]."""

    def __init__(self) -> None:
        super().__init__()
        self.supports_masking = True

    def call(self, rows: Any, mask: Any = None) -> Any:
        """Divides the sum by how many there are."""
        known = tf.cast(mask, tf.float32)
        count = tf.reduce_sum(known, axis=-1, keepdims=True)
        tiled = tf.tile(tf.expand_dims(known, 2), [1, 1, rows.shape[-1]])
        mean = tf.math.divide(tf.reduce_sum(rows * tiled, 1), count + 1e-8)
        return tf.expand_dims(mean, axis=1)

    def compute_mask(self, rows: Any, mask: Any = None) -> None:
        """There is no sequence any more."""
        return


def model(optimizer: str) -> Any:
    """Four embeddings of an id and two of sequences, side by side before dense layers."""
    tf_keras.utils.set_random_seed(1)
    inputs, rows = [], []
    for name in FIELDS + SEQUENCES:
        is_sequence = name in SEQUENCES
        ids = tf_keras.Input([LENGTH if is_sequence else 1], name=name, dtype="int32")
        embedding = tf_keras.layers.Embedding(
            ROWS, DIM, name=f"rows_of_{name}", mask_zero=is_sequence
        )
        found = embedding(ids)
        inputs.append(ids)
        rows.append(MaskedMean()(found) if is_sequence else found)
    flat = tf_keras.layers.Flatten()(tf_keras.layers.Concatenate(axis=-1)(rows))
    hidden = tf_keras.layers.Dense(16, activation="relu")(flat)
    made = tf_keras.Model(inputs, tf_keras.layers.Dense(1, activation="sigmoid")(hidden))
    made.compile(optimizer, "binary_crossentropy", metrics=["binary_crossentropy"])
    return made


def batch(seed: int) -> Batch:
    """Ids and labels."""
    rng = np.random.default_rng(seed)
    ids = {name: rng.integers(0, ROWS, [COUNT, 1]) for name in FIELDS}
    ids |= {name: rng.integers(0, ROWS, [COUNT, LENGTH]) for name in SEQUENCES}
    return ids, rng.integers(0, 2, [COUNT, 1]).astype(np.float32)


def run(optimizer: str) -> list[Array]:
    """All that a user sees of a model which is trained, validated and asked in turn."""
    tf_keras.backend.clear_session()
    made, (ids, labels) = model(optimizer), batch(0)
    found: list[Array] = []
    for _ in range(2):
        history = made.fit(
            ids, labels, BATCH, epochs=2, validation_data=batch(1), shuffle=False, verbose=0
        )
        found += [np.array(history.history[name]) for name in sorted(history.history)]
        found.append(made.predict(batch(2)[0], BATCH))
        found.append(np.array(made.evaluate(ids, labels, BATCH, verbose=0)))
        found.append(np.array(made.train_on_batch(ids, labels)))
    return found + made.get_weights()


def main(optimizers: Sequence[str]) -> None:
    """Prints as JSON, by optimizer, the largest difference and how often each op ran."""
    tf.compat.v1.disable_eager_execution()
    expected = {name: run(name) for name in optimizers}
    fusion.enable()
    seen: dict[str, Any] = {}
    for name in optimizers:
        before = {one.op: one.calls for one in fusion.stats().ops}
        found = run(name)
        pairs = list(zip(found, expected[name], strict=True))
        seen[name] = {
            "difference": max(float(np.max(np.abs(mine - stock))) for mine, stock in pairs),
            "losses": found[0].tolist(),
            "calls": {o.op: o.calls - before.get(o.op, 0) for o in fusion.stats().ops},
        }
    print(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1:])
