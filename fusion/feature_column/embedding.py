"""`embedding_column` with the argument `do_fusion`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.feature_column import feature_column_v2 as stock
from tensorflow.python.feature_column import serialization
from tensorflow.python.ops.variables import PartitionedVariable

from fusion.lookup import VERSIONS, LookupOptions, fused_safe_embedding_lookup_sparse, lookup


@serialization.register_feature_column
class FusedEmbeddingColumn(stock.EmbeddingColumn):
    """A stock embedding column with one more field, `do_fusion`, that changes its lookup.

    Accepted wherever the stock column is: it creates the same variable under the same name. The
    class has a name of its own because TensorFlow finds serialized columns by class name.
    """

    _fields = (*stock.EmbeddingColumn._fields, "do_fusion")

    def __new__(
        cls,
        categorical_column: Any,
        dimension: int,
        combiner: str,
        initializer: Any,
        ckpt_to_load_from: str | None,
        tensor_name_in_ckpt: str | None,
        max_norm: float | None,
        trainable: bool,
        use_safe_embedding_lookup: bool = True,
        do_fusion: str = "v2",
    ) -> FusedEmbeddingColumn:
        """The stock column's fields, and `do_fusion`."""
        fields = (
            categorical_column,
            dimension,
            combiner,
            initializer,
            ckpt_to_load_from,
            tensor_name_in_ckpt,
            max_norm,
            trainable,
            use_safe_embedding_lookup,
            do_fusion,
        )
        # The stock class is a named tuple of nine fields; the tenth takes part in equality and
        # hashing, so that a fused and a stock column are never taken for each other.
        return tuple.__new__(cls, fields)

    @classmethod
    def _make(cls, iterable: Any) -> FusedEmbeddingColumn:
        return cls(*iterable)

    def _replace(self, **fields: Any) -> FusedEmbeddingColumn:
        """A copy with some fields changed; the inherited one knows only the stock fields."""
        unknown = fields.keys() - set(self._fields)
        if unknown:
            raise ValueError(f"{type(self).__name__} has no fields {sorted(unknown)}")
        return type(self)(**(self._asdict() | fields))

    def __repr__(self) -> str:
        fields = ", ".join(
            f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True)
        )
        return f"{type(self).__name__}({fields})"

    @property
    def do_fusion(self) -> str:
        """The family of fused ops that the lookup uses."""
        version: str = self[len(stock.EmbeddingColumn._fields)]
        return version

    def _get_dense_tensor_internal_helper(
        self, sparse_tensors: Any, embedding_weights: Any
    ) -> tf.Tensor:
        """The lookup; the stock column calls this from all of its entry points."""
        self._restore(embedding_weights)
        ids, weights = sparse_tensors.id_tensor, sparse_tensors.weight_tensor
        name = f"{self.name}_weights"
        rank = ids.dense_shape.shape[0]
        if self.use_safe_embedding_lookup or rank is None or rank > 2:
            return fused_safe_embedding_lookup_sparse(
                embedding_weights,
                ids,
                weights,
                combiner=self.combiner,
                name=name,
                max_norm=self.max_norm,
                fusion_version=self.do_fusion,
            )
        checked = LookupOptions.checked(
            self.combiner,
            None,
            self.max_norm,
            None,
            prune=False,
            fill_empty_row=False,
            version=self.do_fusion,
        )
        with tf.name_scope(name):
            return lookup(embedding_weights, ids, weights, checked.until_last_row())

    def _restore(self, embedding_weights: Any) -> None:
        if self.ckpt_to_load_from is None:
            return
        if isinstance(embedding_weights, PartitionedVariable):
            embedding_weights = list(embedding_weights)
        tf.compat.v1.train.init_from_checkpoint(
            self.ckpt_to_load_from, {self.tensor_name_in_ckpt: embedding_weights}
        )


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
        that family.

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
    if do_fusion is None:
        return column
    if do_fusion not in VERSIONS:
        raise ValueError(f"do_fusion must be None or one of {VERSIONS}, got {do_fusion!r}")
    return FusedEmbeddingColumn._make((*column, do_fusion))
