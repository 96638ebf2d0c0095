"""DLRM: dot products of vectors of categorical features and of a perceptron over the counts.

The architecture is the one of Naumov et al., 2019: the perceptron over counts ends in a vector as
long as those of the ids; the products of all pairs, and that vector, go to another perceptron.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from modelzoo.layers import Layers
from modelzoo.options import Architecture

ARCHITECTURE = Architecture(dim=16, bottom=(128, 64), hidden=(256, 128))


def logits(layers: Layers, shape: Architecture) -> Any:
    """The logits of clicks, [n, 1]."""
    bottom = layers.counts()
    for place, units in enumerate((*shape.bottom, shape.dim)):
        bottom = layers.dense(bottom, units, f"bottom_{place}", "relu")
    (embedded,) = layers.embeddings(vectors=shape.dim)
    vectors = keras.ops.concatenate([bottom, embedded], axis=1)
    hidden = keras.ops.concatenate([bottom, products(vectors, shape.dim)], axis=1)
    for place, units in enumerate(shape.hidden):
        hidden = layers.dense(hidden, units, f"top_{place}", "relu")
    return layers.dense(hidden, 1, "top")


def products(vectors: Any, dim: int) -> Any:
    """The dot product of each pair of different vectors side by side, [n, pairs]."""
    ops, count = keras.ops, vectors.shape[-1] // dim
    by_field = ops.reshape(vectors, [-1, count, dim])
    all_pairs = ops.matmul(by_field, ops.transpose(by_field, [0, 2, 1]))
    # Row by row, what is left of the diagonal, and what is not: a gather would copy each number by
    # itself, which takes longer than the products.
    sizes = [count, *(size for row in range(1, count) for size in (row, count - row))]
    parts = ops.split(ops.reshape(all_pairs, [-1, count * count]), np.cumsum(sizes)[:-1], axis=1)
    return ops.concatenate(parts[1::2], axis=1)
