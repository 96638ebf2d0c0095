"""What makes ids in front of lookups: hashes, vocabularies and crosses, in exported models.

Each of 26 columns has one value a row, sparse, and an embedding of dimension 16; of "parts" it is a
text that is split into five strings, which are hashed. A model is rewritten by `fusion rewrite`; it
and the original take turns in one process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.case import Row
from benchmarks.measure import block, in_turns, milliseconds, ratios
from fusion.saved_model import fuse_saved_model

_COLUMNS, _DIM, _BUCKETS = 26, 16, 1000
#: Of values, so many are in no vocabulary.
_UNKNOWN = 0.05
#: Of a text that is split.
_PARTS = 5


class _Model(tf.Module):
    """Lookups of ids that are made of values."""

    def __init__(self, kind: str, rows: int) -> None:
        super().__init__()
        generator = np.random.default_rng(1)
        self._rows, self._make = rows, getattr(self, f"_{kind}")
        self._embeddings = [
            tf.Variable(generator.normal(size=(rows, _DIM)).astype(np.float32))
            for _ in range(_COLUMNS)
        ]
        self._tables = [_table(k, rows) for k in range(_COLUMNS)] if kind == "vocabulary" else []

    @tf.function
    def __call__(self, indices: tf.Tensor, shape: tf.Tensor, **values: tf.Tensor) -> Any:
        columns = [tf.SparseTensor(indices, values[f"v{k}"], shape) for k in range(_COLUMNS)]
        ids = [self._make(columns, k) for k in range(_COLUMNS)]
        rows = [
            tf.nn.safe_embedding_lookup_sparse(*pair, combiner="mean")
            for pair in zip(self._embeddings, ids, strict=True)
        ]
        return {"rows": tf.concat(rows, 1)}

    def _strings(self, columns: list[tf.SparseTensor], k: int) -> tf.SparseTensor:
        values = columns[k].values
        return columns[k].with_values(tf.strings.to_hash_bucket_fast(values, self._rows))

    def _parts(self, columns: list[tf.SparseTensor], k: int) -> tf.SparseTensor:
        parts = tf.compat.v1.strings.split(columns[k].values, "|")
        ids = tf.strings.to_hash_bucket_fast(parts.values, self._rows)
        return tf.SparseTensor(parts.indices, ids, parts.dense_shape)

    def _integers(self, columns: list[tf.SparseTensor], k: int) -> tf.SparseTensor:
        texts = tf.strings.as_string(columns[k].values)
        return columns[k].with_values(tf.strings.to_hash_bucket_fast(texts, self._rows))

    def _vocabulary(self, columns: list[tf.SparseTensor], k: int) -> tf.SparseTensor:
        return columns[k].with_values(self._tables[k].lookup(columns[k].values))

    def _cross(self, columns: list[tf.SparseTensor], k: int) -> tf.SparseTensor:
        return tf.sparse.cross_hashed([columns[k], columns[k - 1]], self._rows)


def _table(column: int, rows: int) -> tf.lookup.StaticVocabularyTable:
    """A vocabulary, and buckets for what is not in it."""
    keys = _texts(column, np.arange(rows - _BUCKETS))
    numbers = tf.range(rows - _BUCKETS, dtype=tf.int64)
    initializer = tf.lookup.KeyValueTensorInitializer(keys, numbers)
    return tf.lookup.StaticVocabularyTable(initializer, _BUCKETS)


def _texts(column: int, numbers: Any) -> tf.Tensor:
    return tf.constant([f"v{column}_{number}" for number in numbers])


def _inputs(kind: str, rows: int, batch: int) -> dict[str, tf.Variable]:
    generator = np.random.default_rng(2)
    limit = int((rows - _BUCKETS) * (1 + _UNKNOWN)) if kind == "vocabulary" else 10**7
    inputs: dict[str, Any] = {}
    for k in range(_COLUMNS):
        numbers = generator.integers(0, limit, batch * (_PARTS if kind == "parts" else 1))
        values = tf.constant(numbers) if kind == "integers" else _texts(k, numbers)
        if kind == "parts":
            values = tf.strings.reduce_join(tf.reshape(values, [batch, _PARTS]), 1, separator="|")
        inputs[f"v{k}"] = values
    inputs["indices"] = np.stack([np.arange(batch), np.zeros(batch, np.int64)], 1)
    inputs["shape"] = np.array([batch, 1], np.int64)
    return {name: tf.Variable(value) for name, value in inputs.items()}


def _export(model: _Model, kind: str, path: Path) -> None:
    dtype = tf.int64 if kind == "integers" else tf.string
    specs = {f"v{k}": tf.TensorSpec([None], dtype, name=f"v{k}") for k in range(_COLUMNS)}
    specs["indices"] = tf.TensorSpec([None, 2], tf.int64, name="indices")
    specs["shape"] = tf.TensorSpec([2], tf.int64, name="shape")
    tf.saved_model.save(model, str(path), signatures=model.__call__.get_concrete_function(**specs))


def _caller(path: Path, inputs: dict[str, tf.Variable], rows: slice) -> Callable[[], tf.Tensor]:
    """What calls a model with what variables hold, and gives some rows of the result."""
    model = tf.saved_model.load(str(path))
    signature = model.signatures["serving_default"]

    @tf.function
    def call() -> tf.Tensor:
        held = {name: variable.read_value() for name, variable in inputs.items()}
        return signature(**held)["rows"][rows]

    # The model has to live as long as its variables are needed.
    return lambda: call() if model is not None else None


def _reader(inputs: dict[str, tf.Variable]) -> Callable[[], tf.Tensor]:
    """What reads the inputs, and makes nothing of them."""

    @tf.function
    def call() -> list[tf.Tensor]:
        return [variable.read_value()[:1] for variable in inputs.values()][:1]

    return call


def measure(kind: str, batch: int, rows: int, seconds: float) -> Iterator[Row]:
    """Yields milliseconds of each side, net of a call that reads the inputs.

    Args:
        kind: "integers", "strings", "parts", "vocabulary" or "cross".
        batch: rows of a batch.
        rows: of each table.
        seconds: for all.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = {side: Path(folder) / side for side in ("stock", "fused")}
        _export(_Model(kind, rows), kind, paths["stock"])
        fuse_saved_model(paths["stock"], paths["fused"], verify=False)
        inputs = _inputs(kind, rows, batch)
        whole = [_caller(path, inputs, slice(None))() for path in paths.values()]
        np.testing.assert_array_equal(whole[0].numpy(), whole[1].numpy())
        calls = {side: _caller(path, inputs, slice(1)) for side, path in paths.items()}
        calls["empty"] = _reader(inputs)
        times = in_turns({side: block(call) for side, call in calls.items()}, seconds)
    idle = float(np.median(times["empty"]))
    stock, fused = ([max(one - idle, 1e-9) for one in times[side]] for side in paths)
    values = {
        "stock, ms": milliseconds(stock),
        "fused, ms": milliseconds(fused),
        "times as fast": ratios(stock, fused),
    }
    yield Row({"ids of": kind, "batch": batch}, values, "Ids and their lookups, net of the call")
