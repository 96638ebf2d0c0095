"""Embedding columns whose ids have no bound, and the embedding variables that they have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from fusion.feature_column.fused import FusedColumn
from fusion.feature_column.keys import KeyColumn, key_column
from fusion.runtime.tensorflow.private import feature_column_v2 as stock
from fusion.runtime.tensorflow.private import serialization
from fusion.tables.deeprec import get_tables, table_of
from fusion.tables.initial_rows import ZerosOnDemand, max_rows
from fusion.tables.partitioned import KeyedTable
from fusion.tables.partitions import partition_capacity, partition_names
from fusion.tables.replicas import whole_variables

#: What hosts know the table by, and the embedding variable.
TABLE, RESOURCE = "embedding_weights", "embedding_variable"

_ITEM_BYTES = 4


@dataclass(frozen=True)
class TableOfKeys:
    """The arguments of the embedding variable of one or several columns.

    Attributes:
      keys: the categorical column, or one of those that share it.
      dimension: D.
      initializer: of rows, if `ev_option` has none.
      trainable: whether it is trained.
    """

    keys: KeyColumn
    dimension: int
    initializer: Callable[..., Any] | None
    trainable: bool

    def create(self, owner: Any, state_manager: Any) -> None:
        """Creates it in hosts that have a state for columns, as the `RESOURCE` of its owner.

        Args:
          owner: the column, or what several of them have it from.
          state_manager: the state.
        """
        count, capacity = self.keys.partition_num, self.keys.ev_option.capacity
        rows = capacity if count is None else partition_capacity(capacity, count)
        tables = []
        for name in partition_names(TABLE, count):
            with whole_variables():
                state_manager.create_variable(
                    owner,
                    name=name,
                    shape=(rows or max_rows(_ITEM_BYTES * self.dimension), self.dimension),
                    dtype=tf.float32,
                    trainable=self.trainable,
                    use_resource=True,
                    initializer=ZerosOnDemand(),
                )
            table = state_manager.get_variable(owner, name=name)
            tables.append(table if isinstance(table, tf.Variable) else table.value)
        variable, layer = self._variable(tables, count), getattr(state_manager, "_layer", None)
        if layer is not None:
            variable.is_trained = lambda: bool(self.trainable and layer.trainable)
        state_manager.add_resource(owner, RESOURCE, variable)

    def get(self, name: str, trainable: bool = True, collections: Any = None) -> KeyedTable:
        """Gets it in hosts whose variables are of variable scopes.

        Args:
          name: of the table.
          trainable: whether the host lets it be trained.
          collections: of the graph that it is put into; None for those of variables.
        """
        count = self.keys.partition_num
        tables_and_count = get_tables(
            name,
            self.keys.ev_option.capacity,
            self.dimension,
            tf.float32,
            None if count is None else tf.compat.v1.fixed_size_partitioner(count),
            trainable=self.trainable and trainable,
            collections=collections,
        )
        return self._variable(*tables_and_count)

    def _variable(self, tables: list[Any], count: int | None) -> KeyedTable:
        """The embedding variable of tables of zeros; strings are fingerprints by now."""
        option = self.keys.ev_option
        return table_of(tables, count, self.dimension, option, self.initializer, tf.int64)


class KeyedTableCreator(stock.SharedEmbeddingColumnCreator):
    """The creator of the embedding variable of columns of `shared_embeddings`."""

    def __init__(self, table: TableOfKeys, name: str, use_safe_embedding_lookup: bool) -> None:
        """Takes the arguments of the table, and its name."""
        super().__init__(
            dimension=table.dimension,
            initializer=table.initializer,
            ckpt_to_load_from=None,
            tensor_name_in_ckpt=None,
            num_buckets=None,
            trainable=table.trainable,
            name=name,
            use_safe_embedding_lookup=use_safe_embedding_lookup,
        )
        self._table = table

    @property
    def name(self) -> str:
        """The table's name."""
        return self._name

    def create_state(self, state_manager: Any) -> None:
        """Creates the tables, and what belongs to them."""
        self._table.create(self, state_manager)

    @property
    def embedding_weights(self) -> KeyedTable:
        """The one of this graph, in hosts that have no state for it."""
        key = tf.compat.v1.get_default_graph()._graph_key
        if key not in self._embedding_weights:
            self._embedding_weights[key] = self._table.get(self._name)
        return self._embedding_weights[key]


@serialization.register_feature_column
class KeyedEmbeddingColumn(FusedColumn, stock.EmbeddingColumn):
    """An embedding column over a `KeyColumn`: its table is an `EmbeddingVariable`."""

    @property
    def _table(self) -> TableOfKeys:
        keys = key_column(self.categorical_column)
        assert keys is not None
        return TableOfKeys(keys, self.dimension, self.initializer, self.trainable)

    def create_state(self, state_manager: Any) -> None:
        """Creates the tables, and what belongs to them."""
        self._table.create(self, state_manager)

    def _get_dense_tensor_internal(self, sparse_tensors: Any, state_manager: Any) -> tf.Tensor:
        """The lookup, in hosts that have a state for columns."""
        return self._look_up(state_manager.get_resource(self, RESOURCE), sparse_tensors)

    def _old_get_dense_tensor_internal(
        self, sparse_tensors: Any, weight_collections: Any, trainable: Any
    ) -> tf.Tensor:
        """The lookup, in hosts whose variables are of variable scopes."""
        if weight_collections and tf.compat.v1.GraphKeys.GLOBAL_VARIABLES not in weight_collections:
            weight_collections.append(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
        return self._look_up(self._table.get(TABLE, trainable, weight_collections), sparse_tensors)
