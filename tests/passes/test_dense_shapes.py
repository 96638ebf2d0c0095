"""The sizes of dense shapes that stock asks about, in a SparseReshape, are those the pass does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion.passes.targets import PASSES, Target
from tests.passes import stock_graphs as stock

v1 = tf.compat.v1
INDICES = np.array([[0, 0], [0, 1], [3, 0]], np.int64)
NAMES = frozenset({"out", "initialize", "gradient"})
FORMS = ("single", "grouped", "split", "trained", "stock")


def looked_up(table: Any, ids: Any, is_empty: Any, default_id: int | None) -> Any:
    """The lookup of filled ids, as stock ends it."""
    result = v1.nn.embedding_lookup_sparse(table, ids, None, "mod", combiner="mean")
    if default_id is not None:
        return result
    columns = tf.stack([1, tf.shape(result)[1]])
    flags = tf.tile(tf.reshape(is_empty, [-1, 1]), columns)
    return v1.where(flags, tf.zeros_like(result), result)


def filled(form: str, default_id: int | None, reshapes: bool) -> Any:
    """A lookup of filled ids in this form, that flattens ids first where it `reshapes`."""
    with tf.Graph().as_default() as graph:
        indices = v1.placeholder(tf.int64, [None, None], "indices")
        values = v1.placeholder(tf.int64, [None], "values")
        shape = v1.placeholder(tf.int64, [2], "shape")
        ids = tf.SparseTensor(indices, values, shape)
        if reshapes:
            ids = tf.sparse.reshape(ids, shape)
        ids, is_empty = tf.sparse.fill_empty_rows(ids, default_id or 0)
        tables = [
            v1.get_variable(f"t{k}", initializer=stock.table_values(seed=k), use_resource=True)
            for k in range(2)
        ]
        shards = {"split": [tables], "grouped": tables}.get(form, tables[:1])
        results = [looked_up(shard, ids, is_empty, default_id) for shard in shards]
        result = tf.concat(results, 1) if form == "grouped" else results[0]
        tf.identity(result, name="out")
        if form == "trained":
            (slices,) = v1.gradients(tf.reduce_sum(result * result), tables[:1])
            tf.convert_to_tensor(slices, name="gradient")
        tf.group(v1.global_variables_initializer(), name="initialize")
        return graph.as_graph_def()


def outcome(graph_def: Any, shape: Any, indices: Any = INDICES) -> Any:
    feeds = {"values:0": np.array([1, 2, 3]), "indices:0": indices, "shape:0": np.array(shape)}
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        tf.import_graph_def(graph_def, name="")
        session.run("initialize")
        return session.run("out:0", feeds)


def rewritten(graph_def: Any, form: str) -> Any:
    target = Target.STOCK if form == "stock" else Target.FUSED
    result = PASSES[target](preserve=NAMES).apply(graph_def)
    assert {column.form for column in result.report.columns} == {form}, str(result.report)
    return result.graph_def


@pytest.mark.parametrize("default_id", [None, 1])
@pytest.mark.parametrize("form", FORMS)
def test_sizes_that_stock_does_not_read_are_not_read(form: str, default_id: int | None) -> None:
    graph_def = filled(form, default_id, reshapes=False)
    fused = rewritten(graph_def, form)
    for shape in ([4, 2], [4, -1], [4, 2**62]):
        np.testing.assert_array_equal(outcome(fused, shape), outcome(graph_def, shape))


@pytest.mark.parametrize("reshapes", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_rows_and_columns_are_read(form: str, reshapes: bool) -> None:
    graph_def = filled(form, None, reshapes)
    wide = np.append(INDICES, INDICES[:, :1], 1)
    for shape, indices in (([-4, 2], INDICES), ([3, 2], INDICES), ([4, 2], wide)):
        for one in (graph_def, rewritten(graph_def, form)):
            with pytest.raises(tf.errors.InvalidArgumentError):
                outcome(one, shape, indices)


@pytest.mark.parametrize("target", Target)
@pytest.mark.parametrize("splits", [[1, 3], [0, 2], [], [0]])
def test_row_splits_that_stock_refuses_are_refused(splits: list[int], target: Target) -> None:
    with tf.Graph().as_default() as graph:
        values = v1.placeholder(tf.int64, [None], "values")
        ids = tf.RaggedTensor.from_row_splits(
            values, v1.placeholder(tf.int64, [None], "splits"), validate=False
        )
        table = v1.get_variable("t", initializer=stock.table_values(), use_resource=True)
        tf.identity(tf.nn.safe_embedding_lookup_sparse(table, ids), name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
    graph_def = graph.as_graph_def()
    result = PASSES[target](preserve=NAMES).apply(graph_def)
    assert result.report.fused_count == 1
    feeds = {"values:0": np.array([1, 2, 3]), "splits:0": np.array(splits, np.int64)}
    for one in (graph_def, result.graph_def):
        with pytest.raises(tf.errors.InvalidArgumentError):
            stock.run(one, feeds)


@pytest.mark.parametrize("form", FORMS)
def test_sizes_that_stock_reads_are_read(form: str) -> None:
    graph_def = filled(form, None, reshapes=True)
    for shape in ([4, -1], [4, 2**62]):
        for one in (graph_def, rewritten(graph_def, form)):
            with pytest.raises(tf.errors.InvalidArgumentError):
                outcome(one, shape)
