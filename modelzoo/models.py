"""The models and their optimizers by name, in Keras 3 and in compat.v1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from fusion import optimizers as fused
from modelzoo import deepfm, dlrm, wide_deep
from modelzoo.layers import Embeddings, KerasLayers

v1 = tf.compat.v1

MODELS: dict[str, Callable[..., Any]] = {
    "wide_deep": wide_deep.logits,
    "deepfm": deepfm.logits,
    "dlrm": dlrm.logits,
}
"""(layers, sizes by name) -> the logits of clicks, float32 [n, 1], by model."""

OPTIMIZERS: dict[str, tuple[Callable[[float], Any], Callable[[float], Any], float]] = {
    "sgd": (keras.optimizers.SGD, v1.train.GradientDescentOptimizer, 0.1),
    "adagrad": (fused.Adagrad, v1.train.AdagradOptimizer, 0.02),
    "adam": (keras.optimizers.Adam, v1.train.AdamOptimizer, 0.002),
    "lazy-adam": (fused.LazyAdam, fused.LazyAdamOptimizer, 0.003),
}
"""Those of Keras 3 and of compat.v1, and the rate that trains the models well. `adagrad` and
`lazy-adam` of Keras are `fusion.optimizers`, which touch the rows of a batch alone; Keras 3's own
Adam touches all rows of all tables in each step."""


def sizes(dim: int | None, hidden: Sequence[int] | None) -> dict[str, Any]:
    """The arguments of a model for sizes other than its own."""
    return {name: one for name, one in (("dim", dim), ("hidden", hidden)) if one is not None}


def keras_model(name: str, embeddings: Embeddings, **of: Any) -> tuple[keras.Model, keras.Model]:
    """A model, features -> logits, and its embeddings, ids -> vectors by name.

    Args:
        name: of `MODELS`.
        embeddings: which ones it has.
        **of: its sizes.
    """
    keras.utils.set_random_seed(embeddings.seed)
    layers = KerasLayers(embeddings)
    logits = MODELS[name](layers, **of)
    ids = {feature: layers.features[feature] for feature in embeddings.rows}
    return keras.Model(layers.features, logits, name=name), keras.Model(ids, layers.embedded)


def compile_model(
    model: keras.Model, optimizer: str, rate: float | None, metrics: Any = ()
) -> None:
    """Compiles a Keras model for its logits; without a rate that of `OPTIMIZERS`."""
    make, _, default = OPTIMIZERS[optimizer]
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(make(default if rate is None else rate), loss, metrics=[*metrics])


def training_step(logits: Any, labels: Any, optimizer: str, rate: float | None) -> tuple[Any, Any]:
    """The loss of a compat.v1 graph, and the op that trains it and counts the step."""
    _, make, default = OPTIMIZERS[optimizer]
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = tf.reduce_mean(losses)
    step = v1.train.get_or_create_global_step()
    return loss, make(default if rate is None else rate).minimize(loss, global_step=step)
