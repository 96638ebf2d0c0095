"""DLRM: dot products of vectors of categorical features and of a perceptron over the counts.

The architecture is the one of Naumov et al., 2019: the perceptron over counts ends in a vector as
long as those of the ids; the products of all pairs, and that vector, go to another perceptron.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from modelzoo.layers import Layers


def logits(
    layers: Layers,
    dim: int = 16,
    hidden: Sequence[int] = (256, 128),
    bottom: Sequence[int] = (128, 64),
) -> Any:
    """The logits of clicks, [n, 1].

    Args:
        layers: of Keras 3 or of compat.v1.
        dim: elements of the vector of a categorical feature.
        hidden: units of the layers of the perceptron on top.
        bottom: units of the layers over the counts, before the one of `dim` units.
    """
    dense = layers.counts()
    for index, units in enumerate((*bottom, dim)):
        dense = layers.dense(dense, units, f"bottom_{index}", "relu")
    (embedded,) = layers.embeddings(vectors=dim)
    vectors = keras.ops.concatenate([dense, embedded], axis=1)
    top = keras.ops.concatenate([dense, products(vectors, dim)], axis=1)
    for index, units in enumerate(hidden):
        top = layers.dense(top, units, f"top_{index}", "relu")
    return layers.dense(top, 1, "top")


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
