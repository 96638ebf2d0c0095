"""DeepFM: a factorization machine and a perceptron over the same vectors.

The architecture is that of HugeCTR's notebook for its TensorFlow plugin: counts are fields, too,
each multiplied by a vector of its own. The notebook's second order has the opposite sign of the one
of the paper (Guo et al., 2017, equation 2), which is the one here: half of what the square of the
sum has more than the sum of squares. Its ten layers of 1024 units, without activations and with
dropout, are fewer and smaller here and have activations; `--hidden` makes others.
"""

from __future__ import annotations

from typing import Any

import keras

from modelzoo.layers import Layers
from modelzoo.options import Architecture

ARCHITECTURE = Architecture(dim=16, hidden=(256, 256, 256))


def logits(layers: Layers, shape: Architecture) -> Any:
    """The logits of clicks, [n, 1]."""
    ops, counts = keras.ops, layers.counts()
    weights, embedded = layers.embeddings(weights=1, vectors=shape.dim)
    first = layers.dense(counts, 1, "first_order") + ops.sum(weights, axis=1, keepdims=True)
    of_counts = layers.vectors(counts, shape.dim, "count_vectors")
    vectors = ops.concatenate([of_counts, embedded], axis=1)
    hidden = vectors
    for place, units in enumerate(shape.hidden):
        hidden = layers.dense(hidden, units, f"hidden_{place}", "relu")
    deep = layers.dense(hidden, 1, "deep")
    return deep + first + second_order(vectors, shape.dim)


def second_order(vectors: Any, dim: int) -> Any:
    """The sum of the dot products of all pairs of fields, [n, 1], of vectors side by side."""
    ops, fields = keras.ops, vectors.shape[-1] // dim
    by_field = ops.reshape(vectors, [-1, fields, dim])
    of_sum = ops.square(ops.sum(by_field, axis=1))
    of_each = ops.sum(ops.square(by_field), axis=1)
    return 0.5 * ops.sum(of_sum - of_each, axis=1, keepdims=True)
