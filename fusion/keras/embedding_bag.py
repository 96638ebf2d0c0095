"""The EmbeddingBag layer."""

from __future__ import annotations

import operator
from typing import Any

import keras
import tensorflow as tf

from fusion.keras.bags import COMBINERS, Bags, combine
from fusion.keras.embedding import Embedding
from fusion.keras.tables import table_of
from fusion.runtime.tensorflow.private import control_flow_util


@keras.saving.register_keras_serializable("fusion")
class EmbeddingBag(Embedding):
    """Looks up bags of ids and combines the rows of each bag into one.

    It is `keras.layers.Embedding` and a reduction behind it, without the rows of the batch between
    them: fused ops gather distinct ids, combine their rows, and give the table a gradient with
    distinct ids.

        sum    sum of w row
        mean   sum of w row / sum of w
        sqrtn  sum of w row / sqrt(sum of w^2)
        max    the largest number in each of D

    with weights w that are 1 if none are given. A bag without ids is zeros, and so is one whose
    divisor is 0.

    Args:
      input_dim, output_dim, embeddings_initializer, embeddings_regularizer, embeddings_constraint:
        as of `keras.layers.Embedding`.
      combiner: "sum", "mean", "sqrtn" or "max".
      mask_zero: whether id 0 is padding; the same as `padding=0`.
      padding: an id that is skipped; need not be in the table, so that -1 can be one.
      **kwargs: `weights`, the initial table, and others of `keras.layers.Embedding`.

    Call arguments:
      inputs: ids as a Tensor [B, L], or [B] for bags of one, as a RaggedTensor [B, (L)] or as a
        SparseTensor [B, L]. Dtypes other than int32 and int64 are cast to int32.
      weights: of the ids, of the same kind and shape, with the same elements; not of "max". None
        for none.
      training: False for a single op that reads the table in place; by default ops around a gather.

    Returns:
      [B, D] of the compute dtype. Sums are those of the weight's dtype.

    Raises:
      RuntimeError: Keras has another backend than TensorFlow.
      ValueError: an argument that cannot be; when it is called, ids or weights of another rank, of
        kinds that do not go together, in a function that XLA compiles.
      tf.errors.InvalidArgumentError: at run time, an id outside the table that is no padding.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        embeddings_constraint: Any = None,
        mask_zero: bool = False,
        combiner: str = "mean",
        padding: int | None = None,
        **kwargs: Any,
    ) -> None:
        if combiner not in COMBINERS:
            raise ValueError(f"combiner must be one of {COMBINERS}, got {combiner!r}")
        if padding is not None:
            padding = operator.index(padding)
        if mask_zero and padding not in (None, 0):
            raise ValueError(f"with mask_zero the padding is 0, got padding={padding!r}")
        super().__init__(
            input_dim,
            output_dim,
            embeddings_initializer=embeddings_initializer,
            embeddings_regularizer=embeddings_regularizer,
            embeddings_constraint=embeddings_constraint,
            mask_zero=mask_zero,
            **kwargs,
        )
        self.combiner = combiner
        self.padding = padding
        # Nothing is left to be masked.
        self.supports_masking = False
        self.supports_jit = False

    def call(self, inputs: Any, weights: Any = None, training: bool | None = None) -> tf.Tensor:
        """See the class."""
        if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
            raise ValueError(
                f"layer {self.name!r} cannot be compiled by XLA: its ops have results of unknown "
                "shape. Leave out jit_compile=True"
            )
        if weights is not None and self.combiner == "max":
            raise ValueError(f"layer {self.name!r} takes no weights: its combiner is 'max'")
        padding = 0 if self.mask_zero else self.padding
        table = table_of(self)
        bags = Bags.of(inputs, weights, table.dtype.base_dtype, self.name)
        result = combine(table, bags, self.combiner, padding, training=training is not False)
        result.set_shape([None, self.output_dim])
        return tf.cast(result, self.compute_dtype)

    def compute_mask(self, inputs: Any, mask: Any = None) -> None:
        """Nothing: the result has no dimension of ids."""

    def compute_output_shape(
        self, input_shape: Any, weights_shape: Any = None
    ) -> tuple[int | None, int]:
        """[B, D]."""
        return (input_shape[0], self.output_dim)

    def compute_output_spec(self, inputs: Any, weights: Any = None, training: Any = None) -> Any:
        """What Keras puts in place of the result when a model is put together."""
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        return {**super().get_config(), "combiner": self.combiner, "padding": self.padding}
