"""Random graphs around ops that parse Examples: what is hashed, joined, looked up, and fetched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from random import Random
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1
fast = tf.strings.to_hash_bucket_fast

_FLOAT, _INT, _TEXT = tf.float32, tf.int64, tf.string
_ROWS, _DIMS = 50, (2, 3)
_DEFAULTS: dict[Any, list[Any]] = {_FLOAT: [0.5, 2.0], _INT: [7, -8], _TEXT: ["a", "b" * 30]}
_SHAPES: tuple[list[int], ...] = ([], [1], [2])


def _fixed(shape: list[int], dtype: Any) -> tf.io.FixedLenFeature:
    default = _DEFAULTS[dtype][: prod(shape)]
    return tf.io.FixedLenFeature(shape, dtype, default if shape else default[0])


def _specs() -> Iterator[tuple[str, Any]]:
    for dtype in (_FLOAT, _INT, _TEXT):
        for k in range(3):
            name = f"{dtype.name}{k}"
            yield from ((f"fixed{shape}{name}", _fixed(shape, dtype)) for shape in _SHAPES)
            yield f"sparse{name}", tf.io.VarLenFeature(dtype)
            yield f"ragged{name}", tf.io.RaggedFeature(dtype)
            filled = tf.io.FixedLenSequenceFeature([], dtype, allow_missing=True)
            yield f"padded{name}", filled


SPECS = dict(_specs())


def example(random: Random) -> bytes:
    """An Example, some of whose features are missing."""
    made = tf.train.Example()
    for key, spec in SPECS.items():
        if random.random() < 0.3:
            continue
        is_fixed = isinstance(spec, tf.io.FixedLenFeature)
        count = prod(spec.shape) if is_fixed else random.randrange(4)
        feature = made.features.feature[key]
        if spec.dtype == _FLOAT:
            feature.float_list.value.extend(random.random() for _ in range(count))
        elif spec.dtype == _INT:
            feature.int64_list.value.extend(random.randrange(-5, _ROWS) for _ in range(count))
        else:
            sizes = (random.randrange(40) for _ in range(count))
            texts = (bytes(random.choices(b"wv|", (8, 1, 1), k=size)) for size in sizes)
            feature.bytes_list.value.extend(texts)
    return made.SerializeToString()


class _Model:
    """What is computed of two vectors of Examples.

    Attributes:
        rows: tensors whose first axis is the batch, that may be joined.
        results: what may be asked for.
    """

    def __init__(self, random: Random, serialized: Sequence[tf.Tensor]) -> None:
        self._random = random
        self.rows: list[tf.Tensor] = []
        self.results: list[tf.Tensor] = []
        for _ in range(random.randrange(1, 4)):
            self._parse(random.choice(serialized))
        random.shuffle(self.rows)
        self._join_alike(self.rows)
        self.results += [row for row in self.rows if self._may(0.12)]

    def _may(self, rate: float) -> bool:
        return self._random.random() < rate

    def _parse(self, serialized: tf.Tensor) -> None:
        keys = sorted(SPECS)
        if self._may(0.6):  # those of one dtype are joined
            name = self._random.choice((_FLOAT, _INT, _TEXT)).name
            keys = [key for key in keys if key.startswith("fixed") and name in key]
        keys = self._random.sample(keys, self._random.randrange(2, len(keys) // 2 + 3))
        parsed = tf.io.parse_example(serialized, {key: SPECS[key] for key in keys})
        start = len(self.rows)
        for value in parsed.values():
            if isinstance(value, tf.SparseTensor):
                self._take_sparse(value)
            elif isinstance(value, tf.RaggedTensor):
                self._take_ragged(value)
            else:
                self._take_rows(value)
        own = self.rows[start:]
        if self._may(0.7):
            del self.rows[start:]
        self._random.shuffle(own)
        self._join_alike(own)

    def _join_alike(self, rows: list[tf.Tensor]) -> None:
        for dtype in (_FLOAT, _INT, _TEXT):
            for rank in (1, 2):
                self._join([row for row in rows if (row.dtype, row.shape.rank) == (dtype, rank)])

    def _hashed(self, texts: tf.Tensor) -> tf.Tensor:
        return fast(texts, self._random.choice((7, _ROWS)))

    def _take_sparse(self, value: tf.SparseTensor) -> None:
        ids = value
        if value.dtype == _TEXT and self._may(0.9):
            ids = tf.SparseTensor(value.indices, self._hashed(value.values), value.dense_shape)
        if ids.dtype == _INT and self._may(0.7):
            dim = self._random.choice(_DIMS)
            table = tf.random.stateless_normal([_ROWS, dim], [dim, 1])
            below = tf.math.floormod(ids.values, _ROWS) if value.dtype == _INT else ids.values
            bags = tf.SparseTensor(ids.indices, below, ids.dense_shape)
            self.rows.append(tf.nn.safe_embedding_lookup_sparse(table, bags))
        if self._may(0.3):
            self.results += [ids.values, ids.indices]
        if self._may(0.2):
            is_text = value.dtype == _TEXT
            self.results.append(self._hashed(value.values) if is_text else value.dense_shape)

    def _take_parts(self, texts: tf.Tensor) -> None:
        """Splits texts, and looks the hashes of their parts up."""
        splits = v1.string_split, v1.strings.split
        parts = self._random.choice(splits)(texts, self._random.choice(("|", "|", "w")))
        ids = self._hashed(parts.values)
        bags = tf.SparseTensor(parts.indices, ids, parts.dense_shape)
        for _ in range(self._random.choice((1, 1, 1, 2))):
            dim = self._random.choice(_DIMS)
            table = tf.random.stateless_normal([_ROWS, dim], [dim, 2])
            self.rows.append(tf.nn.safe_embedding_lookup_sparse(table, bags))
        if self._may(0.2):
            self.results.append(
                self._random.choice([parts.indices, parts.values, parts.dense_shape, ids])
            )
        if self._may(0.1):
            self.results.append(self._hashed(parts.values))
        if self._may(0.1):  # texts that are made of how many parts there are
            self._take_parts(
                tf.strings.join([texts, tf.strings.as_string(bags.dense_shape[1])], "|")
            )

    def _take_ragged(self, value: tf.RaggedTensor) -> None:
        if value.dtype == _TEXT:
            self.results.append(self._hashed(value.flat_values))
        if self._may(0.3):
            self.results += [value.flat_values, value.row_splits]
        elif value.dtype != _TEXT:
            self.results.append(tf.reduce_sum(value, 1))

    def _take_rows(self, value: tf.Tensor) -> None:
        self.rows.append(value)
        if value.dtype == _TEXT and value.shape.rank == 1 and self._may(0.5):
            self._take_parts(value)
        if value.dtype == _TEXT and self._may(0.8):
            self.rows += [self._hashed(value) for _ in range(self._random.choice((1, 1, 1, 2)))]

    def _join(self, rows: list[tf.Tensor]) -> None:
        """Joins some rows of one dtype and rank once or twice."""
        for _ in range(self._random.choice((1, 1, 1, 2))):
            some = [row for row in rows if row.shape.rank < 2 or row.shape[1] is not None]
            some = [row for row in some if self._may(0.7)]
            if len(some) < 2:
                continue
            if self._may(0.3) and some[0].dtype != _TEXT:
                some.insert(self._random.randrange(len(some)), tf.square(some[0]))
            if self._may(0.1):
                some.append(some[0])
            is_late = self._may(0.15) and bool(self.results)
            with tf.control_dependencies(self.results[:1] if is_late else []):
                axis = self._random.choice((1, 1, -1))
                joined = tf.stack(some, axis) if some[0].shape.rank == 1 else tf.concat(some, axis)
            if self._may(0.2):
                with tf.control_dependencies([joined]):
                    self.results.append(tf.identity(some[0]))
            self.results.append(joined)


def model(random: Random, serialized: Sequence[tf.Tensor]) -> Mapping[str, tf.Tensor]:
    """The results of a random model by the names of their nodes."""
    results = _Model(random, serialized).results or [*serialized]
    return {f"out{k}": tf.identity(one, name=f"out{k}") for k, one in enumerate(results)}
