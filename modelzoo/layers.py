"""What the models are built of, in both worlds that have feature columns.

Each model is one function of `Layers`: in Keras 3 with `fusion.feature_column.DenseFeatures`, and
in compat.v1 with `input_layer` and variables of a graph. Arithmetic between layers is `keras.ops`,
which works in both.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import keras
import tensorflow as tf

import fusion
from modelzoo.criteo import NUMERIC

v1 = tf.compat.v1

#: The standard deviation of the elements of vectors at the beginning.
_DEVIATION = 0.01


@dataclass(frozen=True)
class Inputs:
    """What a model reads.

    Attributes:
        rows: how many ids each categorical feature has.
        lists: those that have any number of ids, whose tensors are sparse.
        is_log: whether counts are logarithms already.
        whole_counts: whether counts are integers in Examples.
    """

    rows: Mapping[str, int]
    lists: Sequence[str] = ()
    is_log: bool = False
    whole_counts: bool = False

    def specs(self) -> dict[str, Any]:
        """The type of each feature: float32 counts, int64 ids, all [n, 1]; sparse lists of ids."""
        counts = {name: tf.TensorSpec([None, 1], tf.float32, name) for name in NUMERIC}
        ids = {
            name: tf.SparseTensorSpec([None, None], tf.int64)
            if name in self.lists
            else tf.TensorSpec([None, 1], tf.int64, name)
            for name in self.rows
        }
        return counts | ids


@dataclass(frozen=True)
class Columns:
    """Feature columns of the samples.

    Attributes:
        inputs: what there is.
        do_fusion: None for stock columns, "v1" or "v2" for fused ones.
        seed: of the tables' values at the beginning, which are the same in both worlds.
    """

    inputs: Inputs
    do_fusion: str | None = None
    seed: int = 0

    def counts(self) -> list[Any]:
        """The logarithms of the counts."""
        normalize = None if self.inputs.is_log else log_counts
        return [tf.feature_column.numeric_column(name, normalizer_fn=normalize) for name in NUMERIC]

    def embeddings(self, dim: int, name: str) -> list[Any]:
        """A vector of `dim` elements for each categorical feature, the mean of those of its ids.

        Tables of other names begin with other values.
        """
        made = []
        for feature, rows in self.inputs.rows.items():
            ids = tf.feature_column.categorical_column_with_identity(feature, rows)
            values = self.values(name, feature)
            if self.do_fusion is None:
                column = tf.feature_column.embedding_column(ids, dim, "mean", values)
            else:
                column = fusion.feature_column.embedding_column(
                    ids, dim, "mean", values, do_fusion=self.do_fusion
                )
            made.append(column)
        return made

    def values(self, name: str, feature: str) -> Any:
        """The initializer of the table of a feature's embeddings of a name."""
        return _values(f"{self.seed} {name} {feature}")

    def features(self) -> list[str]:
        """The categorical features, in the order in which feature columns have their vectors."""
        return sorted(self.inputs.rows, key=lambda feature: f"{feature}_embedding")


def _values(name: str) -> Any:
    """Initial values of vectors, others for each name."""
    return keras.initializers.TruncatedNormal(0.0, _DEVIATION, seed=zlib.crc32(name.encode()))


def log_counts(counts: Any) -> Any:
    """Returns log(1 + x), with negative and missing counts taken as 0."""
    return tf.math.log1p(tf.maximum(counts, 0.0))


class Layers(Protocol):
    """What a model is built of; names are unique in a model."""

    def counts(self) -> Any:
        """The logarithms of the counts, float32 [n, 13]."""

    def embeddings(self, **dims: int) -> list[Any]:
        """Vectors of each categorical feature side by side, float32 [n, features * dim].

        There is one such tensor for each name, whose vectors have so many elements. They are kept
        by name, for an output of the model that stops there.
        """

    def vectors(self, numbers: Any, dim: int, name: str) -> Any:
        """A vector for each number, by which it is multiplied: [n, m] -> [n, m * dim]."""

    def dense(self, inputs: Any, units: int, name: str, activation: str | None = None) -> Any:
        """A dense layer, [n, units]."""


@keras.saving.register_keras_serializable("modelzoo")
class Vectors(keras.layers.Layer):
    """Multiplies each of m numbers by a vector of its own: [n, m] -> [n, m * dim]."""

    def __init__(self, dim: int, **named: Any) -> None:
        super().__init__(**named)
        self.dim = dim

    def build(self, shape: Sequence[int]) -> None:
        """Makes the vectors of numbers of a shape."""
        self.vectors = self.add_weight(
            (shape[-1], self.dim), initializer=_values(self.name), name="vectors"
        )

    def call(self, numbers: Any) -> Any:
        """See the class."""
        return _scaled(numbers, self.vectors, self.dim)

    def get_config(self) -> dict[str, Any]:
        """What the layer is made of again."""
        return {**super().get_config(), "dim": self.dim}


def _scaled(numbers: Any, vectors: Any, dim: int) -> Any:
    products = keras.ops.expand_dims(numbers, -1) * vectors
    return keras.ops.reshape(products, [-1, numbers.shape[-1] * dim])


class KerasLayers:
    """Layers of a functional Keras 3 model.

    Attributes:
        features: the model's inputs, by feature.
        embedded: what `embeddings` gave, by name.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns, self.embedded = columns, dict[str, Any]()
        self.features = {
            name: keras.Input(
                spec.shape[1:],
                name=name,
                dtype=spec.dtype.name,
                sparse=isinstance(spec, tf.SparseTensorSpec),
            )
            for name, spec in columns.inputs.specs().items()
        }

    def counts(self) -> Any:
        """See `Layers`."""
        read = {name: self.features[name] for name in NUMERIC}
        return fusion.feature_column.DenseFeatures(self._columns.counts(), name="counts")(read)

    def embeddings(self, **dims: int) -> list[Any]:
        """See `Layers`."""
        read = {feature: self.features[feature] for feature in self._columns.inputs.rows}
        made = self._embedded(read, dims)
        self.embedded.update(made)
        return [*made.values()]

    def _embedded(self, read: Mapping[str, Any], dims: Mapping[str, int]) -> dict[str, Any]:
        """What `embeddings` gives of categorical features, by name."""
        return {
            name: fusion.feature_column.DenseFeatures(
                self._columns.embeddings(dim, name), name=name
            )(read)
            for name, dim in dims.items()
        }

    def vectors(self, numbers: Any, dim: int, name: str) -> Any:
        """See `Layers`."""
        return Vectors(dim, name=name)(numbers)

    def dense(self, inputs: Any, units: int, name: str, activation: str | None = None) -> Any:
        """See `Layers`."""
        return keras.layers.Dense(units, activation, name=name)(inputs)


class StockLayers(KerasLayers):
    """The same of Keras's own layers alone, as models without feature columns have them.

    A table has a row more than there are ids, which missing ids are given, as `IntegerLookup`
    gives them one. It is zeros at the beginning, and the other rows are those of `KerasLayers`: so
    are the losses of the first batch. Fields are in the order of `DenseFeatures`.
    """

    def __init__(self, columns: Columns) -> None:
        """Makes the inputs.

        Raises:
            ValueError: features have lists of ids.
        """
        if columns.inputs.lists:
            listed = ", ".join(columns.inputs.lists)
            raise ValueError(f"stock layers are given one id per row; there are lists in {listed}")
        super().__init__(columns)

    def counts(self) -> Any:
        """See `Layers`."""
        joined = keras.layers.Concatenate()([self.features[name] for name in sorted(NUMERIC)])
        return joined if self._columns.inputs.is_log else keras.ops.log1p(keras.ops.relu(joined))

    def _embedded(self, read: Mapping[str, Any], dims: Mapping[str, int]) -> dict[str, Any]:
        """See `KerasLayers`."""
        made = {}
        for name, dim in dims.items():
            parts = []
            for feature in self._columns.features():
                rows = self._columns.inputs.rows[feature] + 1
                values = _behind_zeros(self._columns.values(name, feature))
                layer = keras.layers.Embedding(rows, dim, values, name=f"{name}_{feature}")
                parts.append(keras.layers.Flatten()(layer(read[feature] + 1)))
            made[name] = keras.layers.Concatenate(name=name)(parts)
        return made


def _behind_zeros(values: Any) -> Any:
    """An initializer whose first row is zeros; the others are those of one of a row less."""

    def made(shape: Sequence[int], dtype: Any = None) -> Any:
        rows, dim = shape
        zeros = keras.ops.zeros((1, dim), dtype)
        return keras.ops.concatenate([zeros, values((rows - 1, dim), dtype)], axis=0)

    return made


class GraphLayers:
    """Layers of a compat.v1 graph, the current one.

    Attributes:
        features: what the model reads, tensors by feature.
        embedded: what `embeddings` gave, by name.
    """

    def __init__(self, columns: Columns, features: Mapping[str, Any]) -> None:
        self._columns, self.features, self.embedded = columns, features, dict[str, Any]()

    def counts(self) -> Any:
        """See `Layers`."""
        return v1.feature_column.input_layer(self.features, self._columns.counts())

    def embeddings(self, **dims: int) -> list[Any]:
        """See `Layers`."""
        for name, dim in dims.items():
            columns = self._columns.embeddings(dim, name)
            with v1.variable_scope(name):
                self.embedded[name] = v1.feature_column.input_layer(self.features, columns)
        return [self.embedded[name] for name in dims]

    def vectors(self, numbers: Any, dim: int, name: str) -> Any:
        """See `Layers`."""
        with v1.variable_scope(name):
            shape = [numbers.shape[-1], dim]
            vectors = v1.get_variable("vectors", shape, initializer=_values(name))
            return _scaled(numbers, vectors, dim)

    def dense(self, inputs: Any, units: int, name: str, activation: str | None = None) -> Any:
        """See `Layers`."""
        with v1.variable_scope(name):
            shape = [inputs.shape[-1], units]
            kernel = v1.get_variable("kernel", shape, initializer=_uniform())
            bias = v1.get_variable("bias", [units], initializer=v1.zeros_initializer())
            outputs = tf.nn.bias_add(tf.matmul(inputs, kernel), bias)
            return outputs if activation is None else keras.activations.get(activation)(outputs)


def _uniform() -> Any:
    return v1.glorot_uniform_initializer()
