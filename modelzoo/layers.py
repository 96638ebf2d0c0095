"""What the models are built of, in Keras 3 and in a compat.v1 graph.

Each model is one function of `Layers`. Arithmetic between layers is `keras.ops`, which works in
both.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import keras
import tensorflow as tf

import fusion
from fusion.tables import EmbeddingVariableOption
from modelzoo.criteo import NUMERIC

v1 = tf.compat.v1

KINDS = ("columns", "variables", "layers", "sharded")
"""What embeddings are: feature columns; those of embedding variables; Keras's own `Embedding`
layers; or one table of all features, in shards over the replicas of a strategy. Graphs of compat.v1
have the first two."""


@dataclass(frozen=True)
class Embeddings:
    """The embeddings of the categorical features of a model.

    Attributes:
        rows: how many ids each feature has.
        kind: one of `KINDS`.
        do_fusion: of feature columns: None for stock's, "v1" or "v2" for fused ones.
        seed: of the values at the beginning.
    """

    rows: Mapping[str, int]
    kind: str = "columns"
    do_fusion: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.do_fusion is not None and self.kind not in KINDS[:2]:
            raise ValueError(f"do_fusion is for feature columns, and kind is {self.kind!r}")

    def columns(self, dim: int, name: str) -> list[Any]:
        """A column of vectors of `dim` elements for each feature.

        Tables of other names begin with other values.
        """
        made = []
        for feature, rows in self.rows.items():
            if self.kind == "variables":
                ids = fusion.feature_column.categorical_column_with_embedding(
                    feature, tf.int64, ev_option=EmbeddingVariableOption(capacity=rows)
                )
            else:
                ids = tf.feature_column.categorical_column_with_identity(feature, rows)
            values = self.initializer(f"{name} {feature}")
            made.append(
                fusion.feature_column.embedding_column(
                    ids, dim, "mean", values, do_fusion=self.do_fusion
                )
            )
        return made

    def initializer(self, name: str) -> Any:
        """That of the vectors of a name."""
        seed = zlib.crc32(f"{self.seed} {name}".encode())
        return keras.initializers.TruncatedNormal(0.0, 0.01, seed=seed)


def count_columns() -> list[Any]:
    """The logarithms of the counts, log(1 + x), of which missing ones are 0."""
    return [
        tf.feature_column.numeric_column(
            name, normalizer_fn=lambda counts: tf.math.log1p(tf.maximum(counts, 0.0))
        )
        for name in NUMERIC
    ]


class Layers(Protocol):
    """What a model is built of; names are unique in a model."""

    def counts(self) -> Any:
        """The logarithms of the counts, float32 [n, 13]."""

    def embeddings(self, **dims: int) -> list[Any]:
        """Vectors of each categorical feature side by side, float32 [n, features * dim].

        There is one such tensor for each name, whose vectors have so many elements.
        """

    def vectors(self, numbers: Any, dim: int, name: str) -> Any:
        """A vector for each number, by which it is multiplied: [n, m] -> [n, m * dim]."""

    def dense(self, inputs: Any, units: int, name: str, activation: str | None = None) -> Any:
        """A dense layer, [n, units]."""


class _Vectors(keras.layers.Layer):
    """Multiplies each of m numbers by a vector of its own: [n, m] -> [n, m * dim]."""

    def __init__(self, dim: int, initializer: Any, name: str) -> None:
        super().__init__(name=name)
        self.dim, self._initializer = dim, initializer

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight((shape[-1], self.dim), initializer=self._initializer)

    def call(self, numbers: Any) -> Any:
        return _scaled(numbers, self.kernel)


def _scaled(numbers: Any, vectors: Any) -> Any:
    products = keras.ops.expand_dims(numbers, -1) * vectors
    return keras.ops.reshape(products, [-1, vectors.shape[0] * vectors.shape[1]])


class KerasLayers:
    """Layers of a functional Keras 3 model.

    Attributes:
        features: the model's inputs, by feature.
        embedded: what `embeddings` gave, by name.
    """

    def __init__(self, embeddings: Embeddings) -> None:
        self._embeddings, self.embedded = embeddings, dict[str, Any]()
        self._counts = {name: keras.Input((1,), name=name) for name in NUMERIC}
        self._ids = {name: keras.Input((1,), name=name, dtype="int64") for name in embeddings.rows}
        self.features = self._counts | self._ids

    def counts(self) -> Any:
        """See `Layers`."""
        return fusion.feature_column.DenseFeatures(count_columns(), name="counts")(self._counts)

    def embeddings(self, **dims: int) -> list[Any]:
        """See `Layers`."""
        embed = {"layers": self._by_layers, "sharded": self._by_one_table}
        made = embed.get(self._embeddings.kind, self._by_columns)
        self.embedded = {name: made(dim, name) for name, dim in dims.items()}
        return [*self.embedded.values()]

    def _by_columns(self, dim: int, name: str) -> Any:
        columns = self._embeddings.columns(dim, name)
        return fusion.feature_column.DenseFeatures(columns, name=name)(self._ids)

    def _by_layers(self, dim: int, name: str) -> Any:
        """Vectors of stock layers, whose tables have a row more, of missing ids."""
        parts = []
        for feature, rows in self._embeddings.rows.items():
            values = self._embeddings.initializer(f"{name} {feature}")
            layer = keras.layers.Embedding(rows + 1, dim, values, name=f"{name}_{feature}")
            parts.append(keras.layers.Flatten()(layer(self._ids[feature] + 1)))
        return keras.layers.Concatenate(name=name)(parts)

    def _by_one_table(self, dim: int, name: str) -> Any:
        """Vectors of a table of all features' rows, one feature's behind the other's."""
        keys, first = [], 0
        for feature, rows in self._embeddings.rows.items():
            ids = self._ids[feature]
            keys.append(keras.ops.where(ids < 0, ids, ids + first))
            first += rows
        layer = fusion.keras.layers.SlotEmbedding(
            first,
            dim,
            slot_num=len(keys),
            embeddings_initializer=self._embeddings.initializer(name),
            mode="distributed",
            name=name,
        )
        vectors = layer(keras.ops.stack(keys, axis=1))
        return keras.layers.Reshape([len(keys) * dim])(vectors)

    def vectors(self, numbers: Any, dim: int, name: str) -> Any:
        """See `Layers`."""
        return _Vectors(dim, self._embeddings.initializer(name), name)(numbers)

    def dense(self, inputs: Any, units: int, name: str, activation: str | None = None) -> Any:
        """See `Layers`."""
        return keras.layers.Dense(units, activation, name=name)(inputs)


class GraphLayers:
    """Layers of a compat.v1 graph, the current one.

    Attributes:
        embedded: what `embeddings` gave, by name.
    """

    def __init__(self, embeddings: Embeddings, features: Mapping[str, Any]) -> None:
        """Takes tensors by feature.

        Raises:
            ValueError: embeddings of a kind that is for Keras.
        """
        if embeddings.kind not in KINDS[:2]:
            raise ValueError(f"embeddings {embeddings.kind!r} are for Keras 3, not for a graph")
        self._embeddings, self._features = embeddings, features
        self.embedded = dict[str, Any]()

    def counts(self) -> Any:
        """See `Layers`."""
        return v1.feature_column.input_layer(self._features, count_columns())

    def embeddings(self, **dims: int) -> list[Any]:
        """See `Layers`."""
        for name, dim in dims.items():
            columns = self._embeddings.columns(dim, name)
            with v1.variable_scope(name):
                self.embedded[name] = v1.feature_column.input_layer(self._features, columns)
        return [*self.embedded.values()]

    def vectors(self, numbers: Any, dim: int, name: str) -> Any:
        """See `Layers`."""
        initializer = self._embeddings.initializer(name)
        with v1.variable_scope(name):
            shape = [numbers.shape[-1], dim]
            return _scaled(numbers, v1.get_variable("vectors", shape, initializer=initializer))

    def dense(self, inputs: Any, units: int, name: str, activation: str | None = None) -> Any:
        """See `Layers`."""
        with v1.variable_scope(name):
            glorot, zeros = v1.glorot_uniform_initializer(), v1.zeros_initializer()
            kernel = v1.get_variable("kernel", [inputs.shape[-1], units], initializer=glorot)
            bias = v1.get_variable("bias", [units], initializer=zeros)
        outputs = tf.nn.bias_add(tf.matmul(inputs, kernel), bias)
        return outputs if activation is None else keras.activations.get(activation)(outputs)


def placeholders(embeddings: Embeddings) -> dict[str, Any]:
    """A placeholder of the current graph for each feature, called like it."""
    dtypes = dict.fromkeys(NUMERIC, tf.float32) | dict.fromkeys(embeddings.rows, tf.int64)
    return {name: v1.placeholder(dtype, [None, 1], name) for name, dtype in dtypes.items()}
