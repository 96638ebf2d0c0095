"""Which lookups that stand alone become one op, and which stay in parts; and their numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.python.ops import control_flow_util

from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.report.report import FusionResult
from fusion.schema.devices import Devices
from tests.passes import stock_graphs as stock
from tests.passes.planned_graphs import (
    PASS,
    SINGLE,
    checked,
    column,
    dense,
    feeds,
    forms,
    graph_of,
    named,
    ops,
    table,
)
from tests.passes.stock_graphs import Case

v1 = tf.compat.v1


# Dense and plain ids


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.int32, tf.int64])
@pytest.mark.parametrize("width", [1, 2])
def test_buckets_are_found_by_the_op(dtype: Any, width: int) -> None:
    def build() -> Any:
        values = v1.placeholder(dtype, [None, width], "values")
        return dense(tf.raw_ops.Bucketize(input=values, boundaries=[-1.5, 0, 2]), table("t"))

    numbers = np.array([-2.0, -1.5, 0, 0.5, 2, 1e9, -1e9, 1]).astype(dtype.as_numpy_dtype)
    after = checked(graph_of(build), {"values:0": numbers.reshape(-1, width)}, ["single"])
    (node,) = (node for node in after.node if node.op == SINGLE)
    assert node.input[1] == "values"
    assert list(node.attr["boundaries"].list.f) == [-1.5, 0, 2]
    assert node.attr["column_stride"].i == 4 * (width - 1)
    assert "Bucketize" not in ops(after)


def test_nan_falls_into_the_same_bucket_as_in_stock() -> None:
    def build() -> Any:
        values = v1.placeholder(tf.float32, [None, 1], "values")
        return dense(tf.raw_ops.Bucketize(input=values, boundaries=[-1.5, 0, 2]), table("t"))

    numbers = np.array([np.nan, np.inf, -np.inf, -0.0], np.float32)
    checked(graph_of(build), {"values:0": numbers.reshape(-1, 1)}, ["single"])


def test_buckets_that_others_need_stay() -> None:
    def build() -> Any:
        values = v1.placeholder(tf.float32, [None, 1], "values")
        buckets = tf.raw_ops.Bucketize(input=values, boundaries=[-1.5, 0, 2])
        return dense(buckets, table("t")) + tf.cast(buckets, tf.float32)

    after = checked(
        graph_of(build), {"values:0": np.array([[-2.0], [0.5]], np.float32)}, ["single"]
    )
    assert "Bucketize" in ops(after)


@pytest.mark.parametrize(
    ("source", "lookup", "form"),
    [
        (tf.int32, tf.int32, "single"),
        (tf.int64, tf.int64, "single"),
        (tf.int32, tf.int64, "single"),
        (tf.int64, tf.int32, "split"),
    ],
)
def test_dense_ids_that_would_be_narrowed_stay_in_parts(
    source: Any, lookup: Any, form: str
) -> None:
    def build() -> Any:
        matrix = v1.placeholder(source, [None, 3], "matrix")
        indices = tf.where(tf.not_equal(matrix, -1))
        values = tf.cast(tf.gather_nd(matrix, indices), lookup)
        ids = tf.SparseTensor(indices, values, tf.shape(matrix, tf.int64))
        return stock.lookup(table("t"), ids, Case(ids=lookup))

    matrix = np.array([[1, -1, 3], [-1, -1, -1], [0, 0, 18]], source.as_numpy_dtype)
    checked(graph_of(build), {"matrix:0": matrix}, [form])


@pytest.mark.parametrize("weighted", [False, True])
def test_plain_lookups_end_with_the_last_entry(weighted: bool) -> None:
    def build() -> Any:
        ids = stock.sparse_placeholder(Case())
        weights = ids.with_values(v1.placeholder(tf.float32, [None], "w")) if weighted else None
        return tf.nn.embedding_lookup_sparse(table("t"), ids, weights, combiner="sum")

    feed = {
        "ids/indices:0": np.array([[0, 0], [0, 1], [2, 0]]),
        "ids/values:0": np.array([1, 2, 18]),
        "ids/shape:0": np.array([9, 2]),
        "w:0": np.array([0.5], np.float32),
    }
    after = checked(graph_of(build), feed, ["single"])
    (node,) = (node for node in after.node if node.op == SINGLE)
    assert node.attr["row_count"].s == b"last_row"


# What stays in parts


def test_the_flags_of_empty_rows_keep_a_lookup_in_parts() -> None:
    def build() -> Any:
        ids = stock.sparse_placeholder(Case())
        ids, empty = tf.sparse.fill_empty_rows(ids, np.int64(0))
        rows = tf.nn.embedding_lookup_sparse(table("t"), ids, None)
        return tf.concat([rows, tf.cast(empty, tf.float32)[:, tf.newaxis]], 1)

    feed = stock.feeds(Case())
    feed["ids/indices:0"] = np.sort(feed["ids/indices:0"], axis=0)
    feed["ids/values:0"] = np.abs(feed["ids/values:0"]) % 19
    checked(graph_of(build), feed, ["split"])


def test_partitions_and_norms_that_no_op_clips_stay_in_parts() -> None:
    parts = Case(shards=2, combiner="sum")
    halves = Case(dtype=tf.float16, max_norm=0.5)

    def build() -> Any:
        source = [table("one"), table("two")]
        return column("a", source, parts) + tf.cast(column("b", case=halves), tf.float32)

    checked(graph_of(build), feeds("a", "b", case=parts), ["split"] * 2, exact=False)


def placed(of_table: str, of_lookup: str, home: str = "CPU") -> FusionResult:
    """What becomes of a lookup on devices."""
    graph_def = stock.build(Case())
    for node in graph_def.node:
        is_table = node.op in ("VarHandleOp", "ResourceGather")
        node.device = of_table if is_table else of_lookup
    everywhere = FuseLookups(PASS.preserve, devices=Devices(frozenset({"CPU", "GPU"}), home))
    return everywhere.apply(graph_def)


@pytest.mark.parametrize(
    ("of_table", "of_lookup", "form"),
    [
        ("", "", "single"),
        ("/cpu:0", "", "single"),
        ("", "/job:localhost/replica:0/task:0/device:CPU:0", "single"),
        ("/device:CPU:0", "/job:localhost/replica:0/task:0/cpu:0", "single"),
        ("/device:CPU:1", "/device:CPU:0", "split"),
        ("/device:GPU:0", "", "split"),
        ("/job:ps/task:0", "/job:worker/task:0", "split"),
        ("/job:ps/task:0", "", "split"),
        ("/job:ps/task:0/device:CPU:0", "/job:ps/task:0", "single"),
    ],
)
def test_a_table_elsewhere_keeps_its_gather(of_table: str, of_lookup: str, form: str) -> None:
    result = placed(of_table, of_lookup)
    assert forms(result) == [form]
    reader = "ReadEmbeddingTables" if form == "single" else "ResourceGather"
    reads = [n for n in result.graph_def.node if n.op == reader and n.name.startswith("embedding")]
    assert [node.device for node in reads] == [of_table]
    assert [list(node.attr["_class"].list.s) for node in reads] == [[b"loc:@table"]]


def test_a_table_on_a_cpu_does_not_travel_to_a_gpu() -> None:
    """An op that is not placed goes to a GPU, where there are kernels for one."""
    assert forms(placed("/cpu:0", "", "GPU")) == ["split"]
    assert forms(placed("/cpu:0", "/device:CPU:0", "GPU")) == ["single"]
    assert forms(placed("/device:GPU:0", "/device:GPU:0", "GPU")) == ["single"]
    assert forms(placed("/device:GPU:0", "", "GPU")) == ["single"]
    assert forms(placed("", "", "GPU")) == ["single"]


def test_a_gather_that_is_only_kept_beside_a_table_elsewhere() -> None:
    graph_def = stock.build(Case())
    named(graph_def)["table"].device = "/job:ps/task:0"
    assert forms(PASS.apply(graph_def)) == ["split"]


def test_lookups_on_other_devices_than_the_concat_are_not_grouped() -> None:
    graph_def = graph_of(lambda: tf.concat([column("a"), column("b"), column("c")], 1, "together"))
    for node in graph_def.node:
        node.device = f"/device:CPU:{int(node.name.startswith('c'))}"
    result = PASS.apply(graph_def)
    assert forms(result) == ["grouped", "grouped", "single"]
    group = named(result.graph_def)["together"]
    assert [value.decode() for value in group.attr["forms"].list.s][2] == "copy"
    named(graph_def)["together"].device = "/device:CPU:2"
    assert forms(PASS.apply(graph_def)) == ["single"] * 3


# Writers of single rows


def scatter(handle: Any) -> Any:
    return tf.raw_ops.ResourceScatterAdd(
        resource=handle, indices=[0], updates=tf.zeros([1, stock.DIM])
    )


def test_a_table_of_which_rows_are_written_stays_in_parts() -> None:
    def build() -> Any:
        one, other = table("one"), table("other")
        scatter(one.handle)
        return tf.concat([column("a", one), column("b", other), column("c", other)], 1)

    checked(graph_of(build), feeds(*"abc"), ["split", "grouped", "grouped"])


def test_a_reference_variable_of_which_rows_are_written_stays_in_parts() -> None:
    def build() -> Any:
        one, other = (
            v1.get_variable(n, initializer=stock.table_values()[1:], use_resource=False)
            for n in ("one", "other")
        )
        v1.scatter_add(one, [0], tf.zeros([1, stock.DIM]))
        return column("a", one) + column("b", other)

    checked(graph_of(build), feeds("a", "b"), ["split", "single"])


@pytest.mark.parametrize("lookup_in_function", [False, True])
@pytest.mark.parametrize("writer_in_function", [False, True])
def test_handles_are_followed_into_functions(
    lookup_in_function: bool, writer_in_function: bool
) -> None:
    def build() -> Any:
        one, other = table("one"), table("other")

        def write(handle: Any) -> Any:
            scatter(handle)
            return tf.constant(0.0)

        def look_up(ids: Any) -> Any:
            return tf.concat([stock.lookup(one, ids, Case()), stock.lookup(other, ids, Case())], 0)

        if writer_in_function:
            inner = tf.function(write, autograph=False)
            tf.function(lambda handle: inner(handle) + 1.0, autograph=False)(one.handle)
        else:
            write(one.handle)
        ids = stock.sparse_placeholder(Case(), "a/ids")
        return (tf.function(look_up, autograph=False) if lookup_in_function else look_up)(ids)

    graph_def = graph_of(build)
    checked(graph_def, feeds("a"), ["split", "single"])


def test_a_write_of_a_whole_table_is_no_obstacle() -> None:
    def build() -> Any:
        one = table("one")
        one.assign_add(tf.zeros_like(one))
        return column("a", one)

    checked(graph_of(build), feeds("a"), ["single"])


# Order


def test_a_read_stays_behind_effects_that_only_its_ids_wait_for() -> None:
    """The ids come after an assignment; stock's gather reads what was assigned."""

    def build() -> Any:
        one = v1.get_variable("t", initializer=stock.table_values(), use_resource=True)
        ids = stock.sparse_placeholder(Case(), "a/ids")
        with tf.control_dependencies([one.assign(tf.ones_like(one), read_value=False)]):
            values = tf.identity(ids.values)
        return stock.lookup(one, tf.SparseTensor(ids.indices, values, ids.dense_shape), Case())

    graph_def = graph_of(build)
    after = checked(graph_def, feeds("a"), ["single"])
    (node,) = (node for node in after.node if node.op == SINGLE)
    read = named(after)[node.input[0]]
    assert any(text == f"^{node.input[1]}" for text in read.input)
    for _ in range(20):
        (rows,) = stock.run(after, feeds("a"))
        assert set(np.unique(rows)) == {0.0, 1.0}


def ordered(loops: bool = False) -> graph_pb2.GraphDef:
    """The second lookup of a table comes after a write, and that after the first lookup."""

    def build() -> Any:
        one, other = table("one"), table("other")
        first = column("a", one)
        ids = stock.sparse_placeholder(Case(), "b/ids")
        with tf.control_dependencies([first]):
            write = one.assign_add(tf.ones_like(one), read_value=False)
        with tf.control_dependencies([write]):
            second = stock.lookup(one, ids, Case())
        if loops:
            v1.while_loop(lambda i: i < 2, lambda i: i + 1, [0])
        return tf.concat([first, second, column("c", other)], 1, name="together")

    return graph_of(build)


def test_a_group_that_would_wait_for_itself_is_not_made() -> None:
    after = checked(ordered(), feeds(*"abc"), ["single"] * 3)
    assert "ConcatV2" in ops(after)


def test_the_way_back_of_a_loop_is_no_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_flow_util, "ENABLE_CONTROL_FLOW_V2", False)
    checked(ordered(loops=True), feeds(*"abc"), ["single"] * 3)


@pytest.mark.parametrize(("written", "form"), [(False, "grouped"), (True, "single")])
def test_lookups_with_an_order_in_a_v1_loop(
    monkeypatch: pytest.MonkeyPatch, written: bool, form: str
) -> None:
    """The next iteration waits for both; or the second for a write that waits for the first."""
    monkeypatch.setattr(control_flow_util, "ENABLE_CONTROL_FLOW_V2", False)

    def build() -> Any:
        one, other = table("one"), table("other")
        ids = stock.sparse_placeholder(Case(), "a/ids")
        ids = ids.with_values(ids.values % 19)

        def step(i: Any, total: Any) -> Any:
            first = tf.nn.embedding_lookup_sparse(one, ids, None)
            with tf.control_dependencies([first]):
                write = [one.assign_add(tf.ones_like(one), read_value=False)] if written else []
            with tf.control_dependencies(write):
                second = tf.nn.embedding_lookup_sparse(one if written else other, ids, None)
            with tf.control_dependencies([first, second]):
                return i + 1, total + tf.concat([first, second], 1)

        start = tf.zeros([7, 2 * stock.DIM])
        shapes = tf.TensorShape([]), tf.TensorShape([None, 2 * stock.DIM])
        return v1.while_loop(
            lambda i, _: i < 3, step, (0, start), shapes, parallel_iterations=1, back_prop=False
        )[1]

    feed = feeds("a")
    feed["a/ids/indices:0"] = np.sort(feed["a/ids/indices:0"], axis=0)
    checked(graph_of(build), feed, [form] * 2)


def test_groups_in_a_v1_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_flow_util, "ENABLE_CONTROL_FLOW_V2", False)

    def build() -> Any:
        tables = [table(name) for name in "ab"]
        ids = stock.sparse_placeholder(Case(), "a/ids")

        def step(i: Any, total: Any) -> Any:
            moved = ids.with_values((ids.values + tf.cast(i, tf.int64)) % 19)
            found = [tf.nn.embedding_lookup_sparse(t, moved, None) for t in tables]
            return i + 1, total + tf.concat(found, 1)

        shape = tf.TensorShape([None, 2 * stock.DIM])
        start = tf.zeros([7, 2 * stock.DIM])
        return v1.while_loop(
            lambda i, _: i < 3, step, (0, start), (tf.TensorShape([]), shape), back_prop=False
        )[1]

    feed = feeds("a")
    feed["a/ids/indices:0"] = np.sort(feed["a/ids/indices:0"], axis=0)
    checked(graph_of(build), feed, ["grouped"] * 2)


def test_control_edges_of_all_members_move_to_the_group() -> None:
    graph_def = graph_of(lambda: tf.concat([column("a"), column("b")], 1, name="together"))
    anchors = [column.anchor for column in PASS.explain(graph_def).columns]
    for index, anchor in enumerate(anchors):
        graph_def.node.add(name=f"before_{index}", op="NoOp")
        graph_def.node.add(name=f"after_{index}", op="NoOp", input=[f"^{anchor}"])
        named(graph_def)[anchor].input.append(f"^before_{index}")
    graph_def.node.add(name="before_concat", op="NoOp")
    named(graph_def)["together"].input.append("^before_concat")
    after = named(checked(graph_def, feeds("a", "b"), ["grouped"] * 2))
    assert {"^before_0", "^before_1", "^before_concat"} <= set(after["together"].input)
    assert list(after["after_0"].input) == list(after["after_1"].input) == ["^together"]
