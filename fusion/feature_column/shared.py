"""`shared_embeddings` and compat.v1's `shared_embedding_columns`, with the argument `do_fusion`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.feature_column import feature_column as stock_v1
from tensorflow.python.feature_column import feature_column_v2 as stock
from tensorflow.python.feature_column import serialization

from fusion.feature_column.fused import FusedColumn, restore

v1 = tf.compat.v1


@serialization.register_feature_column
class FusedSharedEmbeddingColumn(FusedColumn, stock.SharedEmbeddingColumn):
    """A stock shared column with one more field, `do_fusion`, that changes its lookup.

    The table belongs to the `shared_embedding_column_creator` that all columns of one call of
    `shared_embeddings` have, fused or not.
    """

    def _get_dense_tensor_internal(self, transformation_cache: Any, state_manager: Any) -> Any:
        """The lookup; the stock column calls this from all of its entry points."""
        with v1.name_scope(None, default_name=self.name):
            ids = self.categorical_column.get_sparse_tensors(transformation_cache, state_manager)
            return self._look_up(self.shared_embedding_column_creator.embedding_weights, ids)


class FusedSharedEmbeddingColumnV1(FusedColumn, stock_v1._SharedEmbeddingColumn):
    """A stock compat.v1 shared column with one more field, `do_fusion`.

    The table is found through a graph collection, where stock columns find it as well.
    """

    def _get_dense_tensor_internal(
        self, inputs: Any, weight_collections: Any = None, trainable: Any = None
    ) -> Any:
        """The lookup; the stock column calls this from all of its entry points."""
        with v1.name_scope(None, default_name=self.name):
            ids = self.categorical_column._get_sparse_tensors(
                inputs, weight_collections=weight_collections, trainable=trainable
            )
            table = self._table(weight_collections, trainable)
            restore(table, self.ckpt_to_load_from, self.tensor_name_in_ckpt)
            return self._look_up(table, ids)

    def _table(self, weight_collections: Any, trainable: Any) -> Any:
        """The one variable of the collection, which the first column to ask creates."""
        name = self.shared_embedding_collection_name
        shape = [self.categorical_column._num_buckets, self.dimension]
        variables = v1.get_collection(name)
        if not variables:
            table = v1.get_variable(
                "embedding_weights",
                shape,
                tf.float32,
                self.initializer,
                trainable=self.trainable and trainable,
                collections=weight_collections,
            )
            v1.add_to_collection(name, table)
            return table
        if len(variables) > 1:
            raise ValueError(
                f"shared_embedding_collection_name {name!r} must name a collection of one "
                f"variable, got {variables}"
            )
        if variables[0].get_shape().as_list() != shape:
            raise ValueError(
                f"shared_embedding_collection_name {name!r} must name a collection of a variable "
                f"of shape {shape}, got {variables[0]}"
            )
        return variables[0]


def shared_embeddings(
    categorical_columns: Sequence[Any],
    dimension: int,
    combiner: str = "mean",
    initializer: Callable[..., Any] | None = None,
    shared_embedding_collection_name: str | None = None,
    ckpt_to_load_from: str | None = None,
    tensor_name_in_ckpt: str | None = None,
    max_norm: float | None = None,
    trainable: bool = True,
    use_safe_embedding_lookup: bool = True,
    do_fusion: str | None = None,
) -> list[Any]:
    """Dense columns of embeddings of several categorical columns' ids in one table.

    The arguments are those of `tf.feature_column.shared_embeddings`, and one more. Like it, for
    layers such as tf_keras `DenseFeatures` in a graph.

    Args:
      categorical_columns: columns of ids (and weights), of one kind and number of buckets.
      dimension: size D of an embedding, > 0.
      combiner: "sum", "mean" or "sqrtn".
      initializer: of the table; truncated normal with deviation 1/sqrt(D) if None.
      shared_embedding_collection_name: name of the table; made of the columns' names if None.
      ckpt_to_load_from: checkpoint to restore the table from, with `tensor_name_in_ckpt`.
      tensor_name_in_ckpt: name of the table there.
      max_norm: limit of the L2 norm of each embedding.
      trainable: whether the table is trained.
      use_safe_embedding_lookup: whether ids < 0 are dropped and empty rows give zeros.
      do_fusion: None for the stock columns and their stock graph; "v1" or "v2" for the fused ops
        of that family.

    Returns:
      One dense column per categorical column, in their order.

    Raises:
      ValueError: as the stock function, and for an unknown `do_fusion`.
      RuntimeError: as the stock function, when executing eagerly.
    """
    columns = tf.feature_column.shared_embeddings(
        categorical_columns,
        dimension,
        combiner=combiner,
        initializer=initializer,
        shared_embedding_collection_name=shared_embedding_collection_name,
        ckpt_to_load_from=ckpt_to_load_from,
        tensor_name_in_ckpt=tensor_name_in_ckpt,
        max_norm=max_norm,
        trainable=trainable,
        use_safe_embedding_lookup=use_safe_embedding_lookup,
    )
    return [FusedSharedEmbeddingColumn.of(column, do_fusion) for column in columns]


def shared_embedding_columns(
    categorical_columns: Sequence[Any],
    dimension: int,
    combiner: str = "mean",
    initializer: Callable[..., Any] | None = None,
    shared_embedding_collection_name: str | None = None,
    ckpt_to_load_from: str | None = None,
    tensor_name_in_ckpt: str | None = None,
    max_norm: float | None = None,
    trainable: bool = True,
    use_safe_embedding_lookup: bool = True,
    do_fusion: str | None = None,
) -> list[Any]:
    """Dense columns of embeddings of several categorical columns' ids in one table.

    The arguments are those of `tf.compat.v1.feature_column.shared_embedding_columns`, and
    `do_fusion`. Like it, for compat.v1 `input_layer` and `linear_model`.

    Args:
      categorical_columns: see `shared_embeddings`, as for the other arguments.
      dimension: size D of an embedding, > 0.
      combiner: "sum", "mean" or "sqrtn".
      initializer: of the table.
      shared_embedding_collection_name: graph collection that holds the table, and its scope.
      ckpt_to_load_from: checkpoint to restore the table from.
      tensor_name_in_ckpt: name of the table there.
      max_norm: limit of the L2 norm of each embedding.
      trainable: whether the table is trained.
      use_safe_embedding_lookup: whether ids < 0 are dropped and empty rows give zeros.
      do_fusion: None for the stock columns and their stock graph; "v1" or "v2" for the fused ops
        of that family.

    Returns:
      One dense column per categorical column, in their order.

    Raises:
      ValueError, RuntimeError: as `shared_embeddings`.
    """
    columns = v1.feature_column.shared_embedding_columns(
        categorical_columns,
        dimension,
        combiner=combiner,
        initializer=initializer,
        shared_embedding_collection_name=shared_embedding_collection_name,
        ckpt_to_load_from=ckpt_to_load_from,
        tensor_name_in_ckpt=tensor_name_in_ckpt,
        max_norm=max_norm,
        trainable=trainable,
        use_safe_embedding_lookup=use_safe_embedding_lookup,
    )
    return [FusedSharedEmbeddingColumnV1.of(column, do_fusion) for column in columns]
