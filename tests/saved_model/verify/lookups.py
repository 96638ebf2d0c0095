"""A small model with lookups where they are harder to see, of stock TensorFlow alone."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

IDS = tf.SparseTensorSpec([None, None], tf.int64)


class Lookups(tf.Module):
    """Columns `shared` twice, `branch` in a branch, `loop` in a loop, `shards`, and `half`."""

    def __init__(self) -> None:
        super().__init__()
        for number, name in enumerate(("shared", "branch", "loop", "half")):
            values = tf.random.stateless_normal([20, 4], [number, 1])
            dtype = tf.bfloat16 if name == "half" else tf.float32
            setattr(self, name, tf.Variable(tf.cast(values, dtype), name=name))
        self.shards = [
            tf.Variable(tf.random.stateless_normal([10, 4], [i, 2]), name=f"shards/part_{i}")
            for i in range(2)
        ]

    @tf.function(input_signature=[IDS, tf.TensorSpec([], tf.int32)])
    def __call__(self, ids: tf.SparseTensor, times: tf.Tensor) -> dict[str, tf.Tensor]:
        look_up = tf.nn.safe_embedding_lookup_sparse
        pair = tf.concat(
            [look_up(self.shared, ids, combiner=how) for how in ("mean", "sum")], axis=1
        )
        chosen = tf.cond(times > 1, lambda: look_up(self.branch, ids), lambda: pair[:, :4])
        total = tf.zeros_like(chosen)
        for i in tf.range(times):
            shifted = tf.SparseTensor(
                ids.indices, (ids.values + tf.cast(i, tf.int64)) % 20, ids.dense_shape
            )
            total += look_up(self.loop, shifted)
        parts = look_up(self.shards, ids, combiner="sqrtn")
        half = tf.cast(look_up(self.half, ids), tf.float32)
        return {"out": tf.concat([pair, chosen, total, parts, half], axis=1)}


def save(directory: Path) -> Path:
    """Saves the model with a signature, and returns its directory."""
    model = Lookups()
    tf.saved_model.save(model, str(directory), signatures=model.__call__)
    return directory
