"""`LinearFeatures` for tf_keras."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tf_keras

from fusion.feature_column.column_state import create_vocabularies, scope_name
from fusion.feature_column.inputs import batch_size, check_names, check_not_compiled
from fusion.feature_column.linear import BIAS, LinearColumns
from fusion.runtime.tensorflow.private import feature_column_v2 as stock
from fusion.runtime.tensorflow.private import serialization


class _State(stock._StateManagerImpl):
    """The variables of columns, as tf_keras's `DenseFeatures` has them."""

    def dense_tensor(self, column: Any, features: Any) -> tf.Tensor:
        """The tensor of a dense column, of stock's transformation cache of features."""
        return column.get_dense_tensor(features, self)


@tf_keras.saving.register_keras_serializable("fusion")
class LinearFeatures(tf_keras.layers.Layer):
    """`linear_features.LinearFeatures` for tf_keras: the same arguments, numbers and names.

    Args, Raises: as there.
    """

    def __init__(
        self,
        feature_columns: Any,
        *,
        units: int = 1,
        sparse_combiner: str = "sum",
        do_fusion: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)
        self._columns = LinearColumns(feature_columns, units, sparse_combiner, do_fusion)
        self._state = _State(self, self.trainable)

    def build(self, input_shape: Any = None) -> None:
        """Creates the weights; their shapes follow from the columns alone."""
        del input_shape
        # The scopes of DenseFeatures, on which variables' names depend.
        with tf.compat.v1.variable_scope(self.name):
            for column in self._columns.all:
                with tf.compat.v1.variable_scope(scope_name(column.name)):
                    column.create_state(self._state)
                    self._columns.create_weights(column, self._state)
                create_vocabularies(column, self._state)
        self.bias = self.add_weight(
            name=BIAS, shape=(self._columns.units,), dtype=tf.float32, initializer="zeros"
        )
        super().build(None)

    def call(self, features: Mapping[str, Any]) -> tf.Tensor:
        """The weighted sum, float32 [B, units]."""
        check_not_compiled(self.name)
        return self._columns.weighted_sum(features, self._state, self.bias)

    def compute_output_shape(self, input_shape: Mapping[str, Any]) -> tf.TensorShape:
        """The result's shape, from the shapes of the features."""
        shapes = {name: tf.TensorShape(shape) for name, shape in input_shape.items()}
        check_names(shapes, self._columns.names)
        return tf.TensorShape([batch_size(shapes, self._columns.names), self._columns.units])

    def get_config(self) -> dict[str, Any]:
        """The arguments; columns as TensorFlow serialises them."""
        columns = [serialization.serialize_feature_column(column) for column in self._columns.all]
        return {**super().get_config(), "feature_columns": columns, **self._columns.options()}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> LinearFeatures:
        """A layer from `get_config`'s result."""
        config, known = dict(config), dict[str, Any]()
        columns = [
            serialization.deserialize_feature_column(column, custom_objects, known)
            for column in config.pop("feature_columns")
        ]
        return cls(columns, **config)
