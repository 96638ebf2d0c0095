"""Our `DenseFeatures` and tf_keras's with stock columns, run on the same features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tf_keras

from fusion.feature_column.dense_features import DenseFeatures
from tests.reference import assert_same_bits, gradient_parts

Array = Any
Features = dict[str, Any]

fc = tf.feature_column
ROWS = 6
#: A vocabulary file: a, b, c, d.
WORDS = str(Path(__file__).with_name("words.txt"))


@keras.saving.register_keras_serializable(package="fusion_tests")
def initializer(shape: Any, dtype: Any = None, partition_info: Any = None) -> tf.Tensor:
    """The same table for the same shape; some rows are longer than 1."""
    del partition_info
    rng = np.random.default_rng(shape[0] * 1000 + shape[1])
    return tf.constant(rng.normal(0, 0.8, tuple(shape)).astype(np.float32), dtype)


def identity(name: str, buckets: int = 10, default: int | None = None) -> Any:
    return fc.categorical_column_with_identity(name, buckets, default)


def embedding(column: Any, dimension: int = 4, **options: Any) -> Any:
    return fc.embedding_column(column, dimension, initializer=initializer, **options)


def sparse(values: Any, rows: Sequence[int] = (0, 0, 1, 3, 3, 5)) -> tf.SparseTensor:
    """One value per entry of `rows`; rows 2 and 4 are empty by default."""
    places = [[row, list(rows[:k]).count(row)] for k, row in enumerate(rows)]
    return tf.SparseTensor(places, tf.constant(values), [ROWS, 3])


@dataclass(frozen=True)
class Outcome:
    """What a layer computed."""

    output: Array
    names: list[str]
    """Of the variables, as paths below the layer, sorted."""
    gradients: dict[str, tuple[list[int], Array]]
    """Ids and dense gradient of each trainable variable, by name."""


def run(layer: Any, features: Features, compiled: bool) -> Outcome:
    """Forward and backward, with a loss in which every element counts differently."""

    def step(tensors: Features) -> Any:
        with tf.GradientTape() as tape:
            output = layer(tensors)
            factors = tf.cos(tf.range(tf.size(output), dtype=tf.float32))
            loss = tf.reduce_sum(tf.reshape(output, [-1]) * factors)
        tables = [v if isinstance(v, tf.Variable) else v.value for v in layer.trainable_weights]
        gradients = tape.gradient(loss, tables) if tables else []
        return output, [gradient_parts(*pair) for pair in zip(gradients, tables, strict=True)]

    output, parts = (tf.function(step) if compiled else step)(features)
    names = [path(v).split("/", 1)[1] for v in layer.trainable_weights]
    return Outcome(
        output.numpy(),
        sorted(path(v).split("/", 1)[1] for v in layer.weights),
        {
            n: (sorted(i.numpy().tolist()), d.numpy())
            for n, (i, d) in zip(names, parts, strict=True)
        },
    )


def path(variable: Any) -> str:
    """`<layer>/<column>/<name>` of a variable of either Keras."""
    name: str = getattr(variable, "path", variable.name)
    return name.removesuffix(":0")


def stock_layer(columns: Sequence[Any]) -> Any:
    """tf_keras's layer, that leaves features their dtype as compat.v1's `input_layer` does."""
    return tf_keras.layers.DenseFeatures(list(columns), name="inputs", autocast=False)


def our_layer(columns: Sequence[Any], **options: Any) -> Any:
    """Our layer."""
    return DenseFeatures(list(columns), name="inputs", **options)


def for_stock(features: Features) -> Features:
    """Features as tf_keras's layer takes them: nothing ragged."""
    return {
        name: value.to_sparse() if isinstance(value, tf.RaggedTensor) else value
        for name, value in features.items()
    }


def assert_same(
    ours: Outcome, stock: Outcome, check: Callable[..., None] = assert_same_bits
) -> None:
    """The same variables, outputs and gradients, ids included."""
    assert ours.names == stock.names
    check(ours.output, stock.output)
    assert ours.gradients.keys() == stock.gradients.keys()
    for name, (ids, gradient) in ours.gradients.items():
        assert len(set(ids)) == len(ids)
        assert ids == stock.gradients[name][0]
        check(gradient, stock.gradients[name][1])


def assert_close(actual: Array, expected: Array) -> None:
    """For what is bit-exact in neither implementation: weights and limits of the norm."""
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-6)


def op_types(function: Any) -> list[str]:
    """The ops of a concrete function and of all it calls that its outputs need."""
    graph = function.graph.as_graph_def()
    nodes = list(graph.node) + [node for f in graph.library.function for node in f.node_def]
    return [node.op for node in nodes]
