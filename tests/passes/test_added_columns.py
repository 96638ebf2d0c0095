"""Columns that an AddN adds, as those of a linear model: one op for all, and the sum as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tests import layer_graphs as layers
from tests.layer_graphs import Model, Table
from tests.passes import stock_graphs as stock
from tests.passes.planned_graphs import (
    GROUP,
    PASS,
    SINGLE,
    checked,
    column,
    feeds,
    forms,
    graph_of,
    named,
    ops,
    table,
)

v1 = tf.compat.v1


def columns(names: str, dim: int = 2) -> list[tf.Tensor]:
    return [column(name, table(f"{name}_table", dim)) for name in names]


def assert_alike(
    graph_def: graph_pb2.GraphDef, fused: graph_pb2.GraphDef, feed: dict[str, Any]
) -> None:
    """Compares to the bit, as the graphs are and as TensorFlow's optimizer makes them."""
    for optimize in (False, True):
        expected = stock.run(graph_def, feed, optimize=optimize)[0]
        np.testing.assert_array_equal(stock.run(fused, feed, optimize=optimize)[0], expected)


def test_added_columns_are_one_op_whose_parts_are_added() -> None:
    graph_def = graph_of(lambda: tf.add_n(columns("abcd"), name="together"))
    after = checked(graph_def, feeds(*"abcd"), ["grouped"] * 4)
    assert ops(after).count(GROUP) == 1
    total = named(after)["together"]
    assert total.op == "AddN"
    assert total.attr["N"].i == 4
    assert list(total.input) == list(named(graph_def)["together"].input)
    assert [named(after)[name].op for name in total.input] == ["Slice"] * 4


def test_many_columns_are_added_in_the_order_in_which_tensorflow_adds_them() -> None:
    # TensorFlow's optimizer sorts them by name, that is backwards here.
    graph_def = graph_of(lambda: tf.add_n(columns("lkjihgfedcba")))
    fused = PASS.apply(graph_def)
    assert forms(fused) == ["grouped"] * 12
    assert_alike(graph_def, fused.graph_def, feeds(*"lkjihgfedcba"))


def test_other_summands_stay_in_their_places() -> None:
    def build() -> Any:
        a, b, c, d, e = columns("abcde")
        return tf.add_n([a, b, 2 * e, c, d], name="together")

    expected: list[str | None] = [*["grouped"] * 4, "single"]
    graph_def, feed = graph_of(build), feeds(*"abcde")
    after = checked(graph_def, feed, expected, exact=False)
    assert_alike(graph_def, after, feed)
    total = named(after)["together"]
    assert total.attr["N"].i == 5
    assert ops(after).count(GROUP) == 2


def test_columns_behind_reshapes_are_added() -> None:
    def build() -> Any:
        return tf.add_n([tf.reshape(one, [-1, 2]) for one in columns("abc")])

    after = checked(graph_of(build), feeds(*"abc"), ["grouped"] * 3)
    assert ops(after).count(GROUP) == 1


def test_a_column_that_others_read_is_an_op_of_its_own() -> None:
    def build() -> Any:
        a, *rest = columns("abc")
        return tf.add_n([a, *rest]) + tf.reduce_sum(a, 1, keepdims=True)

    after = checked(graph_of(build), feeds(*"abc"), ["single", "grouped", "grouped"])
    assert {GROUP, SINGLE} <= {*ops(after)}


def test_a_sum_of_two_is_no_sum_of_many() -> None:
    def build() -> Any:
        a, b = columns("ab")
        return a + b

    checked(graph_of(build), feeds(*"ab"), ["single"] * 2)


def gathers(model: Model, between: Any) -> graph_pb2.GraphDef:
    with tf.Graph().as_default() as graph:
        ids = [layers.ids_placeholder(model, k) for k in range(len(model.tables))]
        rows = [layers.rows_of(model, k, one) for k, one in enumerate(ids)]
        tf.add_n([between(one) for one in rows], name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        return graph.as_graph_def()


def test_gathers_are_added_as_matrices() -> None:
    model = Model((Table(3000, 8), Table(3000, 8), Table(3000, 8)))
    flat = PASS.explain(gathers(model, lambda rows: tf.squeeze(rows, [1]))).columns
    assert [one.form for one in flat] == ["grouped"] * 3
    cubes = PASS.explain(gathers(model, lambda rows: rows)).columns
    assert {one.reason for one in cubes} == {"its rows are not added as a matrix of known width"}
