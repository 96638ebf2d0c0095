"""The variables and lookup tables of a Keras 3 layer's columns."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.feature_column import feature_column_v2 as stock

from fusion.feature_column.inputs import walk

#: Columns that look up their ids in a table of words.
_VOCABULARIES = (stock.VocabularyListCategoricalColumn, stock.VocabularyFileCategoricalColumn)


class LayerState(stock.StateManager):
    """What TensorFlow's columns ask for their state, kept on a Keras layer.

    Keras tracks what is set as an attribute of the layer, and TensorFlow tracks it under that
    name, which is that of tf_keras's layer: checkpoints of both fit.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._variables: dict[tuple[str, str], Any] = {}
        self._resources: dict[tuple[Any, str], Any] = {}

    def create(self, columns: tuple[Any, ...], restored: bool) -> None:
        """Creates all variables and tables of `columns`.

        `restored` says that the variables will be assigned: then no checkpoint is read.
        """
        for column in columns:
            if restored and getattr(column, "ckpt_to_load_from", None) is not None:
                column = without_checkpoint(column)
            with keras.name_scope(scope_name(column)):
                column.create_state(self)
            for part in walk(column):
                if isinstance(part, _VOCABULARIES):
                    self._create_table(part)

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
        if getattr(feature_column, "ckpt_to_load_from", None) is not None:
            initializer = _checkpoint_reader(feature_column)
        variable = keras.Variable(
            lambda shape, dtype: initializer(shape, dtype=tf.as_dtype(dtype)),
            shape=tuple(shape),
            dtype=tf.as_dtype(dtype).name,
            trainable=trainable,
            autocast=False,
            name=name,
        )
        setattr(self._layer, f"{feature_column.name}/{name}", variable)
        if not self._layer.trainable:
            variable.trainable = False
        self._variables[feature_column.name, name] = variable
        return variable

    def get_variable(self, feature_column: Any, name: str) -> Any:
        """The TensorFlow variable of a column."""
        return self._variables[feature_column.name, name].value

    def add_resource(self, feature_column: Any, resource_name: str, resource: Any) -> None:
        """Keeps a lookup table."""
        # Different columns may have one name: numbers keep their tables apart.
        attribute = f"{feature_column.name}/{resource_name}/{len(self._resources)}"
        setattr(self._layer, attribute, resource)
        self._resources[feature_column, resource_name] = resource

    def has_resource(self, feature_column: Any, resource_name: str) -> bool:
        """Whether there is such a lookup table."""
        return (feature_column, resource_name) in self._resources

    def get_resource(self, feature_column: Any, resource_name: str) -> Any:
        """The lookup table."""
        return self._resources[feature_column, resource_name]

    def _create_table(self, column: Any) -> None:
        """Lets a vocabulary column create its table now, not inside the first graph."""
        with tf.init_scope():
            nothing = tf.SparseTensor(tf.zeros([0, 2], tf.int64), tf.zeros([0], column.dtype), [0, 0])
            column._transform_input_tensor(nothing, self)


def scope_name(column: Any) -> str:
    """The name of a column as part of a variable's name."""
    name: str = stock._sanitize_column_name_for_variable_scope(column.name)
    return name


def without_checkpoint(column: Any) -> Any:
    """An embedding column that does not restore its table in each lookup."""
    return column._replace(ckpt_to_load_from=None, tensor_name_in_ckpt=None)


def _checkpoint_reader(column: Any) -> Any:
    """An initializer that takes the table from the column's checkpoint."""

    def read(shape: Any, dtype: tf.DType) -> tf.Tensor:
        reader = tf.train.load_checkpoint(column.ckpt_to_load_from)
        table = reader.get_tensor(column.tensor_name_in_ckpt)
        if table.shape != tuple(shape):
            raise ValueError(
                f"{column.tensor_name_in_ckpt!r} of {column.ckpt_to_load_from} has shape "
                f"{table.shape}, but column {column.name!r} needs {tuple(shape)}"
            )
        return tf.cast(table, dtype)

    return read
