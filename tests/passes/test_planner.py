"""Which lookups become one op, which are grouped, and which stay in parts; and their numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.python.ops import control_flow_util

from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.report import FusionResult
from tests.passes import stock_graphs as stock
from tests.passes.stock_graphs import Case

v1 = tf.compat.v1
GROUP, SINGLE = "GroupedEmbeddingLookup", "FusedEmbeddingLookup"
POST = "FusedEmbeddingSparsePostLookUpV2"
PASS = FuseLookups(preserve=frozenset({"out", "initialize"}))


def graph_of(build: Callable[[], Any]) -> graph_pb2.GraphDef:
    """A graph whose `out` is what `build` returns."""
    with tf.Graph().as_default() as graph:
        tf.identity(build(), name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        return graph.as_graph_def(add_shapes=True)


def table(name: str, dim: int = stock.DIM, dtype: Any = tf.float32) -> Any:
    seed = sum(name.encode())
    return v1.get_variable(
        name, initializer=stock.table_values(dtype, seed, dim)[1:], use_resource=True
    )


def column(name: str, source: Any = None, case: Case | None = None, **kwargs: Any) -> tf.Tensor:
    """A lookup of ids of their own, `name/...`, in a table of their own."""
    case = case or Case()
    source = table(f"{name}_table", dtype=case.dtype) if source is None else source
    with tf.name_scope(name):
        return stock.lookup(source, stock.sparse_placeholder(case), case, **kwargs)


def feeds(*names: str, case: Case | None = None, batch: int = 7) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for seed, name in enumerate(names):
        fed = stock.feeds(case or Case(), seed + 1, batch, f"{name}/ids")
        fed[f"{name}/ids/values:0"] = fed[f"{name}/ids/values:0"] % (stock.ROWS + 1) - 2
        found |= fed
    return found


def forms(result: FusionResult) -> list[str | None]:
    return [one.form for one in result.report.columns]


def named(graph_def: graph_pb2.GraphDef) -> dict[str, node_def_pb2.NodeDef]:
    functions = (function.node_def for function in graph_def.library.function)
    return {node.name: node for body in (graph_def.node, *functions) for node in body}


def ops(graph_def: graph_pb2.GraphDef) -> list[str]:
    return [node.op for node in named(graph_def).values()]


def checked(
    graph_def: graph_pb2.GraphDef,
    feed: dict[str, Any],
    expected: list[str | None],
    rewrite: FuseLookups = PASS,
    exact: bool = True,
) -> graph_pb2.GraphDef:
    """The rewritten graph, after a look at its forms and numbers, with TensorFlow's passes too."""
    compare = (
        np.testing.assert_array_equal if exact else partial(np.testing.assert_allclose, rtol=1e-5)
    )
    result = rewrite.apply(graph_def)
    assert forms(result) == expected, str(result.report)
    assert rewrite.explain(graph_def).columns == result.report.columns
    assert not rewrite.apply(result.graph_def).modified
    # TensorFlow's own optimizer lets stock lookups of resources read before they should.
    (stocks,) = stock.run(graph_def, feed, optimize=False)
    assert np.isfinite(stocks).all()
    assert stocks.any()
    for optimize in (False, True):
        compare(stock.run(result.graph_def, feed, optimize=optimize)[0], stocks)
    return result.graph_def


# Groups


@pytest.mark.parametrize("order", ["abc", "cab"])
@pytest.mark.parametrize("axis", [1, -1])
def test_lookups_side_by_side_become_one_op_under_the_name_of_the_concat(
    order: str, axis: int
) -> None:
    def build() -> Any:
        dims = {"a": 3, "b": 2, "c": 8}
        found = {name: column(name, table(f"{name}_table", dim)) for name, dim in dims.items()}
        return tf.concat([found[name] for name in order], axis, name="together")

    graph_def = graph_of(build)
    after = checked(graph_def, feeds(*"abc"), ["grouped"] * 3)
    group = named(after)["together"]
    assert group.op == GROUP
    assert [text.partition("/")[0] for text in group.input[3:6]] == list(order)
    assert list(group.attr["dims"].list.i) == [{"a": 3, "b": 2, "c": 8}[name] for name in order]
    assert group.attr["_output_shapes"] == named(graph_def)["together"].attr["_output_shapes"]
    assert not {SINGLE, POST, "ConcatV2"} & set(ops(after))


def test_a_concat_that_is_fetched_keeps_its_name() -> None:
    graph_def = graph_of(lambda: tf.concat([column("a"), column("b")], 1, name="together"))
    rewrite = FuseLookups(preserve=frozenset({"out", "initialize", "together"}))
    after = checked(graph_def, feeds("a", "b"), ["grouped"] * 2, rewrite)
    assert named(after)["together"].op == GROUP


def test_lookups_of_every_kind_form_one_group() -> None:
    cases = {
        "plain": Case(combiner="sum"),
        "default": Case(default_id=3, combiner="sqrtn"),
        "narrow": Case(ids=tf.int32),
        "ragged": Case(ragged=True),
        "weighted": Case(weighted=True),
        "clipped": Case(max_norm=0.5),
    }

    def build() -> Any:
        return tf.concat([column(name, case=case) for name, case in cases.items()], 1, "together")

    feed: dict[str, Any] = {}
    for name, case in cases.items():
        feed |= feeds(name, case=case)
    feed["weighted/weights:0"] = np.nan_to_num(feed["weighted/weights:0"], nan=0.75)
    after = checked(graph_of(build), feed, ["grouped"] * 6, exact=False)
    group = named(after)["together"]
    assert [value.decode() for value in group.attr["forms"].list.s] == [
        "indices", "indices", "indices", "row_splits", "indices", "indices",
    ]  # fmt: skip
    assert list(group.attr["max_norms"].list.f) == [-1] * 5 + [0.5]
    assert list(group.attr["Tids"].list.type) == [9, 9, 3, 9, 9, 9]


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64])
def test_groups_of_other_dtypes(dtype: Any) -> None:
    case = Case(dtype=dtype)
    graph_def = graph_of(
        lambda: tf.cast(tf.concat([column("a", case=case), column("b", case=case)], 1), tf.float64)
    )
    checked(graph_def, feeds("a", "b", case=case), ["grouped"] * 2)


def test_other_matrices_are_copied() -> None:
    def build() -> Any:
        number = v1.placeholder(tf.float32, [None, 2], "number")
        return tf.concat([number, column("a"), number * 2, column("b")], 1, name="together")

    feed = feeds("a", "b") | {"number:0": np.arange(14, dtype=np.float32).reshape(7, 2)}
    group = named(checked(graph_of(build), feed, ["grouped"] * 2))["together"]
    assert [value.decode() for value in group.attr["forms"].list.s] == [
        "copy", "indices", "copy", "indices",
    ]  # fmt: skip
    assert list(group.attr["dims"].list.i) == [2, stock.DIM, 2, stock.DIM]


def test_beside_a_tensor_that_may_be_no_matrix_there_are_groups_of_neighbours() -> None:
    def build() -> Any:
        unknown = v1.placeholder(tf.float32, None, "unknown")
        parts = [column("a"), column("b"), unknown, column("c"), unknown, column("d"), column("e")]
        return tf.concat(parts, 1, name="together")

    feed = feeds(*"abcde") | {"unknown:0": np.ones((7, 2), np.float32)}
    graph_def = graph_of(build)
    for node in graph_def.node:
        node.attr.pop("_output_shapes", None)
    expected: list[str | None] = ["grouped", "grouped", "single", "grouped", "grouped"]
    after = named(checked(graph_def, feed, expected))
    assert list(after["together"].input) == [
        "together/grouped",
        "unknown",
        after["together"].input[2],
        "unknown",
        "together/grouped_1",
        "together/axis",
    ]
    assert after["together"].attr["N"].i == 5
    assert after[after["together"].input[2]].op == SINGLE


def test_a_result_that_others_need_too_is_computed_once_and_copied() -> None:
    def build() -> Any:
        shared = column("a")
        rows = tf.concat([shared, column("b"), column("c"), shared], 1, name="together")
        return tf.concat([rows, shared * 2], 0 if shared.shape[1] == 0 else 1)

    after = checked(graph_of(build), feeds(*"abc"), ["single", "grouped", "grouped"])
    group = named(after)["together"]
    assert [value.decode() for value in group.attr["forms"].list.s] == [
        "copy", "indices", "indices", "copy",
    ]  # fmt: skip
    assert group.input[0] == group.input[3]


def test_a_result_that_is_fetched_is_copied() -> None:
    def build() -> Any:
        fetched = tf.identity(column("a"), name="fetched")
        return tf.concat([fetched, column("b"), column("c")], 1, name="together")

    rewrite = FuseLookups(preserve=frozenset({"out", "initialize", "fetched"}))
    checked(graph_of(build), feeds(*"abc"), ["single", "grouped", "grouped"], rewrite)
    everywhere = checked(graph_of(build), feeds(*"abc"), ["grouped"] * 3)
    assert "fetched" not in named(everywhere)


@pytest.mark.parametrize("axis", [0, 1])
def test_one_lookup_or_another_axis_makes_no_group(axis: int) -> None:
    def build() -> Any:
        number = v1.placeholder(tf.float32, [None, stock.DIM], "number")
        other = column("b") if axis == 0 else number
        return tf.concat([column("a"), other, number], axis)

    feed = feeds("a", "b") | {"number:0": np.ones((7, stock.DIM), np.float32)}
    after = checked(graph_of(build), feed, ["single"] * (2 - axis))
    assert "ConcatV2" in ops(after)


def test_columns_that_share_a_table_share_its_read() -> None:
    def build() -> Any:
        shared = table("shared")
        return tf.concat([column(name, shared) for name in "abc"], 1)

    after = checked(graph_of(build), feeds(*"abc"), ["grouped"] * 3)
    reads = {
        node.name for node in after.node if node.op == "ReadVariableOp" if "/table" in node.name
    }
    assert len(reads) == 1


@pytest.mark.parametrize(("rows", "count"), [(2048, 0), (2049, 1)])
def test_only_large_tables_are_kept_from_being_copied(rows: int, count: int) -> None:
    def build() -> Any:
        large = v1.get_variable("large", [rows, 8], use_resource=True)
        return column("a", large)

    after = PASS.apply(graph_of(build)).graph_def
    assert ops(after).count("DisableCopyOnRead") == count
    (read,) = (n for n in after.node if n.op == "ReadVariableOp" and n.name.endswith("/table"))
    assert len([text for text in read.input if text[0] == "^"]) == count


def test_a_split_lookup_is_copied_into_the_group_of_others() -> None:
    def build() -> Any:
        case = Case(shards=2)
        parts = column("p", stock.make_table(case, "parts"), case)
        safe = tf.where(tf.math.is_nan(parts), tf.zeros_like(parts), parts)
        return tf.concat([column("a"), safe, column("b")], 1, name="together")

    after = checked(graph_of(build), feeds(*"pab"), ["split", "grouped", "grouped"])
    assert named(after)["together"].op == GROUP


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("fed", [1, 2])
def test_a_group_that_feeds_others(fed: int, in_function: bool) -> None:
    """The ids of the others are buckets of the group's result, which an op of theirs reads."""

    def build() -> Any:
        tables = [table("a_table", 2), table("b_table", 2), table("c"), table("d")]
        ids = [stock.sparse_placeholder(Case(), f"{name}/ids") for name in "ab"]

        def body(*ids: Any) -> Any:
            pairs = zip(tables, ids, strict=False)
            first = tf.concat([stock.lookup(one, i, Case()) for one, i in pairs], 1)
            buckets = tf.raw_ops.Bucketize(input=first, boundaries=[-0.5, 0.0, 0.5])
            return tf.concat([first, *(dense(buckets, one) for one in tables[2 : 2 + fed])], 1)

        return (tf.function(body, autograph=False) if in_function else body)(*ids)

    others: list[str | None] = ["single"] if fed == 1 else ["grouped"] * 2
    checked(graph_of(build), feeds(*"ab"), ["grouped", "grouped", *others])


def test_lookups_in_functions_are_grouped() -> None:
    def build() -> Any:
        tables = [table(name) for name in "ab"]
        ids = [stock.sparse_placeholder(Case(), f"{name}/ids") for name in "ab"]

        def body(*ids: Any) -> Any:
            found = [stock.lookup(one, i, Case()) for one, i in zip(tables, ids, strict=True)]
            return tf.concat(found, 1) * 2.0

        return tf.function(body, autograph=False)(*ids)

    graph_def = graph_of(build)
    after = checked(graph_def, feeds("a", "b"), ["grouped"] * 2)
    (before,), (function,) = graph_def.library.function, after.library.function
    (group,) = (node for node in function.node_def if node.op == GROUP)
    # Both gathers were control outputs, which must be distinct nodes.
    assert len(before.control_ret) == 2
    assert list(function.control_ret.values()) == [group.name]
    assert list(function.control_ret) == list(function.signature.control_output)


def test_the_report_says_what_was_grouped() -> None:
    graph_def = graph_of(lambda: tf.concat([column("a"), column("b")], 1, name="together"))
    report = PASS.apply(graph_def).report
    assert str(report).splitlines()[-1] == "  2 columns in one op  together"
    one, _ = report.columns
    assert one.op == "together"
    assert "  form     grouped in together" in str(one).splitlines()
    assert one.to_dict()["form"] == "grouped"


# Dense and plain ids


def dense(ids: tf.Tensor, source: Any) -> tf.Tensor:
    """All elements of a matrix of one column, as bucketized columns make them."""
    batch = tf.shape(ids)[0]
    rows = tf.reshape(tf.tile(tf.expand_dims(tf.range(batch), 1), [1, ids.shape[1]]), [-1])
    columns = tf.tile(tf.range(ids.shape[1]), [batch])
    values = tf.reshape(ids, [-1]) + 4 * columns
    indices = tf.cast(tf.transpose(tf.stack([rows, columns])), tf.int64)
    shape = tf.cast(tf.stack([batch, ids.shape[1]]), tf.int64)
    return stock.lookup(source, tf.SparseTensor(indices, values, shape), Case(ids=tf.int32))


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
        places = tf.where(tf.not_equal(matrix, -1))
        values = tf.cast(tf.gather_nd(matrix, places), lookup)
        ids = tf.SparseTensor(places, values, tf.shape(matrix, tf.int64))
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
    graph_def = stock.build(Case())
    for node in graph_def.node:
        is_table = node.op in ("VarHandleOp", "ResourceGather")
        node.device = of_table if is_table else of_lookup
    everywhere = FuseLookups(PASS.preserve, device_types=frozenset({"CPU", "GPU"}))
    result = everywhere.apply(graph_def)
    assert forms(result) == [form]
    wanted = "ReadVariableOp" if form == "single" else "ResourceGather"
    reads = [n for n in result.graph_def.node if n.op == wanted and n.name.startswith("embedding")]
    assert [node.device for node in reads] == [of_table]
    assert [list(node.attr["_class"].list.s) for node in reads] == [[b"loc:@table"]]


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


def test_where_loops_hide_circles_lookups_with_an_order_stay_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control_flow_util, "ENABLE_CONTROL_FLOW_V2", False)
    checked(ordered(loops=True), feeds(*"abc"), ["split"] * 3)


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
    anchors = [one.anchor for one in PASS.explain(graph_def).columns]
    for place, anchor in enumerate(anchors):
        graph_def.node.add(name=f"before_{place}", op="NoOp")
        graph_def.node.add(name=f"after_{place}", op="NoOp", input=[f"^{anchor}"])
        named(graph_def)[anchor].input.append(f"^before_{place}")
    graph_def.node.add(name="before_concat", op="NoOp")
    named(graph_def)["together"].input.append("^before_concat")
    after = named(checked(graph_def, feeds("a", "b"), ["grouped"] * 2))
    assert {"^before_0", "^before_1", "^before_concat"} <= set(after["together"].input)
    assert list(after["after_0"].input) == list(after["after_1"].input) == ["^together"]
