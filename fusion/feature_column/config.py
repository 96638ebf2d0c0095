"""Columns as configurations (JSON) and back, as TensorFlow serialises them.

With three additions. Functions, and initializers that are not TensorFlow's, are serialised by
Keras, which finds them by their registered names. TensorFlow 2's initializers, which TensorFlow
reads as those of TensorFlow 1, have names of their own. Columns that share a table, which
TensorFlow does not serialise, are written as embedding columns with the name of the table.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import keras

from fusion.feature_column.keyed import KeyedTableCreator, TableOfKeys
from fusion.feature_column.keys import key_column
from fusion.runtime.tensorflow.private import FeatureColumn, init_ops, init_ops_v2, serialization
from fusion.runtime.tensorflow.private import feature_column_v2 as stock

#: TensorFlow 2's initializers, by their names in configurations.
_INITIALIZERS = {
    f"v2.{name}": kind
    for name, kind in inspect.getmembers(init_ops_v2, inspect.isclass)
    if issubclass(kind, init_ops_v2.Initializer)
}
_INITIALIZER_NAMES = {kind: name for name, kind in _INITIALIZERS.items()}


def to_configs(columns: Iterable[Any]) -> list[dict[str, Any]]:
    """The configurations of columns.

    Raises:
      TypeError, ValueError: for a function or initializer that has no configuration.
    """
    return [_to_config(column) for column in columns]


def from_configs(configs: Iterable[Mapping[str, Any]]) -> list[Any]:
    """The columns of configurations.

    Raises:
      TypeError, ValueError: for functions and classes that Keras does not know by their names.
    """
    reader = _Reader()
    return [reader.column(config) for config in configs]


def _to_config(column: Any) -> dict[str, Any]:
    if isinstance(column, stock.SharedEmbeddingColumn):
        own = column._asdict()
        shared = {
            "table": column.shared_embedding_column_creator._name,
            "alone": _to_config(_alone(column)),
            **{name: own[name] for name in own.keys() - set(stock.SharedEmbeddingColumn._fields)},
        }
        return {"class_name": type(column).__name__, "config": shared}
    config: dict[str, Any] = serialization.serialize_feature_column(column)
    fields = config["config"]
    for name in fields:
        value = getattr(column, name, None)
        if isinstance(value, FeatureColumn):
            fields[name] = _to_config(value)
        elif isinstance(value, tuple) and any(isinstance(v, FeatureColumn) for v in value):
            fields[name] = [_to_config(v) if isinstance(v, FeatureColumn) else v for v in value]
        elif type(value) in _INITIALIZER_NAMES:
            fields[name] |= {"class_name": _INITIALIZER_NAMES[type(value)]}
        elif callable(value) and not isinstance(value, init_ops.Initializer):
            fields[name] = keras.saving.serialize_keras_object(value)
    return config


def _alone(column: Any) -> Any:
    """The embedding column with a table of its own that is like the shared one."""
    creator = column.shared_embedding_column_creator
    return stock.EmbeddingColumn(
        categorical_column=column.categorical_column,
        dimension=creator.dimension,
        combiner=column.combiner,
        initializer=creator._initializer,
        ckpt_to_load_from=creator._ckpt_to_load_from,
        tensor_name_in_ckpt=creator._tensor_name_in_ckpt,
        max_norm=column.max_norm,
        trainable=creator._trainable,
        use_safe_embedding_lookup=column.use_safe_embedding_lookup,
    )


def _creator(like: Any, name: str) -> Any:
    """The creator of the shared table of a name, for columns that are each like this one."""
    keys, is_safe = key_column(like.categorical_column), like.use_safe_embedding_lookup
    if keys is not None:
        table = TableOfKeys(keys, like.dimension, like.initializer, like.trainable)
        return KeyedTableCreator(table, name, is_safe)
    return stock.SharedEmbeddingColumnCreator(
        dimension=like.dimension,
        initializer=like.initializer,
        ckpt_to_load_from=like.ckpt_to_load_from,
        tensor_name_in_ckpt=like.tensor_name_in_ckpt,
        num_buckets=like.categorical_column.num_buckets,
        trainable=like.trainable,
        name=name,
        use_safe_embedding_lookup=is_safe,
    )


class _Reader:
    """Makes the columns of one layer."""

    def __init__(self) -> None:
        known = keras.saving.get_custom_objects().values()
        kinds = [k for k in known if inspect.isclass(k) and issubclass(k, FeatureColumn)]
        #: What TensorFlow looks names up in: classes of columns, TensorFlow 2's initializers, and
        #: objects that Keras has made.
        self._objects: dict[str, Any] = {kind.__name__: kind for kind in kinds} | _INITIALIZERS
        self._columns: dict[str, Any] = {}
        self._creators: dict[str, Any] = {}

    def column(self, config: Mapping[str, Any]) -> Any:
        """The column of a configuration; equal ones are one object."""
        if "alone" in config["config"]:
            return self._shared(config["class_name"], **config["config"])
        plain = self._plain(config)
        return serialization.deserialize_feature_column(plain, self._objects, self._columns)

    def _shared(self, class_name: str, table: str, alone: Any, **own: Any) -> Any:
        like = self.column(alone)
        if table not in self._creators:
            self._creators[table] = _creator(like, table)
        (kind,) = (k for k in serialization._FEATURE_COLUMNS if k.__name__ == class_name)
        return kind(
            categorical_column=like.categorical_column,
            shared_embedding_column_creator=self._creators[table],
            combiner=like.combiner,
            max_norm=like.max_norm,
            use_safe_embedding_lookup=like.use_safe_embedding_lookup,
            **own,
        )

    def _plain(self, value: Any) -> Any:
        """A copy that TensorFlow reads: tuples for lists, names for what Keras has serialised."""
        if isinstance(value, list | tuple):
            return tuple(self._plain(item) for item in value)
        if not isinstance(value, Mapping):
            return value
        if "registered_name" not in value and not str(value.get("class_name")).startswith("__"):
            return {key: self._plain(item) for key, item in value.items()}
        result = keras.saving.deserialize_keras_object(dict(value))
        if not callable(result):
            return result
        name = f"<object {len(self._objects)}>"
        self._objects[name] = result
        return name
