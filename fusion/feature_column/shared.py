"""`shared_embeddings` and compat.v1's `shared_embedding_columns`, with the argument `do_fusion`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from fusion.feature_column.fused import FusedColumn, check_no_checkpoint, restore
from fusion.feature_column.keyed import TABLE, KeyedTableCreator, TableOfKeys
from fusion.feature_column.keys import KeyColumn, check_same_table, key_column, shared_keys
from fusion.runtime.tensorflow.private import feature_column as stock_v1
from fusion.runtime.tensorflow.private import feature_column_v2 as stock
from fusion.runtime.tensorflow.private import serialization
from fusion.tables.partitioned import KeyedTable

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

    The table is in a graph collection, where stock columns look for it as well.
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
        """The one table of the collection, which the first column to ask creates."""
        name, keys = self.shared_embedding_collection_name, key_column(self.categorical_column)
        collection = v1.get_collection(name)
        if not collection:
            if keys is None:
                table = v1.get_variable(
                    TABLE,
                    [self.categorical_column._num_buckets, self.dimension],
                    tf.float32,
                    self.initializer,
                    trainable=self.trainable and trainable,
                    collections=weight_collections,
                )
            else:
                creator = TableOfKeys(keys, self.dimension, self.initializer, self.trainable)
                table = _Collected(creator.get(TABLE, trainable, weight_collections), keys)
            v1.add_to_collection(name, table)
            collection = [table]
        if len(collection) > 1:
            raise ValueError(
                f"shared_embedding_collection_name {name!r} must name a collection of one "
                f"variable, got {collection}"
            )
        if keys is not None:
            return self._table_of_keys(collection[0], keys)
        shape = [self.categorical_column._num_buckets, self.dimension]
        if collection[0].get_shape().as_list() != shape:
            raise ValueError(
                f"shared_embedding_collection_name {name!r} must name a collection of a variable "
                f"of shape {shape}, got {collection[0]}"
            )
        return collection[0]

    def _table_of_keys(self, item: Any, keys: KeyColumn) -> KeyedTable:
        """The embedding variable that the collection has, for a column of such keys."""
        if isinstance(item, _Collected) and item.table.dimension == self.dimension:
            check_same_table(item.keys, keys)
            return item.table
        raise ValueError(
            f"shared_embedding_collection_name {self.shared_embedding_collection_name!r} must name "
            f"a collection of an embedding variable of dimension {self.dimension}, got {item}"
        )


@dataclass(frozen=True)
class _Collected:
    """An embedding variable in a graph collection, and the column that made it.

    Columns of ordinary tables that find it there, stock ones too, see another shape than theirs.
    """

    table: KeyedTable
    keys: KeyColumn

    @property
    def name(self) -> str:
        """That of the table."""
        return self.table.name

    def get_shape(self) -> tf.TensorShape:
        """[None, D], as of a variable."""
        return self.table.shape


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
      categorical_columns: columns of ids (and weights), of one kind and number of buckets; or all
        of `categorical_column_with_embedding` with the same dtype and options.
      dimension: size D of an embedding, > 0.
      combiner: "sum", "mean" or "sqrtn".
      initializer: of the table; truncated normal with deviation 1/sqrt(D) if None.
      shared_embedding_collection_name: name of the table; made of the columns' names if None.
      ckpt_to_load_from: checkpoint to restore the table from, with `tensor_name_in_ckpt`.
      tensor_name_in_ckpt: name of the table there.
      max_norm: limit of the L2 norm of each embedding.
      trainable: whether the table is trained.
      use_safe_embedding_lookup: whether ids < 0 are dropped and empty rows give zeros.
      do_fusion: None for the stock columns and their stock graph, or all but the gather of ids
        without a bound by stock ops; "v1" or "v2" for the fused ops of that family.

    Returns:
      One dense column per categorical column, in their order.

    Raises:
      ValueError: as the stock function, and for an unknown `do_fusion`; columns of which some are
        of `categorical_column_with_embedding`, or all with other dtypes or options.
      NotImplementedError: a checkpoint for ids without a bound.
      RuntimeError: as the stock function, when executing eagerly.
    """
    keys = shared_keys(categorical_columns)
    columns = tf.feature_column.shared_embeddings(
        categorical_columns if keys is None else _stand_ins(categorical_columns),
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
    if keys is None:
        return [FusedSharedEmbeddingColumn.of(column, do_fusion) for column in columns]
    check_no_checkpoint(ckpt_to_load_from)
    stock_creator = columns[0].shared_embedding_column_creator
    table = TableOfKeys(keys, dimension, stock_creator._initializer, trainable)
    creator = KeyedTableCreator(table, stock_creator._name, use_safe_embedding_lookup)
    return [
        FusedSharedEmbeddingColumn(own, creator, *column[2:], do_fusion=do_fusion)
        for own, column in zip(categorical_columns, columns, strict=True)
    ]


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
      do_fusion: None for the stock columns and their stock graph, or all but the gather of ids
        without a bound by stock ops; "v1" or "v2" for the fused ops of that family.

    Returns:
      One dense column per categorical column, in their order.

    Raises:
      ValueError, NotImplementedError, RuntimeError: as `shared_embeddings`.
    """
    keys = shared_keys(categorical_columns)
    columns = v1.feature_column.shared_embedding_columns(
        categorical_columns if keys is None else _stand_ins(categorical_columns),
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
    if keys is None:
        return [FusedSharedEmbeddingColumnV1.of(column, do_fusion) for column in columns]
    return [
        FusedSharedEmbeddingColumnV1(own, *column[1:], do_fusion=do_fusion)
        for own, column in zip(categorical_columns, columns, strict=True)
    ]


def _stand_ins(categorical_columns: Sequence[Any]) -> list[Any]:
    """Columns of the same names for stock's functions, which ask how many ids there are."""
    stand_in = tf.feature_column.categorical_column_with_identity
    return [stand_in(column.name, 1) for column in categorical_columns]
