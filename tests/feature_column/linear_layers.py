"""compat.v1's `linear_model`, and `LinearFeatures` of both Kerases with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from fusion.feature_column.linear_features import LinearFeatures
from fusion.feature_column.linear_features_tf_keras import LinearFeatures as LegacyLinearFeatures
from tests.feature_column.hosts import as_tensors
from tests.reference import gradient_parts

Array = Any
Features = dict[str, Any]
Columns = Callable[[], list[Any]]

v1 = tf.compat.v1

#: The layer of each Keras.
LAYERS: dict[str, Any] = {"keras": LinearFeatures, "tf_keras": LegacyLinearFeatures}


@dataclass(frozen=True)
class Outcome:
    """What a linear model computed.

    Attributes:
      output: [B, units].
      gradients: distinct ids and the whole gradient of each variable, by `<column>/<name>`.
    """

    output: Array
    gradients: dict[str, tuple[list[int], Array]]


def initial(shape: Any) -> Array:
    """The weights of a shape that all models are compared with."""
    rng = np.random.default_rng([7, *map(int, shape)])
    return rng.normal(size=tuple(shape)).astype(np.float32)


def loss(output: tf.Tensor) -> tf.Tensor:
    """A loss in which every element counts differently."""
    factors = tf.cos(tf.range(tf.size(output), dtype=tf.float32))
    return tf.reduce_sum(tf.reshape(output, [-1]) * factors)


def linear_model(columns: Columns, features: Features, **options: Any) -> Outcome:
    """Stock's, of compat.v1."""
    with tf.Graph().as_default(), v1.Session() as session:
        output = v1.feature_column.linear_model(as_tensors(features), columns(), **options)
        variables = v1.trainable_variables()
        gradients = v1.gradients(loss(output), variables)
        parts = [gradient_parts(*pair) for pair in zip(gradients, variables, strict=True)]
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        for variable in variables:
            variable.load(initial(variable.shape), session)
        values, parts = session.run((output, parts))
    return Outcome(values, _by_name(variables, parts))


def built(layer: Any, features: Features) -> Any:
    """A layer with `initial` weights."""
    layer(features)
    layer.set_weights([initial(weight.shape) for weight in layer.weights])
    return layer


def run(layer: Any, features: Features, compiled: bool = True) -> Outcome:
    """A layer forward and backward."""
    variables = tables(layer)

    def step(given: Features) -> Any:
        with tf.GradientTape() as tape:
            output = layer(given)
            total = loss(output)
        gradients = tape.gradient(total, variables)
        return output, [gradient_parts(*pair) for pair in zip(gradients, variables, strict=True)]

    output, parts = (tf.function(step, autograph=False) if compiled else step)(features)
    parts = [(ids.numpy(), dense.numpy()) for ids, dense in parts]
    return Outcome(output.numpy(), _by_name(layer.trainable_weights, parts))


def tables(layer: Any) -> list[tf.Variable]:
    """The trainable variables of a layer of either Keras, as TensorFlow's."""
    weights = layer.trainable_weights
    return [one if isinstance(one, tf.Variable) else one.value for one in weights]


def names(variables: Any) -> list[str]:
    """`<column>/<name>` of variables of a layer, and the name alone of the bias."""
    paths = [getattr(one, "path", one.name).removesuffix(":0") for one in variables]
    return [path.split("/", 1)[1] for path in paths]


def _by_name(variables: Any, parts: Any) -> dict[str, tuple[list[int], Array]]:
    return {
        name: (sorted(np.asarray(ids).tolist()), dense)
        for name, (ids, dense) in zip(names(variables), parts, strict=True)
    }
