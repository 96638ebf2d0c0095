"""Lookups of many tables by `fusion.lookup_sparse`, against a stock lookup of each."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

import fusion
from benchmarks.feed import Parts
from benchmarks.workloads import Program

LookUp = Callable[[list[Parts], tf.Tensor], list[tf.Tensor]]


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
