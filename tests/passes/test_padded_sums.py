"""Sums over the padded results of a lookup of sparse ids: which are bags, and what stays of others.

That bags have stock's bits is tested beside those of other forms, in `test_bags.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.lower_lookups import LowerLookups
from fusion.schema.devices import Devices
from fusion.schema.names import GROUPED, READ_TABLES, SINGLE
from tests import layer_graphs as layers
from tests.layer_graphs import Model, Table
from tests.passes import stock_graphs as stock
from tests.passes.planned_graphs import ops

v1 = tf.compat.v1
PASS = FuseLookups(preserve=frozenset({"out", "out_1", "initialize"}))
MODEL = Model((Table(3000, 8, "read"),), (4,), bag="padded mean", wraps=True)
INDICES = [[0, 1], [0, 3], [2, 0], [2, 1], [2, 2], [2, 3]]


def weights_of(ids: Any, indices: Any = None, **how: Any) -> tf.Tensor:
    """Weights of the entries of ids, or of others."""
    given = v1.placeholder(tf.float32, [None], "weights")
    where = ids.indices if indices is None else indices
    dense = tf.sparse.to_dense(tf.SparseTensor(where, given, ids.dense_shape), **how)
    return tf.expand_dims(dense, -1)


def built(make: Callable[[Any, Any], Any]) -> graph_pb2.GraphDef:
    """A graph whose `out` is made of the rows [B, 4, 8] of padded ids, and the ids."""
    with tf.Graph().as_default() as graph:
        ids = layers.ids_placeholder(MODEL, 0)
        tf.identity(make(layers.rows_of(MODEL, 0, ids), ids), name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        return graph.as_graph_def()


def feeds(indices: Any = INDICES, **others: Any) -> dict[str, Any]:
    return {
        "ids_0/indices:0": indices,
        "ids_0/values:0": np.array([1, -1, 2999, -3001, 5, 1])[: len(indices)],
        "ids_0/shape:0": [3, 4],
        "weights:0": np.arange(len(indices)) / 3,
        **others,
    }


def total(rows: Any, ids: Any) -> tf.Tensor:
    return tf.reduce_sum(rows * weights_of(ids), 1)


STAY: dict[str, Callable[[Any, Any], Any]] = {
    "weights of other entries": lambda rows, ids: tf.reduce_sum(
        rows * weights_of(ids, v1.placeholder(tf.int64, [None, 2], "others")), 1
    ),
    "entries in any order": lambda rows, ids: tf.reduce_sum(
        rows * weights_of(ids, validate_indices=False), 1
    ),
    "dense weights": lambda rows, ids: tf.reduce_sum(
        rows * v1.placeholder(tf.float32, [None, 4, 1], "dense"), 1
    ),
    "no weights": lambda rows, ids: tf.reduce_sum(rows, 1),
    "over the batch": lambda rows, ids: tf.reduce_sum(rows * weights_of(ids), 0),
    "rows that others read": lambda rows, ids: total(rows, ids) + tf.reduce_max(rows, 1),
}


@pytest.mark.parametrize("name", STAY)
def test_of_what_is_no_bag_the_lookup_alone_is_fused(name: str) -> None:
    graph_def = built(STAY[name])
    result = PASS.apply(graph_def)
    (column,) = result.report.columns
    assert column.form == "single"
    assert column.spec is not None
    assert not column.spec.column.is_dense_sum
    assert {"Sum", SINGLE} <= {*ops(result.graph_def)}
    feed = feeds(**{"others:0": INDICES, "dense:0": np.ones([3, 4, 1])})
    (wanted,), (got,) = (
        stock.run(one, feed, optimize=False) for one in (graph_def, result.graph_def)
    )
    np.testing.assert_array_equal(wanted, got)


@pytest.mark.parametrize(
    "indices", [[[0, 1], [0, 1]], [[1, 0], [0, 0]], [[0, 0], [0, 4]], [[-1, 0], [0, 0]]]
)
def test_entries_that_are_no_matrix_are_refused(indices: Any) -> None:
    graph_def = built(total)
    result = PASS.apply(graph_def)
    assert "Sum" not in ops(result.graph_def)
    for one in (graph_def, result.graph_def):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"repeated|order|bounds|is invalid"
        ):
            stock.run(one, feeds(indices), optimize=False)


def test_a_variable_is_shared_as_it_is_without_the_sum() -> None:
    left = ops(v1.graph_util.extract_sub_graph(PASS.apply(built(total)).graph_def, ["out"]))
    assert {READ_TABLES, SINGLE} <= {*left}
    assert not {"ReadVariableOp", "SparseReshape", GROUPED} & {*left}


def test_what_is_trained_is_trained_as_it_is_without_the_sum() -> None:
    with tf.Graph().as_default() as graph:
        ids = layers.ids_placeholder(MODEL, 0)
        loss = tf.reduce_sum(total(layers.rows_of(MODEL, 0, ids), ids) ** 2)
        tf.convert_to_tensor(tf.gradients(loss, v1.trainable_variables())[0], name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
    (column,) = PASS.explain(graph.as_graph_def()).columns
    assert column.form == "trained"
    assert column.spec is not None
    assert not column.spec.column.is_dense_sum


def test_on_a_gpu_the_lookup_alone_is_fused() -> None:
    graph_def = built(total)
    for node in graph_def.node:
        node.device = "/device:GPU:0"
    everywhere = FuseLookups(PASS.preserve, devices=Devices(frozenset({"CPU", "GPU"})))
    result = everywhere.apply(graph_def)
    assert [column.fused for column in result.report.columns] == [True]
    assert "Sum" in ops(result.graph_def)


def test_of_stock_ops_the_lookup_alone_becomes_fewer() -> None:
    result = LowerLookups(preserve=PASS.preserve).apply(built(total))
    assert [column.fused for column in result.report.columns] == [True]
    assert "Sum" in ops(result.graph_def)
