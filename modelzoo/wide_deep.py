"""Wide and deep: a linear model of all features beside a perceptron over their vectors.

The architecture is that of Cheng et al., 2016, without crossed features, which Criteo's have no
meaning for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from modelzoo.layers import Layers


def logits(layers: Layers, dim: int = 16, hidden: Sequence[int] = (256, 128, 64)) -> Any:
    """The logits of clicks, [n, 1].

    Args:
        layers: of Keras 3 or of compat.v1.
        dim: elements of the vector of a categorical feature.
        hidden: units of the perceptron's layers.
    """
    ops, counts = keras.ops, layers.counts()
    weights, vectors = layers.embeddings(weights=1, vectors=dim)
    wide = layers.dense(counts, 1, "wide") + ops.sum(weights, axis=1, keepdims=True)
    deep = ops.concatenate([counts, vectors], axis=1)
    for index, units in enumerate(hidden):
        deep = layers.dense(deep, units, f"hidden_{index}", "relu")
    return wide + layers.dense(deep, 1, "deep")
