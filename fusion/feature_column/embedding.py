"""`embedding_column` with the argument `do_fusion`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fusion.feature_column.fused import FusedColumn, restore
from fusion.feature_column.keyed import KeyedEmbeddingColumn
from fusion.feature_column.keys import key_column
from fusion.runtime.tensorflow.private import feature_column_v2 as stock
from fusion.runtime.tensorflow.private import serialization


@serialization.register_feature_column
class FusedEmbeddingColumn(FusedColumn, stock.EmbeddingColumn):
    """A stock embedding column with one more field, `do_fusion`, that changes its lookup.

    Accepted wherever the stock column is: it creates the same variable under the same name.
    """

    def _get_dense_tensor_internal_helper(
        self, sparse_tensors: Any, embedding_weights: Any
    ) -> tf.Tensor:
        """The lookup; the stock column calls this from all of its entry points."""
        restore(embedding_weights, self.ckpt_to_load_from, self.tensor_name_in_ckpt)
        return self._look_up(embedding_weights, sparse_tensors)


def embedding_column(
    categorical_column: Any,
    dimension: int,
    combiner: str = "mean",
    initializer: Callable[..., Any] | None = None,
    ckpt_to_load_from: str | None = None,
    tensor_name_in_ckpt: str | None = None,
    max_norm: float | None = None,
    trainable: bool = True,
    use_safe_embedding_lookup: bool = True,
    do_fusion: str | None = None,
) -> Any:
    """A dense column of embeddings of a categorical column's ids.

    The arguments are those of `tf.feature_column.embedding_column`, and one more:

    Args:
      categorical_column: the column of ids (and weights).
      dimension: size D of an embedding, > 0.
      combiner: "sum", "mean" or "sqrtn".
      initializer: of the table; truncated normal with deviation 1/sqrt(D) if None.
      ckpt_to_load_from: checkpoint to restore the table from, with `tensor_name_in_ckpt`.
      tensor_name_in_ckpt: name of the table there.
      max_norm: limit of the L2 norm of each embedding.
      trainable: whether the table is trained.
      use_safe_embedding_lookup: whether ids < 0 are dropped and empty rows give zeros.
      do_fusion: None for the stock column and its stock graph; "v1" or "v2" for the fused ops of
        that family; those of "v1" run on CPUs alone.

    Returns:
      A dense column, accepted wherever the stock column is.

    Raises:
      ValueError: as the stock function, and for an unknown `do_fusion`.
    """
    column = tf.feature_column.embedding_column(
        categorical_column,
        dimension,
        combiner=combiner,
        initializer=initializer,
        ckpt_to_load_from=ckpt_to_load_from,
        tensor_name_in_ckpt=tensor_name_in_ckpt,
        max_norm=max_norm,
        trainable=trainable,
        use_safe_embedding_lookup=use_safe_embedding_lookup,
    )
    if key_column(categorical_column) is not None:
        return KeyedEmbeddingColumn(*column, do_fusion=do_fusion)
    return FusedEmbeddingColumn.of(column, do_fusion)
