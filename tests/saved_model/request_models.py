"""Models whose inputs are of a user or of items, and inputs of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

ROWS = 50
FEATURES = {
    "user": tf.io.FixedLenFeature([], tf.int64),
    "age": tf.io.FixedLenFeature([], tf.float32, 0.0),
    "item": tf.io.FixedLenFeature([], tf.int64),
}


class Ranking(tf.Module):
    """The score of an item for a user."""

    def __init__(self, seed: int = 1) -> None:
        normal = tf.random.stateless_normal
        self.users = tf.Variable(normal([ROWS, 4], [seed, 1]))
        self.items = tf.Variable(normal([ROWS, 3], [seed, 2]))
        self.kernel = tf.Variable(normal([8, 1], [seed, 3]))

    def score(self, user: tf.Tensor, age: tf.Tensor, item: tf.Tensor) -> dict[str, tf.Tensor]:
        parts = [tf.gather(self.users, user), age[:, None], tf.gather(self.items, item)]
        return {"score": tf.sigmoid(tf.concat(parts, 1) @ self.kernel)}

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int64, "user"),
            tf.TensorSpec([None], tf.float32, "age"),
            tf.TensorSpec([None], tf.int64, "item"),
        ]
    )
    def serve(self, user: tf.Tensor, age: tf.Tensor, item: tf.Tensor) -> dict[str, tf.Tensor]:
        return self.score(user, age, item)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "examples")])
    def parse(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        return self.score(**tf.io.parse_example(examples, FEATURES))


def save(path: Path, *, seed: int = 1, of_examples: bool = False) -> Path:
    """Writes a model of tensors, or of Examples."""
    model = Ranking(seed)
    tf.saved_model.save(model, str(path), model.parse if of_examples else model.serve)
    return path


def rows(count: int, **changed: Any) -> dict[str, Any]:
    """A batch of one user and as many items, but for some inputs."""
    usual = {
        "user": np.full(count, 7),
        "age": np.full(count, 31, np.float32),
        "item": np.arange(count),
    }
    return {**usual, **{name: np.array(array) for name, array in changed.items()}}


def examples(batch: dict[str, np.ndarray]) -> list[bytes]:
    """A batch as Examples."""
    made = []
    for user, age, item in zip(batch["user"], batch["age"], batch["item"], strict=True):
        example = tf.train.Example()
        feature = example.features.feature
        feature["user"].int64_list.value.append(user)
        if age >= 0:
            feature["age"].float_list.value.append(age)
        feature["item"].int64_list.value.append(item)
        made.append(example.SerializeToString())
    return made


def write_examples(path: Path, *batches: dict[str, np.ndarray]) -> Path:
    """Writes batches as a TFRecord file."""
    with tf.io.TFRecordWriter(str(path)) as file:
        for batch in batches:
            for example in examples(batch):
                file.write(example)
    return path
