"""The wide-and-deep model as users of stock TensorFlow write it: feature columns in a v1 graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from modelzoo import criteo

HIDDEN_UNITS = (256, 128, 64)
EMBEDDING_DIM = 16


@dataclasses.dataclass(frozen=True)
class Columns:
    """Feature columns by the part of the model that reads them."""

    wide: Sequence[Any]
    deep: Sequence[Any]


@dataclasses.dataclass(frozen=True)
class Outputs:
    """Tensors of the model.

    Attributes:
        embeddings: float32 [n, 26 * dim], the deep part's input.
        logits: float32 [n, 1].
        probabilities: float32 [n, 1], the sigmoid of the logits.
    """

    embeddings: tf.Tensor
    logits: tf.Tensor
    probabilities: tf.Tensor


def log_transform(counts: tf.Tensor) -> tf.Tensor:
    """Returns log(1 + x), with negative (missing) counts taken as 0."""
    return tf.math.log1p(tf.maximum(counts, 0.0))


def feature_columns(rows: Mapping[str, int], dim: int = EMBEDDING_DIM) -> Columns:
    """Returns the columns for the 13 counts and for categorical features with `rows` ids each."""
    return Columns(
        wide=[
            tf.feature_column.numeric_column(name, normalizer_fn=log_transform)
            for name in criteo.NUMERIC
        ],
        deep=[
            tf.feature_column.embedding_column(
                tf.feature_column.categorical_column_with_identity(name, num_buckets=count),
                dimension=dim,
                combiner="mean",
            )
            for name, count in rows.items()
        ],
    )


def build(features: Mapping[str, tf.Tensor], columns: Columns) -> Outputs:
    """Adds the model to the current v1 graph; `features` holds [n, 1] tensors by name."""
    with tf.compat.v1.variable_scope("wide"):
        wide = tf.compat.v1.feature_column.linear_model(features, columns.wide)
    with tf.compat.v1.variable_scope("deep"):
        embeddings = tf.compat.v1.feature_column.input_layer(features, columns.deep)
        hidden = embeddings
        for layer, units in enumerate(HIDDEN_UNITS):
            hidden = tf.nn.relu(_dense(hidden, units, f"hidden_{layer}"))
        deep = _dense(hidden, 1, "logits")
    logits = tf.add(wide, deep, name="logits")
    return Outputs(embeddings, logits, tf.sigmoid(logits, name="probabilities"))


def placeholders() -> dict[str, tf.Tensor]:
    """Adds one placeholder [n, 1] per feature, float32 for counts and int64 for ids."""
    dtypes = dict.fromkeys(criteo.NUMERIC, tf.float32) | dict.fromkeys(criteo.CATEGORICAL, tf.int64)
    return {
        name: tf.compat.v1.placeholder(dtype, [None, 1], name=name)
        for name, dtype in dtypes.items()
    }


def _dense(inputs: tf.Tensor, units: int, name: str) -> tf.Tensor:
    with tf.compat.v1.variable_scope(name):
        kernel = tf.compat.v1.get_variable(
            "kernel",
            [inputs.shape[-1], units],
            initializer=tf.compat.v1.glorot_uniform_initializer(),
        )
        bias = tf.compat.v1.get_variable(
            "bias", [units], initializer=tf.compat.v1.zeros_initializer()
        )
        return tf.nn.bias_add(tf.matmul(inputs, kernel), bias)
