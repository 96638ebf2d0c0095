"""The DynamicEmbedding layer."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from fusion.keras.keyed import add_keyed_table, checked_option
from fusion.keras.tables import check_backend
from fusion.tables import EmbeddingVariable, EmbeddingVariableOption
from fusion.tables.arguments import integer
from fusion.tables.keras_store import KeyedWeights


@keras.saving.register_keras_serializable("fusion")
class DynamicEmbedding(KeyedWeights, keras.layers.Layer):
    """The embeddings of keys of which there may be any number: an `EmbeddingVariable` as a layer.

    Its weight is the table of the embedding variable. A key gets a row when it is trained for the
    first time; until then, and in inference always, one without a row reads the default value.

    Keras 3 does not know variables of TensorFlow that are attributes of a layer, and so does not
    train them. A layer that calls `fusion.fused_safe_embedding_lookup_sparse`, or another lookup,
    has a `DynamicEmbedding` as an attribute, builds it, and takes its `embedding_variable`.

    Args:
      output_dim: size D of an embedding.
      embeddings_initializer: of new rows; a Keras initializer or its name.
      key_dtype: int64, int32 or string.
      ev_option: an `EmbeddingVariableOption`: when keys get rows, and how many there may be.
      **kwargs: of a Keras layer.

    Call arguments:
      inputs: keys, a Tensor [...] or a RaggedTensor.

    Returns:
      [..., D] of the compute dtype.

    Raises:
      RuntimeError: Keras has another backend than TensorFlow.
      ValueError, TypeError: an argument that cannot be, also of the dtype of weights; when it is
        called, keys of another dtype.
    """

    def __init__(
        self,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        key_dtype: Any = "int64",
        ev_option: EmbeddingVariableOption | None = None,
        **kwargs: Any,
    ) -> None:
        check_backend("fusion.keras.layers.DynamicEmbedding")
        super().__init__(**kwargs)
        self.output_dim = integer("output_dim", output_dim)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.key_dtype = tf.as_dtype(key_dtype).name
        self.ev_option = checked_option(self, ev_option)
        self.supports_jit = False
        self._variable: EmbeddingVariable | None = None

    def build(self, input_shape: Any = None) -> None:
        """Creates the table; the shape of keys does not matter."""
        del input_shape
        if self._variable is not None:
            return
        self._variable = add_keyed_table(self, self.key_dtype)
        self.built = True

    @property
    def embedding_variable(self) -> EmbeddingVariable:
        """What lookups of this package take as the table.

        Raises:
          ValueError: the layer is not built yet.
        """
        if self._variable is None:
            raise ValueError(f"layer {self.name!r} has no table yet: call its build()")
        return self._variable

    def call(self, inputs: Any) -> Any:
        """See the class."""
        if isinstance(inputs, tf.RaggedTensor):
            return inputs.with_flat_values(self.call(inputs.flat_values))
        rows = self.embedding_variable.embedding_lookup(inputs)
        return tf.cast(rows, self.compute_dtype)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """[..., D]."""
        return (*input_shape, self.output_dim)

    def compute_output_spec(self, inputs: Any) -> Any:
        """What Keras puts in place of the result when a model is put together."""
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        return {
            **super().get_config(),
            "output_dim": self.output_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "key_dtype": self.key_dtype,
            "ev_option": self.ev_option.get_config(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> DynamicEmbedding:
        """A layer from `get_config`'s result."""
        option = EmbeddingVariableOption.from_config(config["ev_option"])
        return cls(**{**config, "ev_option": option})
