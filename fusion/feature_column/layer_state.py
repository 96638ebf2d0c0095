"""The variables and lookup tables of a Keras 3 layer's columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from fusion.feature_column.column_state import create_vocabularies, scope_name, without_checkpoint
from fusion.feature_column.keyed import RESOURCE, KeyedEmbeddingColumn, KeyedTableCreator
from fusion.feature_column.keys import key_column
from fusion.runtime.tensorflow.private import feature_column_v2 as stock

try:
    from fusion.runtime.tensorflow.private import in_symbolic_scope
except ImportError:  # no public name, so it may move

    def in_symbolic_scope() -> bool:
        """Whether Keras is after the shape of results only."""
        return False


__all__ = ["LayerState", "in_symbolic_scope"]


class LayerState(stock.StateManager):
    """What TensorFlow's columns ask for their state, kept on a Keras layer.

    Keras tracks what is set as an attribute of the layer, and TensorFlow tracks it under that
    name, which is the one that tf_keras's layer uses: each reads the other's checkpoints.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._variables: dict[tuple[str, str], Any] = {}
        self._shared: dict[Any, Any] = {}
        self._resources: dict[tuple[Any, str], Any] = {}

    def create(self, columns: tuple[Any, ...], restored: bool) -> None:
        """Creates all variables and tables of `columns`.

        `restored` says that the variables will be assigned: then no checkpoint is read.
        """
        for column in columns:
            if isinstance(column, stock.SharedEmbeddingColumn):
                self._create_shared(column.shared_embedding_column_creator, restored)
            else:
                with keras.name_scope(scope_name(column.name)):
                    (without_checkpoint(column) if restored else column).create_state(self)
            create_vocabularies(column, self)

    def table(self, column: Any) -> Any:
        """The variable [rows, D] of an embedding column, TensorFlow's or an embedding variable."""
        owner = getattr(column, "shared_embedding_column_creator", column)
        if key_column(column.categorical_column) is not None:
            return self.get_resource(owner, RESOURCE)
        if owner is not column:
            return self._shared[owner].value
        return self.get_variable(column, "embedding_weights")

    def dense_tensor(self, column: Any, features: Any) -> tf.Tensor:
        """The tensor of a dense column, of stock's transformation cache of features."""
        column = without_checkpoint(column)  # the table has been read when it was created
        if isinstance(column, stock.SharedEmbeddingColumn):
            # Stock's would create a table for each graph.
            dimension = column.shared_embedding_column_creator.dimension
            table = _SharedTable(self.table(column), dimension)
            column = column._replace(shared_embedding_column_creator=table)
        return column.get_dense_tensor(features, self)

    def create_variable(
        self,
        feature_column: Any,
        name: str,
        shape: Any,
        dtype: Any = None,
        trainable: bool = True,
        use_resource: bool = True,
        initializer: Any = None,
    ) -> Any:
        """Creates the variable `<layer>/<column>/<name>` inside the column's name scope."""
        del use_resource  # there is no other kind here
        checkpoint = getattr(feature_column, "ckpt_to_load_from", None)
        if checkpoint is not None:
            initializer = _checkpoint_reader(checkpoint, feature_column.tensor_name_in_ckpt)
        variable = _variable(scope_name(name), shape, dtype, trainable, initializer)
        self._track(f"{feature_column.name}/{name}", variable)
        self._variables[feature_column.name, name] = variable
        return variable

    def get_variable(self, feature_column: Any, name: str) -> Any:
        """The TensorFlow variable of a column."""
        return self._variables[feature_column.name, name].value

    def add_resource(self, feature_column: Any, resource_name: str, resource: Any) -> None:
        """Keeps a lookup table, or an embedding variable."""
        # A table with buckets for unknown words does not track the table of words inside it.
        tracked = getattr(resource, "_table", None) or resource
        # Different columns may have one name: numbers keep their tables apart.
        attribute = f"{feature_column.name}/{resource_name}/{len(self._resources)}"
        setattr(self._layer, attribute, tracked)
        self._resources[_key(feature_column), resource_name] = resource

    def has_resource(self, feature_column: Any, resource_name: str) -> bool:
        """Whether there is such a lookup table or embedding variable."""
        return (_key(feature_column), resource_name) in self._resources

    def get_resource(self, feature_column: Any, resource_name: str) -> Any:
        """The lookup table, or embedding variable."""
        return self._resources[_key(feature_column), resource_name]

    def _create_shared(self, creator: Any, restored: bool) -> None:
        """Creates the table of columns that share one, `<layer>/<its name>`."""
        if creator in self._shared or self.has_resource(creator, RESOURCE):
            return
        name = scope_name(creator._name)
        if isinstance(creator, KeyedTableCreator):
            with keras.name_scope(name):
                creator.create_state(self)
            return
        initializer = creator._initializer
        if creator._ckpt_to_load_from is not None and not restored:
            initializer = _checkpoint_reader(
                creator._ckpt_to_load_from, creator._tensor_name_in_ckpt
            )
        shape = (creator._num_buckets, creator.dimension)
        variable = _variable(name, shape, tf.float32, creator._trainable, initializer)
        self._track(f"{name}/embedding_weights", variable)
        self._shared[creator] = variable

    def _track(self, attribute: str, variable: Any) -> None:
        if hasattr(self._layer, attribute):
            raise ValueError(
                f"two tables of layer {self._layer.name!r} have the name {attribute!r}"
            )
        setattr(self._layer, attribute, variable)
        if not self._layer.trainable:
            variable.trainable = False


@dataclass(frozen=True)
class _SharedTable:
    """What a shared column asks its creator for."""

    embedding_weights: Any
    dimension: int


def _key(column: Any) -> Any:
    """What resources of a column are found by: one with `do_fusion` has those of the given one."""
    return column.name if isinstance(column, KeyedEmbeddingColumn) else column


def _variable(
    name: str, shape: Any, dtype: Any, trainable: bool, initializer: Callable[..., Any]
) -> Any:
    return keras.Variable(
        lambda shape, dtype: initializer(shape, dtype=tf.as_dtype(dtype)),
        shape=tuple(shape),
        dtype=tf.as_dtype(dtype).name,
        trainable=trainable,
        autocast=False,
        name=name,
    )


def _checkpoint_reader(checkpoint: str, tensor_name: str) -> Callable[..., tf.Tensor]:
    """An initializer that takes a table from a checkpoint."""

    def read(shape: Any, dtype: tf.DType) -> tf.Tensor:
        table = tf.train.load_checkpoint(checkpoint).get_tensor(tensor_name)
        if table.shape != tuple(shape):
            raise ValueError(
                f"tensor_name_in_ckpt {tensor_name!r} of {checkpoint} must have shape "
                f"{tuple(shape)}, got {table.shape}"
            )
        return tf.cast(table, dtype)

    return read
