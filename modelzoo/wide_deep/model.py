"""Wide and deep: a linear model of all features beside a perceptron over their vectors.

The architecture is that of Cheng et al., 2016, without crossed features, which Criteo's have no
meaning for.
"""

from __future__ import annotations

from typing import Any

import keras

from modelzoo.layers import Layers
from modelzoo.options import Architecture

ARCHITECTURE = Architecture(dim=16, hidden=(256, 128, 64))


def logits(layers: Layers, shape: Architecture) -> Any:
    """The logits of clicks, [n, 1]."""
    ops, counts = keras.ops, layers.counts()
    weights, vectors = layers.embeddings(weights=1, vectors=shape.dim)
    wide = layers.dense(counts, 1, "wide") + ops.sum(weights, axis=1, keepdims=True)
    hidden = ops.concatenate([counts, vectors], axis=1)
    for place, units in enumerate(shape.hidden):
        hidden = layers.dense(hidden, units, f"hidden_{place}", "relu")
    return wide + layers.dense(hidden, 1, "deep")
