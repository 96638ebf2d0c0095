"""Optimizers by name, for both worlds."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

import fusion

v1 = tf.compat.v1

#: Each with the rate that trains the models of the zoo well.
RATES = {"sgd": 0.1, "adagrad": 0.02, "adam": 0.002, "lazy-adam": 0.003}
"""`adagrad` is `fusion.optimizers.Adagrad` and `lazy-adam` is `LazyAdam`: they touch the rows of a
batch alone. Keras 3's own Adam touches all rows of all tables in each step."""


def keras_optimizer(name: str, rate: float) -> Any:
    """An optimizer of Keras 3.

    Raises:
        ValueError: there is none of that name.
    """
    if name == "sgd":
        return keras.optimizers.SGD(rate)
    if name == "adagrad":
        return fusion.optimizers.Adagrad(rate)
    if name == "adam":
        return keras.optimizers.Adam(rate)
    if name == "lazy-adam":
        return fusion.optimizers.LazyAdam(rate)
    raise ValueError(f"optimizer must be one of {', '.join(RATES)}, got {name!r}")


def graph_optimizer(name: str, rate: float) -> Any:
    """An optimizer of compat.v1.

    Raises:
        ValueError: there is none of that name.
    """
    if name == "sgd":
        return v1.train.GradientDescentOptimizer(rate)
    if name == "adagrad":
        return v1.train.AdagradOptimizer(rate)
    if name == "adam":
        return v1.train.AdamOptimizer(rate)
    if name == "lazy-adam":
        return fusion.optimizers.LazyAdamOptimizer(rate)
    raise ValueError(f"optimizer must be one of {', '.join(RATES)}, got {name!r}")
