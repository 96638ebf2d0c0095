"""Categorical columns of every kind, embedding columns of them, and batches of features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from fusion.feature_column import embedding_column

Array = Any

fc = tf.feature_column
v1 = tf.compat.v1
WORDS = str(Path(__file__).with_name("words.txt"))


def _identity(key: str) -> Any:
    return fc.categorical_column_with_identity(f"{key}_ids", 10)


def _buckets(key: str) -> Any:
    return fc.bucketized_column(fc.numeric_column(f"{key}_numbers", 2), [-1.0, 0.0, 1.0])


#: Makers of a categorical column, from the prefix of its features' names.
KINDS: dict[str, Callable[[str], Any]] = {
    "identity": _identity,
    "identity with default": lambda key: fc.categorical_column_with_identity(f"{key}_any", 7, 3),
    "identity of dense ids": lambda key: fc.categorical_column_with_identity(f"{key}_dense", 10),
    "hash of words": lambda key: fc.categorical_column_with_hash_bucket(f"{key}_words", 6),
    "hash of ids": lambda key: fc.categorical_column_with_hash_bucket(f"{key}_any", 6, tf.int64),
    "vocabulary list": lambda key: fc.categorical_column_with_vocabulary_list(
        f"{key}_words", ["a", "b", "c"]
    ),
    "vocabulary list of ids": lambda key: fc.categorical_column_with_vocabulary_list(
        f"{key}_ids", [7, 1, 4], default_value=2
    ),
    "vocabulary list with buckets": lambda key: fc.categorical_column_with_vocabulary_list(
        f"{key}_words", ["a", "b"], num_oov_buckets=3
    ),
    "vocabulary file": lambda key: fc.categorical_column_with_vocabulary_file(
        f"{key}_words", WORDS, 3
    ),
    "vocabulary file with default": lambda key: fc.categorical_column_with_vocabulary_file(
        f"{key}_words", WORDS, default_value=1
    ),
    "vocabulary file with buckets": lambda key: fc.categorical_column_with_vocabulary_file(
        f"{key}_words", WORDS, num_oov_buckets=2
    ),
    "crossed": lambda key: fc.crossed_column(
        [f"{key}_words", _buckets(key), _identity(key)], 12, hash_key=5
    ),
    "bucketized": _buckets,
    "weighted ids": lambda key: fc.weighted_categorical_column(_identity(key), f"{key}_weights"),
    "weighted words": lambda key: fc.weighted_categorical_column(
        fc.categorical_column_with_vocabulary_list(f"{key}_words", ["a", "b", "c"]),
        f"{key}_weights",
    ),
}
#: The prefixes of the names of features in a batch.
KEYS = ("x", "y", "z")


def initial_table(rows: int, dimension: int) -> Array:
    """The float32 [rows, dimension] that tables start with; some rows are longer than 1."""
    rng = np.random.default_rng(rows * 1000 + dimension)
    return rng.normal(0, 1 / np.sqrt(dimension), (rows, dimension)).astype(np.float32)


def initializer(shape: Any, dtype: Any = None, partition_info: Any = None) -> tf.Tensor:
    """The same for a variable, or for one shard of it."""
    rows, start = shape[0], 0
    if partition_info is not None:
        rows, start = partition_info.full_shape[0], partition_info.var_offset[0]
    return tf.constant(initial_table(rows, shape[1])[start : start + shape[0]], dtype)


@dataclass(frozen=True)
class Column:
    """An embedding column of one kind; `build` makes it, stock or fused."""

    kind: str
    key: str = "x"
    combiner: str = "mean"
    dimension: int = 4
    max_norm: float | None = None
    trainable: bool = True
    safe: bool = True
    sharing: Callable[..., list[Any]] | None = None
    """The function that makes columns of one table, if this is one of them."""

    def categorical(self) -> Any:
        return KINDS[self.kind](self.key)

    @property
    def name(self) -> str:
        suffix = "shared_embedding" if self.sharing else "embedding"
        return f"{self.categorical().name}_{suffix}"

    @property
    def table(self) -> str:
        """Part of the name of the variable, and of no other's."""
        return "one_table" if self.sharing else f"/{self.name}/"

    @property
    def exact(self) -> bool:
        """Whether the fused column must give stock's bits."""
        return not self.kind.startswith("weighted") and self.max_norm is None

    def options(self) -> dict[str, Any]:
        """Arguments of the functions that make columns."""
        return {
            "dimension": self.dimension,
            "combiner": self.combiner,
            "initializer": initializer,
            "max_norm": self.max_norm,
            "trainable": self.trainable,
            "use_safe_embedding_lookup": self.safe,
        }


def build(columns: Sequence[Column], do_fusion: str | None) -> list[Any]:
    """The feature columns; those that share a table must have the same options."""
    alone = [
        embedding_column(column.categorical(), **column.options(), do_fusion=do_fusion)
        for column in columns
        if column.sharing is None
    ]
    together = [column for column in columns if column.sharing]
    if not together:
        return alone
    (sharing,) = {column.sharing for column in together}
    assert sharing is not None
    categorical = [column.categorical() for column in together]
    options = together[0].options() | {"shared_embedding_collection_name": "one_table"}
    return alone + sharing(categorical, **options, do_fusion=do_fusion)


def of_each_combiner(kind: str, **options: Any) -> tuple[Column, ...]:
    """Three columns of one kind, of features of their own."""
    combiners = ("sum", "mean", "sqrtn")
    pairs = zip(KEYS, combiners, strict=True)
    return tuple(Column(kind, key, combiner, **options) for key, combiner in pairs)


@dataclass(frozen=True)
class Batch:
    """The features of a batch for each of `KEYS`, made from a seed.

    `lengths` are the sizes of the bags of the first key; those of the others are rotations.
    """

    lengths: tuple[int, ...] = (2, 1, 0, 3, 1)
    seed: int = 0
    weights: tuple[float, ...] = (0.5, 2.0, 1.0, -1.0, 3.0, 0.0, 0.25)
    ids: tuple[int, int] = (-1, 9)
    """The lowest and the highest."""

    def features(self) -> dict[str, Any]:
        """Sparse and dense values by name."""
        rng = np.random.default_rng(self.seed)
        features: dict[str, Any] = {}
        for place, key in enumerate(KEYS):
            bags = (*self.lengths[place:], *self.lengths[:place])
            values = self._of_bags(rng, bags)
            features |= {f"{key}_{name}": value for name, value in values.items()}
        return features

    def _of_bags(self, rng: np.random.Generator, lengths: Sequence[int]) -> dict[str, Any]:
        rows = len(lengths)
        places = [[row, column] for row, n in enumerate(lengths) for column in range(n)]
        indices = np.array(places, np.int64).reshape(-1, 2)
        shape = np.array([rows, max([*lengths, 1])], np.int64)
        count = len(places)
        words = np.array([b"a", b"b", b"c", b"d", b"", b"zebra"], object)
        lowest, highest = self.ids
        entries = {
            "ids": rng.integers(lowest, highest + 1, count),
            "any": rng.integers(-20, 20, count).astype(np.int32),
            "words": rng.choice(words, count),
            "weights": rng.choice(np.array(self.weights, np.float32), count),
        }
        sparse = {
            name: v1.SparseTensorValue(indices, values, shape) for name, values in entries.items()
        }
        return sparse | {
            "dense": rng.integers(lowest, highest + 1, (rows, 2)),
            "numbers": rng.normal(size=(rows, 2)).astype(np.float32),
        }


#: Of each kind of source of ids: as they are, hashed, looked up, dense, weighted.
SOME = (
    Column("identity", "x", "mean"),
    Column("hash of words", "y", "sqrtn", 3),
    Column("vocabulary file with buckets", "z", "sum", 1),
    Column("identity of dense ids", "y", "sum", max_norm=0.8),
    Column("weighted ids", "z", "mean", trainable=False),
)
