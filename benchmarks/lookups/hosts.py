"""What looks up in a TensorFlow graph: stock functions, feature columns, models, gathers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

import fusion
from benchmarks.lookups.batch import NUMERICS, Unsupported, boundaries, table_numbers
from benchmarks.lookups.deepfm import DeepFM, dense_layers, through
from benchmarks.lookups.feed import Parts
from benchmarks.lookups.workloads import Program

Array = npt.NDArray[Any]

LookUp = Callable[[list[Parts], tf.Tensor], Any]
"""Makes the output of the tensors of the columns and of the dense features: a tensor, or a list."""

_MLPS = ((32,), (1024, 1024, 128))
"""Widths of the layers over the dense features, and over everything."""


def built(program: Program, tables: Mapping[int, Array], way: str) -> tuple[LookUp, LookUp | None]:
    """What is measured of a program, and what gives all numbers that are compared if it does not.

    Args:
        way: "stock", "stock_best" for stock at its best, or "fusion".

    Raises:
        Unsupported: there is no such way.
    """
    by_hand = way == "stock_best"
    if by_hand and program.host not in ("lookups", "features"):
        raise Unsupported("there is no other way to write it")
    if program.host == "deepfm":
        model = DeepFM(program, tables, way == "fusion")
        return model.step, model.everything
    if program.host == "model":
        return whole_model(program, tables), None
    if program.host == "features" and not by_hand:
        return only_features(program, tables), None
    if program.host == "features" and not is_all_by_hand(program):
        raise Unsupported("the columns need more than a gather")
    params = _params(program, tables)
    if program.is_of_tables:
        count = len(program.columns)
        look_up = look_up_tables(program, [*map(params, range(count))], way == "fusion")
        return look_up, of_all_rows(look_up, count)
    if program.host == "gradients":
        look_up = _gradients(program, params)
        return look_up, look_up
    if by_hand and is_all_by_hand(program):
        return _by_hand(program, params), None
    return _safe_lookups(program, params, by_hand), None


def look_up_tables(program: Program, tables: list[tf.Variable], fused: bool) -> LookUp:
    """The result of each table, and in training the ids and values of its gradient.

    The gradient of a result is the result.
    """
    combiners = [column.combiner for column in program.columns]

    def forward(columns: list[Parts]) -> list[tf.Tensor]:
        ids = [tf.SparseTensor(*parts) for parts in columns]
        if fused:
            return list(fusion.lookup_sparse(tables, ids, combiners=combiners))
        return [
            tf.nn.embedding_lookup_sparse(table, own, None, combiner=combiner)
            for table, own, combiner in zip(tables, ids, combiners, strict=True)
        ]

    def train(columns: list[Parts], numerics: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            results = forward(columns)
        tops = [tf.stop_gradient(result) for result in results]
        gradients = tape.gradient(results, tables, output_gradients=tops)
        return [*results, *(part for one in gradients for part in (one.indices, one.values))]

    return train if program.host == "trained tables" else lambda columns, _: forward(columns)


def of_all_rows(look_up: LookUp, count: int) -> LookUp:
    """The same with results of all rows; stock's end with the last row that has an id."""

    def padded(columns: list[Parts], numerics: tf.Tensor) -> list[tf.Tensor]:
        found = look_up(columns, numerics)
        missing = [
            tf.cast(parts[2][0], tf.int32) - tf.shape(result)[0]
            for parts, result in zip(columns, found[:count], strict=True)
        ]
        results = [
            tf.pad(result, [[0, rows], [0, 0]])
            for result, rows in zip(found[:count], missing, strict=True)
        ]
        return [*results, *found[count:]]

    return padded


def ids_of(parts: Parts) -> Parts:
    """What a gather by hand needs of a column."""
    return parts[1:2] if len(parts) > 1 else parts


def is_all_by_hand(program: Program) -> bool:
    """Whether gathers written by hand can do it."""
    return all(
        column.one_hot and column.kind in ("sparse", "dense", "bucketized")
        for column in program.columns
    )


def _params(program: Program, tables: Mapping[int, Array]) -> Callable[[int], Any]:
    """What gives the table of a column inside a graph: a variable, its shards or a constant."""
    numbers = table_numbers(program)
    if program.frozen:
        # Made inside the function: a constant from outside would be an argument of it.
        return lambda place: tf.constant(tables[numbers[place]])
    shards = {number: program.columns[place].shards for place, number in enumerate(numbers)}
    variables = {
        number: [tf.Variable(part) for part in np.array_split(table, shards[number])]
        for number, table in tables.items()
    }
    single = {number: parts[0] if len(parts) == 1 else parts for number, parts in variables.items()}
    return lambda place: single[numbers[place]]


def _safe_lookups(program: Program, params: Callable[[int], Any], fast: bool) -> LookUp:
    def look_up(columns: list[Parts], numerics: tf.Tensor) -> tf.Tensor:
        found = []
        for place, (column, parts) in enumerate(zip(program.columns, columns, strict=True)):
            indices, values, shape = parts[:3]
            found.append(
                tf.nn.safe_embedding_lookup_sparse(
                    params(place),
                    tf.SparseTensor(indices, values, shape),
                    tf.SparseTensor(indices, parts[3], shape) if column.weighted else None,
                    combiner=column.combiner,
                    max_norm=column.max_norm,
                    allow_fast_lookup=fast,
                )
            )
        return _concat(found)

    return look_up


def _gradients(program: Program, params: Callable[[int], Any]) -> LookUp:
    """Embeddings, and for each table the ids and the values of its gradient.

    The gradient of the embeddings is the embeddings.
    """
    forward = _safe_lookups(program, params, fast=False)
    variables = [params(place) for place in range(len(program.columns))]

    def look_up(columns: list[Parts], numerics: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            embeddings = forward(columns, numerics)
        gradients = tape.gradient(embeddings, variables, tf.stop_gradient(embeddings))
        return [embeddings, *(part for one in gradients for part in (one.indices, one.values))]

    return look_up


def _by_hand(program: Program, params: Callable[[int], Any]) -> LookUp:
    def look_up(columns: list[Parts], numerics: tf.Tensor) -> tf.Tensor:
        found = []
        for place, (column, parts) in enumerate(zip(program.columns, columns, strict=True)):
            (ids,) = ids_of(parts)
            ids = ids if column.kind == "sparse" else tf.squeeze(ids, 1)
            if column.kind == "bucketized":
                ids = tf.raw_ops.Bucketize(input=ids, boundaries=boundaries(column.rows))
            found.append(tf.gather(params(place), ids))
        return _concat(found)

    return look_up


def _concat(found: list[tf.Tensor]) -> tf.Tensor:
    return found[0] if len(found) == 1 else tf.concat(found, 1)


def only_features(program: Program, tables: Mapping[int, Array]) -> LookUp:
    """DenseFeatures over stock feature columns."""
    # tf_keras is for the baselines alone; importing it takes seconds.
    from tf_keras.layers import DenseFeatures

    if program.frozen:
        raise Unsupported("DenseFeatures has Variables")
    numbers = table_numbers(program)
    # The layer sorts its columns by name.
    keys = [f"column{place:04}" for place in range(len(program.columns))]
    layer = DenseFeatures(
        [
            _feature_column(column, key, tables[number])
            for column, key, number in zip(program.columns, keys, numbers, strict=True)
        ]
    )
    # Calling it would gather from the variables.
    layer.build(None)

    def look_up(columns: list[Parts], numerics: tf.Tensor) -> tf.Tensor:
        features = {
            key: parts[0] if len(parts) == 1 else tf.SparseTensor(*parts)
            for key, parts in zip(keys, columns, strict=True)
        }
        return layer(features)

    return look_up


def _feature_column(column: Any, key: str, table: Array) -> Any:
    columns = tf.feature_column
    if column.kind == "bucketized":
        source = columns.bucketized_column(columns.numeric_column(key), boundaries(column.rows))
    elif column.kind in ("dense", "sparse"):
        source = columns.categorical_column_with_identity(key, column.rows)
    else:
        dtype = tf.int64 if column.kind == "hashed" else tf.string
        source = columns.categorical_column_with_hash_bucket(key, column.rows, dtype)

    def initializer(shape: Any, dtype: Any = None, **options: Any) -> Array:
        return table

    return columns.embedding_column(
        source,
        column.dim,
        combiner=column.combiner,
        initializer=initializer,
        max_norm=column.max_norm,
    )


def whole_model(program: Program, tables: Mapping[int, Array]) -> LookUp:
    """Embeddings and dense features through the layers of `_MLPS`, to one number per row."""
    embed = only_features(program, tables)
    rng = np.random.default_rng(2)
    bottom = dense_layers(rng, (NUMERICS, *_MLPS[0]))
    top = dense_layers(rng, (program.width + _MLPS[0][-1], *_MLPS[1], 1))

    def look_up(columns: list[Parts], numerics: tf.Tensor) -> tf.Tensor:
        dense = through(bottom, numerics)
        return through(top, tf.concat([embed(columns, numerics), dense], 1))

    return look_up
