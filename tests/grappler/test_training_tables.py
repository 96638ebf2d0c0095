"""Training of lookups that read the table itself, whose gradients find the distinct ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusion
from tests.grappler.executed import executed
from tests.grappler.training_steps import GRADIENT, TRAINED, Column, train_both

v1 = tf.compat.v1
MIXED = [Column("mean"), Column("sum"), Column("sqrtn"), Column(options={"default_id": 3})]
STOCK = tuple(f"SparseSegment{kind}GradV2" for kind in ("Mean", "Sum", "SqrtN"))
IDS = np.array([[0, 0, 7], [0, 1, 3], [2, 0, 7], [3, 0, -1], [3, 1, 30]])


def assert_trained(stock, fused, ops=1):
    """The same bits, from fused ops that gather."""
    fused.assert_same(stock)
    assert stock.count(*STOCK) > 0
    assert fused.count(*STOCK) == 0
    assert [fused.count(op) for op in (*TRAINED, GRADIENT)] == [ops] * 3
    # Reads of whole tables have become gathers of rows.
    assert fused.count("ResourceGather") >= stock.count(*STOCK) > stock.count("ResourceGather")
    assert fused.count("DisableCopyOnRead") == 0


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_optimizers(optimizer):
    assert_trained(*train_both(MIXED, optimizer, whole=True))


def test_many_columns():
    assert_trained(*train_both([*MIXED, Column(plain=True)] * 5, whole=True))


def test_columns_of_one_table():
    stock, fused = train_both([Column(table=0), Column("sum", table=0)], whole=True)
    fused.assert_same(stock)
    assert [fused.count(op) for op in (*TRAINED, GRADIENT)] == [1] * 3


def test_columns_that_are_not_side_by_side():
    def join(dense, columns):
        return tf.add_n(columns) * dense[:, :1]

    assert_trained(*train_both(MIXED, join=join, whole=True), ops=len(MIXED))


def run_graph(build: Any) -> tuple[list[np.ndarray], Any]:
    """What two runs of the fetches of `build(ids)` in a v1 graph give, and what ran then."""
    with tf.Graph().as_default(), v1.Session() as session:
        ids = v1.sparse_placeholder(tf.int64, [None, None])
        fetches = build(ids)
        session.run(v1.global_variables_initializer())
        fed = {ids: v1.SparseTensorValue(IDS[:, :2], IDS[:, 2], [4, 2])}
        found = tf.nest.flatten(session.run(fetches, fed))
        with executed() as ran:
            found += tf.nest.flatten(session.run(fetches, fed))
        return [value for value in found if value is not None], ran


def both(build: Any) -> tuple[Any, Any]:
    """What ran without fusion and with it, after a look at the numbers."""
    stock, stock_ran = run_graph(build)
    with fusion.fused():
        fused, fused_ran = run_graph(build)
    for mine, theirs in zip(fused, stock, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert any(stock_ran[op] for op in STOCK)
    return stock_ran, fused_ran


def reference_table(rows: int = 50, dim: int = 4, name: str = "table") -> Any:
    start = np.random.default_rng(dim).standard_normal((rows, dim)).astype(np.float32)
    return v1.get_variable(name, initializer=start, use_resource=False)


@pytest.mark.parametrize("combiner", ["mean", "sum", "sqrtn"])
@pytest.mark.parametrize("default_id", [None, 3])
def test_reference_variables(combiner, default_id):
    def build(ids):
        table, kernel = reference_table(), reference_table(4, 1, "kernel")
        found = tf.nn.safe_embedding_lookup_sparse(
            table, ids, combiner=combiner, default_id=default_id
        )
        loss = tf.reduce_mean(tf.square(found @ kernel))
        return loss, v1.train.AdagradOptimizer(0.1).minimize(loss), table.read_value()

    _, ran = both(build)
    assert [ran[op] for op in (*TRAINED, GRADIENT)] == [1] * 3


def test_tables_of_one_size_that_are_given_the_same_ids():
    # Their gradients have the same ids and number of rows, but not the same width.
    def build(ids):
        tables = [reference_table(dim=dim, name=f"of_{dim}") for dim in (4, 1)]
        wide, narrow = (tf.nn.safe_embedding_lookup_sparse(table, ids) for table in tables)
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(wide, 1, keepdims=True) + narrow))
        update = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        return loss, update, [table.read_value() for table in tables]

    _, ran = both(build)
    assert ran[GRADIENT] == 2


def test_gradients_that_cannot_be_told_apart_are_left_to_stock():
    # Without a mask and with shapes that are known, nothing leads from a gradient to its result.
    def build(ids):
        tables = [reference_table(dim=4, name=f"table_{n}") for n in range(2)]
        found = [tf.nn.embedding_lookup_sparse(table, given(ids), None) for table in tables]
        top = tf.ones([4, 4])
        return [tf.gradients(one, table, top) for one, table in zip(found, tables, strict=True)]

    def given(ids):
        return tf.SparseTensor(ids.indices, tf.abs(ids.values), ids.dense_shape)

    stock, ran = both(build)
    assert all(ran[op] == stock[op] for op in STOCK)


def writes(kind, handle, read, gradient):
    """A write to the variable, in the graph somewhere."""
    waits_for = {"values": gradient.values, "ids": gradient.indices}.get(kind, tf.zeros([1]))
    waited = tf.cast(tf.size(waits_for) * 0, tf.float32)

    def write():
        updates = tf.ones([1, 4]) + waited
        return tf.raw_ops.ResourceScatterSub(resource=handle, indices=[3], updates=updates)

    if kind == "another handle":
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[50, 4], shared_name="table")
    if kind == "alias":
        handle = tf.identity(handle)
    if kind in ("true", "false"):
        flag = v1.placeholder(tf.bool)
        true, false = (write, tf.no_op) if kind == "true" else (tf.no_op, write)
        return v1.cond(flag, lambda: group(true()), lambda: group(false()))
    with tf.control_dependencies([read] if kind == "control" else []):
        return write()


def group(op):
    with tf.control_dependencies([op]):
        return tf.constant(0)


@pytest.mark.parametrize(
    ("kind", "is_late"),
    [
        ("values", True),
        ("ids", True),
        ("control", True),
        ("nothing", False),
        ("alias", False),
        ("another handle", False),
        ("true", False),
        ("false", False),
    ],
)
def test_reads_are_put_off_where_no_write_can_come_before(kind, is_late):
    with tf.Graph().as_default() as graph:
        v1.disable_control_flow_v2()
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[50, 4], shared_name="table")
        ids = v1.sparse_placeholder(tf.int64, [None, None], name="ids")
        read = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
        found = tf.nn.safe_embedding_lookup_sparse(read, ids)
        (gradient,) = tf.gradients(tf.reduce_mean(tf.square(found)), read)
        written = writes(kind, handle, read, gradient)
        of_table = tf.identity(gradient.values, name="of_table")
        v1.enable_control_flow_v2()
    names = [written.name.partition(":")[0], of_table.op.name]
    # Without what nobody needs, as TensorFlow's optimizer has it.
    pruned = v1.graph_util.extract_sub_graph(graph.as_graph_def(), names)
    result = fusion.fuse_graph(pruned, names)
    assert result.report.fused_count == 1, str(result.report)
    ran = {node.op for node in result.graph_def.node}
    assert GRADIENT in ran
    assert ("ResourceGather" in ran) == is_late


def test_whoever_reads_the_ids_of_a_gradient_comes_after_the_gather():
    with tf.Graph().as_default() as graph:
        table, ids = reference_table(), v1.sparse_placeholder(tf.int64, [None, None])
        found = tf.nn.safe_embedding_lookup_sparse(table, ids)
        (gradient,) = tf.gradients(tf.reduce_mean(tf.square(found)), table)
        tf.identity(gradient.values, name="of_table")
        tf.identity(gradient.indices, name="of_ids")
    result = fusion.fuse_graph(graph.as_graph_def(), ["of_table", "of_ids"])
    nodes = {node.name: node for node in result.graph_def.node}
    keys = nodes[nodes["of_ids"].input[0].partition(":")[0]]
    (gather,) = (node.name for node in nodes.values() if node.name.endswith("/rows"))
    assert nodes[gather].op == "GatherV2"
    assert f"^{gather}" in keys.input
