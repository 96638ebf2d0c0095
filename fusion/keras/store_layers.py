"""Layers whose rows come from a table store, as those of HugeCTR's HPS.

Here is what they do in either Keras; `fusion.keras.keras3` and `fusion.keras.tf_keras` have the
classes, each of these before a layer of its Keras.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fusion import ops
from fusion.lookup import Lookup, LookupOptions, single_lookup
from fusion.schema.attributes import COMBINERS
from fusion.tables.arguments import integer, is_key_dtype

_Layer: Any = object  # that of a Keras comes behind


class StoreLookup(_Layer):
    """A base before a Keras's layer: a table of a store, by the names of both.

    Args:
      table_name: of the table in the store.
      dimension: D, elements of a row.
      store: the name under which a `fusion.tables.TableStore` is open when the layer runs.
      **kwargs: of a layer of the Keras.
    """

    def __init__(
        self, table_name: str, dimension: int, store: str = "default", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        for name, value in (("table_name", table_name), ("store", store)):
            if not isinstance(value, str) or not value:
                raise ValueError(f"{name} must be a name, got {value!r}")
        self.table_name, self.store = table_name, store
        self.dimension = integer("dimension", dimension)

    def build(self, input_shape: Any = None) -> None:
        """The layer has no weights."""
        del input_shape
        self.built = True

    def _rows(self, keys: tf.Tensor) -> tf.Tensor:
        """The rows of int64 keys [...], [..., D]."""
        (rows,) = ops.table_store_gather(
            [keys], tables=[self.table_name], dims=[self.dimension], store=self.store
        )
        return tf.ensure_shape(rows, keys.shape.concatenate([self.dimension]))

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        own = {"table_name": self.table_name, "dimension": self.dimension, "store": self.store}
        return {**super().get_config(), **own}


class LookupLayer(StoreLookup):
    """The rows of keys, from a table store.

    They are constants to gradients.

    Args:
      table_name, dimension, store: see `StoreLookup`.
      **kwargs: of a layer of the Keras.

    Call arguments:
      inputs: keys, integers: a Tensor [...] or a RaggedTensor.

    Returns:
      [..., D] of the compute dtype. A key without a row has the table's default value.

    Raises:
      RuntimeError: Keras 3 has another backend than TensorFlow.
      ValueError, TypeError: an argument that cannot be, or keys that are no integers.
      tf.errors.FailedPreconditionError: at run time, no such store is open, or it has no such
        table.
      tf.errors.UnavailableError: at run time, a tier of the store does not answer.
    """

    def call(self, inputs: Any) -> tf.Tensor | tf.RaggedTensor:
        """See the class."""
        if isinstance(inputs, tf.RaggedTensor):
            rows = tf.cast(self._rows(_keys(inputs.flat_values, self.name)), self.compute_dtype)
            return inputs.with_flat_values(rows)
        return tf.cast(self._rows(_keys(inputs, self.name)), self.compute_dtype)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """[..., D]."""
        return (*input_shape, self.dimension)


class SparseLookupLayer(StoreLookup):
    """Combines the rows of the keys of each row of a batch, from a table store.

    Distinct keys are looked up once. The numbers are those of `tf.nn.embedding_lookup_sparse` with
    a table that has these rows, but there are as many results as rows, and those without keys are
    zeros. The rows are constants to gradients; weights are not.

    Args:
      table_name, dimension, store: see `StoreLookup`.
      combiner: "mean", "sum" or "sqrtn".
      max_norm: limit of the L2 norm of each row before it is combined, None for none.
      **kwargs: of a layer of the Keras.

    Call arguments:
      inputs: keys, a SparseTensor [B, any] or a RaggedTensor [B, (any)] of integers.
      weights: of the keys, in the same order: a SparseTensor, a RaggedTensor or a Tensor [nnz],
        cast to float32; None for none.

    Returns:
      [B, D] of the compute dtype. A key without a row has the table's default value.

    Raises:
      RuntimeError: Keras 3 has another backend than TensorFlow.
      ValueError, TypeError: an argument that cannot be, or keys that are no integers.
      tf.errors.FailedPreconditionError, tf.errors.UnavailableError: see `LookupLayer`.
    """

    def __init__(
        self,
        table_name: str,
        dimension: int,
        store: str = "default",
        combiner: str = "mean",
        max_norm: float | None = None,
        **kwargs: Any,
    ) -> None:
        if combiner not in COMBINERS:
            raise ValueError(f"combiner must be one of {COMBINERS}, got {combiner!r}")
        super().__init__(table_name, dimension, store, **kwargs)
        self.combiner = combiner
        self.max_norm = None if max_norm is None else float(max_norm)
        self._options = LookupOptions.checked(
            combiner, None, max_norm, None, prune=False, fill_empty_row=False
        )

    def call(self, inputs: Any, weights: Any = None) -> tf.Tensor:
        """See the class."""
        if not isinstance(inputs, tf.SparseTensor | tf.RaggedTensor):
            kind = type(inputs).__name__
            raise TypeError(f"layer {self.name!r}: keys must be sparse or ragged, got {kind}")
        if inputs.shape.rank not in (None, 2):
            raise ValueError(f"layer {self.name!r}: keys must be [B, any], got {inputs.shape}")
        values = inputs.values
        distinct, numbers = tf.unique(_keys(values, self.name), tf.int64)
        if isinstance(inputs, tf.RaggedTensor):
            ids = inputs.with_values(numbers)
        else:
            ids = tf.SparseTensor(inputs.indices, numbers, inputs.dense_shape)
        column = Lookup(self._rows(distinct), ids, _float_weights(weights), self._options)
        return tf.cast(single_lookup(column), self.compute_dtype)

    def compute_output_shape(
        self, inputs_shape: Any, weights_shape: Any = None
    ) -> tuple[int | None, int]:
        """[B, D]. Keras 3 wants the names of the arguments of `call`."""
        del weights_shape
        return (inputs_shape[0], self.dimension)

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        return {**super().get_config(), "combiner": self.combiner, "max_norm": self.max_norm}


def _keys(keys: Any, layer: str) -> tf.Tensor:
    """Keys as int64.

    Raises:
      TypeError: they are of a dtype with values that int64 does not have.
    """
    keys = tf.convert_to_tensor(keys)
    if not is_key_dtype(keys.dtype):
        raise TypeError(f"layer {layer!r}: keys must be int64, got {keys.dtype.name}")
    return tf.cast(keys, tf.int64)


def _float_weights(weights: Any) -> Any:
    """Weights of float32: the same structure."""
    if isinstance(weights, tf.SparseTensor):
        return tf.SparseTensor(
            weights.indices, tf.cast(weights.values, tf.float32), weights.dense_shape
        )
    return None if weights is None else tf.cast(weights, tf.float32)
