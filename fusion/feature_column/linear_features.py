"""`LinearFeatures` for Keras 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from fusion.feature_column.column_state import scope_name
from fusion.feature_column.config import from_configs, to_configs
from fusion.feature_column.inputs import batch_size, check_names, check_not_compiled
from fusion.feature_column.layer_state import LayerState, in_symbolic_scope
from fusion.feature_column.linear import BIAS, LinearColumns
from fusion.tables.keras_store import KeyedWeights


@keras.saving.register_keras_serializable(package="fusion")
class LinearFeatures(KeyedWeights, keras.layers.Layer):
    """A layer that adds up weighted feature columns and a bias, for Keras 3.

    It is the wide side of a wide and deep model. Its numbers are those of
    `tf.compat.v1.feature_column.linear_model`: the products of dense columns and their weights, and
    for each categorical column the weights of a row's ids, combined. Each of these has stock's bits
    (within rounding, if the ids have weights of their own); their sum is within rounding, as stock
    adds them in no fixed order. All weights and the bias [units] begin as zeros, and have
    `linear_model`'s names, `<layer>/<column>/weights` and `<layer>/bias_weights`.

    Call it with a dict of tensors by feature name, as `DenseFeatures`: lists may be ragged, or
    `<name>__values` and `<name>__offsets`. In a dense categorical feature -1 and "" are missing.

    Args:
      feature_columns: of `tf.feature_column` or of this package: categorical ones, which have
        weights [ids, units] (those of `categorical_column_with_embedding` an `EmbeddingVariable`),
        and dense ones, whose weights are [elements, units].
      units: elements of a result's row, at least 1.
      sparse_combiner: "sum", "mean" or "sqrtn": how the weights of a row's ids in a categorical
        column are combined.
      do_fusion: None to look up categorical columns by stock ops, "v1" or "v2" by fused ones. All
        of them share one op: where no gradient is asked for it reads the tables in place, else it
        is one before the gathers, one after them and one for their gradients. The family counts
        for columns whose table is in partitions, which have ops of their own.
      **kwargs: of a Keras layer, e.g. `name`, `trainable`.

    Raises:
      ValueError: items that are neither; two of one name; `units`, `sparse_combiner` or
        `do_fusion` that cannot be; another Keras backend than TensorFlow. When called: a missing
        feature, XLA compilation.
      TypeError: `units` that is no integer.
      tf.errors.InvalidArgumentError: when called, an id outside its table, or offsets that are no
        row starts.
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
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                f"LinearFeatures needs Keras's backend tensorflow, got {keras.backend.backend()}"
            )
        super().__init__(autocast=False, **kwargs)
        self.supports_jit = False
        self._columns = LinearColumns(feature_columns, units, sparse_combiner, do_fusion)
        self._state = LayerState(self)
        self._is_restored = False

    def build(self, input_shape: Any = None) -> None:
        """Creates the weights; their shapes follow from the columns alone."""
        del input_shape
        for column in self._columns.all:
            self._state.create((column,), restored=self._is_restored)
            with keras.name_scope(scope_name(column.name)):
                self._columns.create_weights(column, self._state)
        self.bias = self.add_weight(
            name=BIAS, shape=(self._columns.units,), dtype="float32", initializer="zeros"
        )

    def build_from_config(self, config: Any) -> None:
        """Creates the weights of a layer whose weights come from a file, not from checkpoints."""
        self._is_restored = True
        super().build_from_config(config)

    def call(self, features: Mapping[str, Any]) -> tf.Tensor:
        """The weighted sum, float32 [B, units]."""
        if in_symbolic_scope():
            return tf.compat.v1.placeholder(tf.float32, self._output_shape(features))
        check_not_compiled(self.name)
        return self._columns.weighted_sum(features, self._state, self.bias.value)

    def compute_output_shape(self, input_shape: Mapping[str, Any]) -> tuple[int | None, int]:
        """The result's shape, from the shapes of the features."""
        check_names(input_shape, self._columns.names)
        return batch_size(input_shape, self._columns.names), self._columns.units

    def compute_output_spec(self, features: Mapping[str, Any], **_: Any) -> Any:
        """What Keras puts in place of the result when a model is put together."""
        return keras.KerasTensor(self._output_shape(features), "float32")

    def _output_shape(self, features: Mapping[str, Any]) -> tuple[int | None, int]:
        check_names(features, self._columns.names)
        return self.compute_output_shape({name: x.shape for name, x in features.items()})

    def get_config(self) -> dict[str, Any]:
        """The arguments; columns as TensorFlow serialises them."""
        return {
            **super().get_config(),
            "feature_columns": to_configs(self._columns.all),
            **self._columns.options(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> LinearFeatures:
        """A layer from `get_config`'s result, see `DenseFeatures.from_config`."""
        config = dict(config)
        return cls(from_configs(config.pop("feature_columns")), **config)
