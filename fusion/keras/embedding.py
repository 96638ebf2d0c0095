"""The Embedding layer."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from fusion.keras.tables import as_ids, check_backend, gather, table_of
from fusion.lookup import fused_safe_embedding_lookup_sparse


@keras.saving.register_keras_serializable("fusion")
class Embedding(keras.layers.Embedding):
    """`keras.layers.Embedding` that gathers the rows of the batch from its table.

    Keras's own one reads the whole table first, which TensorFlow copies in each step that writes
    rows of it. Results, gradients, arguments, configuration, and the name and shape of the weight
    are Keras's. With a regularizer, LoRA, or quantized, which need the whole table, it is Keras's.

    Raises:
      RuntimeError: Keras has another backend than TensorFlow.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Checks the backend before Keras's own constructor runs."""
        check_backend(f"fusion.keras.layers.{cls.__name__}")
        return super().__new__(cls, *args, **kwargs)

    def call(self, inputs: Any) -> Any:
        """The rows of ids of any shape, of the compute dtype; ids < 0 count from the table's end.

        Args:
          inputs: Tensor, RaggedTensor or SparseTensor. What a SparseTensor has no element for is
            looked up as id 0.
        """
        if self.lora_enabled or self.embeddings_regularizer is not None:
            return super().call(inputs)
        table, ids = table_of(self), as_ids(inputs)
        if isinstance(ids, tf.SparseTensor):
            rows = self._sparse_rows(table, ids)
        elif isinstance(ids, tf.RaggedTensor):
            rows = ids.with_flat_values(gather(table, self._from_start(ids.flat_values)))
        else:
            rows = gather(table, self._from_start(tf.convert_to_tensor(ids)))
        return tf.cast(rows, self.compute_dtype)

    def _from_start(self, ids: tf.Tensor) -> tf.Tensor:
        return tf.where(ids < 0, ids + self.input_dim, ids)

    def _sparse_rows(self, table: Any, ids: tf.SparseTensor) -> tf.Tensor:
        """[..., D] of a SparseTensor: each element is a bag of its own, or an empty one."""
        shape = ids.shape
        if not self._prunes():
            ids = tf.SparseTensor(ids.indices, self._from_start(ids.values), ids.dense_shape)
        elements = tf.sparse.expand_dims(ids, -1)
        rows = fused_safe_embedding_lookup_sparse(table, elements, default_id=0)
        return tf.ensure_shape(rows, [*shape, self.output_dim])

    def _prunes(self) -> bool:
        """Whether Keras's layer takes elements < 0 of a SparseTensor for none: where it casts."""
        major, minor, _ = keras.__version__.split(".", 2)
        return (int(major), int(minor)) < (3, 10) and self.compute_dtype != self.variable_dtype
