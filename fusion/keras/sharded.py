"""Sharded tables as the tables of layers, of Keras 3 and of tf_keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fusion.distribute.sharded_table import ShardedTable
from fusion.keras.tables import weights_at_once


def add_sharded_table(layer: Any, mode: str) -> ShardedTable:
    """Adds the shards of this process to a layer's weights, as `embeddings_0` and so on.

    Args:
      layer: with `input_dim`, `output_dim` and `embeddings_initializer`; its `add_weight` is that
        of Keras 3, or knows its `autocast`.
      mode: of the table.
    """

    def make(replica: int, shape: list[int], rows: Callable[[], tf.Tensor]) -> Any:
        weight = layer.add_weight(
            name=f"embeddings_{replica}",
            shape=tuple(shape),
            initializer=lambda *_, **__: rows(),
            trainable=True,
            autocast=False,
        )
        return weight if isinstance(weight, tf.Variable) else weight.value

    with weights_at_once():
        return ShardedTable(
            layer.input_dim,
            layer.output_dim,
            mode,
            initializer=layer.embeddings_initializer,
            dtype=layer.variable_dtype,
            name=f"{layer.name}/embeddings",
            make_shard=make,
        )
