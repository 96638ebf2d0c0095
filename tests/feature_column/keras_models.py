"""tf_keras models of every style around `DenseFeatures`, and data to train them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from fusion.feature_column import embedding_column
from tests.feature_column.hosts import recorded

fc = tf.feature_column
#: An id, two words and a number per example.
DATA = {
    "item": np.array([[3], [1], [0], [7], [-1], [3]]),
    "tags": np.array([["a", "b"], ["c", ""], ["", ""], ["a", "a"], ["d", "b"], ["b", ""]]),
    "price": np.array([[1.0], [2.0], [0.5], [3.0], [0.0], [1.5]], np.float32),
}
LABELS = np.array([[0], [1], [0], [1], [1], [0]])


def columns(do_fusion: str | None) -> list[Any]:
    """Two embedding columns and a numeric one."""
    init = tf_keras.initializers.RandomUniform(seed=5)
    items = fc.categorical_column_with_identity("item", 8)
    tags = fc.categorical_column_with_vocabulary_list("tags", ["a", "b", "c"], num_oov_buckets=1)
    return [
        embedding_column(items, 4, "mean", init, do_fusion=do_fusion),
        embedding_column(tags, 3, "sqrtn", init, do_fusion=do_fusion),
        fc.numeric_column("price"),
    ]


def score() -> Any:
    """The layer behind the features."""
    return tf_keras.layers.Dense(1, "sigmoid", kernel_initializer="ones")


class Subclassed(tf_keras.Model):
    """A model that is a class."""

    def __init__(self, do_fusion: str | None) -> None:
        super().__init__()
        self.features = tf_keras.layers.DenseFeatures(columns(do_fusion))
        self.score = score()

    def call(self, inputs: Any, training: Any = None) -> Any:
        return self.score(self.features(inputs, training=training))


def sequential(do_fusion: str | None) -> Any:
    """A model that is a list of layers."""
    return tf_keras.Sequential([tf_keras.layers.DenseFeatures(columns(do_fusion)), score()])


def functional(do_fusion: str | None) -> Any:
    """A model that is a graph of layers."""
    inputs = {
        "item": tf_keras.Input([1], name="item", dtype=tf.int64),
        "tags": tf_keras.Input([2], name="tags", dtype=tf.string),
        "price": tf_keras.Input([1], name="price"),
    }
    features = tf_keras.layers.DenseFeatures(columns(do_fusion))(inputs)
    return tf_keras.Model(inputs, score()(features))


STYLES = {"sequential": sequential, "functional": functional, "subclassed": Subclassed}


def fit(model: Any) -> set[str]:
    """Trains a model; gives the types of the ops that ran."""
    model.compile("adam", "binary_crossentropy")
    with recorded() as ran:
        model.fit(DATA, LABELS, batch_size=3, epochs=2, shuffle=False, verbose=0)
    return ran
