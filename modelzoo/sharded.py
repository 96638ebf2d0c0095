"""Layers of a model whose tables are in shards over the replicas of a strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import keras
import tensorflow as tf

import fusion
from fusion.distribute import ShardedTable
from modelzoo.criteo import MISSING_ID
from modelzoo.layers import Columns, KerasLayers


class ShardedEmbeddings(keras.layers.Layer):
    """Means of the vectors of ids, of sharded tables that share one lookup.

    Args:
        columns: the categorical features, and the initial values of their tables.
        dims: elements of the vectors, by name; each feature has a table of each name.
    """

    def __init__(self, columns: Columns, dims: Mapping[str, int]) -> None:
        super().__init__(name="sharded_embeddings", autocast=False)
        self._columns, self._dims = columns, dict(dims)

    def build(self, input_shape: Any = None) -> None:
        """Makes the shards of this process."""
        del input_shape
        self._tables = [
            ShardedTable(
                self._columns.inputs.rows[feature],
                dim,
                initializer=self._columns.values(name, feature),
                name=f"{name}_{feature}",
                make_shard=partial(self._shard, f"{name}_{feature}"),
            )
            for name, dim in self._dims.items()
            for feature in self._columns.features()
        ]

    def _shard(
        self, table: str, replica: int, shape: list[int], rows: Callable[[], tf.Tensor]
    ) -> Any:
        weight = self.add_weight(
            tuple(shape), initializer=lambda *_, **__: rows(), name=f"{table}_{replica}"
        )
        return weight.value

    def call(self, features: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """The vectors of all features side by side, float32 [n, features * dim], by name."""
        ids = [_without_missing(features[feature]) for feature in self._columns.features()]
        found = fusion.lookup_sparse(self._tables, ids * len(self._dims), combiners="mean")
        first = range(0, len(found), len(ids))
        return {
            name: tf.concat(found[start : start + len(ids)], 1)
            for name, start in zip(self._dims, first, strict=True)
        }

    def compute_output_spec(self, features: Mapping[str, Any]) -> dict[str, Any]:
        """The shapes of what `call` gives, which Keras then does not call to learn of them."""
        del features
        count = len(self._columns.inputs.rows)
        return {
            name: keras.KerasTensor((None, count * dim), "float32")
            for name, dim in self._dims.items()
        }


def _without_missing(ids: Any) -> tf.SparseTensor:
    """The ids that are there, of a matrix or a sparse one."""
    if isinstance(ids, tf.SparseTensor):
        return ids
    indices = tf.where(tf.not_equal(ids, MISSING_ID))
    return tf.SparseTensor(indices, tf.gather_nd(ids, indices), tf.shape(ids, tf.int64))


class ShardedLayers(KerasLayers):
    """Those of `KerasLayers`, with sharded tables in the place of embedding columns."""

    def _embedded(self, read: Mapping[str, Any], dims: Mapping[str, int]) -> dict[str, Any]:
        """See `KerasLayers`."""
        return dict(ShardedEmbeddings(self._columns, dims)(read))
