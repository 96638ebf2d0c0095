"""DeepFM: a factorization machine and a perceptron over the same vectors.

The architecture is that of HugeCTR's notebook for its TensorFlow plugin: counts are fields, too,
each multiplied by a vector of its own. The notebook's second order has the opposite sign of the one
of the paper (Guo et al., 2017, equation 2), which is the one here: half of what the square of the
sum has more than the sum of squares. Its ten layers of 1024 units, without activations and with
dropout, are fewer and smaller here and have activations; `--hidden` makes others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from modelzoo.layers import Layers


def logits(layers: Layers, dim: int = 16, hidden: Sequence[int] = (256, 256, 256)) -> Any:
    """The logits of clicks, [n, 1].

    Args:
        layers: of Keras 3 or of compat.v1.
        dim: elements of the vector of a feature.
        hidden: units of the perceptron's layers.
    """
    ops, counts = keras.ops, layers.counts()
    weights, embedded = layers.embeddings(weights=1, vectors=dim)
    first = layers.dense(counts, 1, "first_order") + ops.sum(weights, axis=1, keepdims=True)
    of_counts = layers.vectors(counts, dim, "count_vectors")
    vectors = ops.concatenate([of_counts, embedded], axis=1)
    deep = vectors
    for index, units in enumerate(hidden):
        deep = layers.dense(deep, units, f"hidden_{index}", "relu")
    return layers.dense(deep, 1, "deep") + first + second_order(vectors, dim)


def second_order(vectors: Any, dim: int) -> Any:
    """The sum of the dot products of all pairs of fields, [n, 1], of vectors side by side."""
    ops, fields = keras.ops, vectors.shape[-1] // dim
    by_field = ops.reshape(vectors, [-1, fields, dim])
    of_sum = ops.square(ops.sum(by_field, axis=1))
    of_each = ops.sum(ops.square(by_field), axis=1)
    return 0.5 * ops.sum(of_sum - of_each, axis=1, keepdims=True)
