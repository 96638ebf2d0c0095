"""Embedding variables as the tables of layers, of Keras 3 and of tf_keras."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fusion.keras.tables import weights_at_once
from fusion.schema.attributes import UPDATE_DTYPES
from fusion.tables import EmbeddingVariable, EmbeddingVariableOption
from fusion.tables.initial_rows import ZerosOnDemand, max_rows
from fusion.tables.replicas import whole_variables


def checked_option(layer: Any, ev_option: Any) -> EmbeddingVariableOption:
    """The option of a layer's embedding variable, by default that of all defaults.

    Raises:
      TypeError: it is none, or no embedding variable has the dtype of the layer's weights.
    """
    option = EmbeddingVariableOption() if ev_option is None else ev_option
    if not isinstance(option, EmbeddingVariableOption):
        raise TypeError(f"ev_option must be an EmbeddingVariableOption, got {ev_option!r}")
    if layer.variable_dtype not in UPDATE_DTYPES:
        raise TypeError(f"dtype must be one of {UPDATE_DTYPES}, got {layer.variable_dtype!r}")
    return option


def add_keyed_table(layer: Any, key_dtype: str) -> EmbeddingVariable:
    """Adds the table of an embedding variable to a layer's weights, as `embeddings`.

    Args:
      layer: with `output_dim`, `embeddings_initializer` and `ev_option`; its `add_weight` is that
        of Keras 3, or knows its `autocast`.
      key_dtype: of keys.
    """
    dtype = tf.as_dtype(layer.variable_dtype)
    capacity = layer.ev_option.capacity or max_rows(layer.output_dim * dtype.size)
    with weights_at_once():
        with whole_variables():
            weight = layer.add_weight(
                name="embeddings",
                shape=(capacity, layer.output_dim),
                dtype=dtype.name,
                initializer=ZerosOnDemand(),
                trainable=True,
                autocast=False,
            )
        is_tf_keras = isinstance(weight, tf.Variable)
        variable = EmbeddingVariable(
            weight.name.partition(":")[0] if is_tf_keras else weight.path,
            layer.output_dim,
            dtype,
            key_dtype=key_dtype,
            table=weight if is_tf_keras else weight.value,
            **layer.ev_option.arguments(layer.embeddings_initializer),
        )
    variable.is_trained = lambda: bool(layer.trainable)
    return variable
