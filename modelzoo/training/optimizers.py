"""Optimizers by name, for both worlds."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from fusion import optimizers as fused

v1 = tf.compat.v1

RATES = {"sgd": 0.1, "adagrad": 0.02, "adam": 0.002, "lazy-adam": 0.003}
"""Each with the rate that trains the models of the zoo well. `adagrad` and `lazy-adam` of Keras are
`fusion.optimizers`, which touch the rows of a batch alone; Keras 3's own Adam touches all rows of
all tables in each step."""

_KERAS = {
    "sgd": keras.optimizers.SGD,
    "adagrad": fused.Adagrad,
    "adam": keras.optimizers.Adam,
    "lazy-adam": fused.LazyAdam,
}
_GRAPH = {
    "sgd": v1.train.GradientDescentOptimizer,
    "adagrad": v1.train.AdagradOptimizer,
    "adam": v1.train.AdamOptimizer,
    "lazy-adam": fused.LazyAdamOptimizer,
}


def keras_optimizer(name: str, rate: float) -> Any:
    """An optimizer of Keras 3.

    Raises:
        ValueError: there is none of that name.
    """
    return _known(_KERAS, name)(rate)


def graph_optimizer(name: str, rate: float) -> Any:
    """An optimizer of compat.v1.

    Raises:
        ValueError: there is none of that name.
    """
    return _known(_GRAPH, name)(rate)


def _known(optimizers: dict[str, Any], name: str) -> Any:
    if name not in optimizers:
        raise ValueError(f"optimizer must be one of {', '.join(optimizers)}, got {name!r}")
    return optimizers[name]
