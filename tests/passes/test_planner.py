"""Which lookups are grouped; and their numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.lower_lookups import LowerLookups
from tests.passes import stock_graphs as stock
from tests.passes.planned_graphs import (
    GROUP,
    PASS,
    POST,
    SINGLE,
    checked,
    column,
    dense,
    feeds,
    graph_of,
    named,
    ops,
    table,
)
from tests.passes.rewritten_graphs import plainly_named
from tests.passes.stock_graphs import Case

v1 = tf.compat.v1


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
        return rows + tf.reduce_sum(shared)

    after = checked(graph_of(build), feeds(*"abc"), ["single", "grouped", "grouped"])
    group = named(after)["together"]
    assert [value.decode() for value in group.attr["forms"].list.s] == [
        "copy", "indices", "indices", "copy",
    ]  # fmt: skip
    assert group.input[0] == group.input[3]


def test_a_concat_within_a_concat_is_part_of_the_op() -> None:
    def build() -> Any:
        number = v1.placeholder(tf.float32, [None, 2], "number")
        first = tf.concat([column("a", table("a_table", 3)), column("b")], 1, name="first")
        second = tf.concat([tf.identity(first), column("c")], -1, name="second")
        third = tf.concat([column("d"), column("e", table("e_table", 2))], 1, name="third")
        return tf.concat([number, second, number, tf.identity(third)], 1, name="together")

    feed = feeds(*"abcde") | {"number:0": np.arange(14, dtype=np.float32).reshape(7, 2)}
    after = checked(graph_of(build), feed, ["grouped"] * 5)
    assert ops(after).count(GROUP) == 1
    assert "ConcatV2" not in ops(after)
    group = named(after)["together"]
    dims = [2, 3, stock.DIM, stock.DIM, 2, stock.DIM, 2]
    assert list(group.attr["dims"].list.i) == dims
    assert not {"first", "second", "third"} & named(after).keys()


@pytest.mark.parametrize("why", ["fetched", "read twice", "no matrix", "other axis"])
def test_a_concat_that_others_need_stays_by_itself(why: str) -> None:
    def build() -> Any:
        inner = tf.concat([column("a"), column("b")], 1, name="inner")
        unknown = v1.placeholder(tf.float32, None, "unknown")
        other = unknown if why == "no matrix" else unknown[:, :2] * 2
        if why == "other axis":
            return tf.concat([inner, inner], 0, name="together")
        outer = tf.concat([inner, other], 1, name="together")
        return outer * tf.reduce_mean(inner) if why == "read twice" else outer

    preserve = {"out", "initialize", *(["inner"] if why == "fetched" else [])}
    graph_def = graph_of(build)
    if why == "no matrix":
        for node in graph_def.node:
            node.attr.pop("_output_shapes", None)
    feed = feeds("a", "b") | {"unknown:0": np.ones((7, 2), np.float32)}
    rewrite = FuseLookups(preserve=frozenset(preserve))
    after = named(checked(graph_def, feed, ["grouped"] * 2, rewrite))
    assert after["inner"].op == GROUP
    assert after["together"].op == "ConcatV2"


def test_a_concat_that_would_wait_for_itself_stays_by_itself() -> None:
    """What stands beside it is computed from it, through a node that hides it."""

    def build() -> Any:
        inner = tf.concat([column("a"), column("b")], 1, name="inner")
        with tf.control_dependencies([inner]):
            other = v1.placeholder(tf.float32, [None, 2], "number") * 2
        return tf.concat([inner, other], 1, name="together")

    feed = feeds("a", "b") | {"number:0": np.ones((7, 2), np.float32)}
    after = named(checked(graph_of(build), feed, ["grouped"] * 2))
    assert after["inner"].op == GROUP
    assert after["together"].op == "ConcatV2"


def test_a_lookup_is_not_grouped_with_what_waits_for_its_copy() -> None:
    def build() -> Any:
        copy = tf.identity(column("a"))
        with tf.control_dependencies([copy]):
            other = v1.placeholder(tf.float32, [None, 2], "number") * 2
        return tf.concat([copy, other, column("b")], 1, name="together")

    feed = feeds("a", "b") | {"number:0": np.ones((7, 2), np.float32)}
    after = named(checked(graph_of(build), feed, ["single"] * 2))
    assert after["together"].op == "ConcatV2"


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
    (read,) = (node for node in after.node if node.op == "ReadEmbeddingTables")
    assert read.attr["num_tables"].i == 1
    assert not {"DisableCopyOnRead", "ResourceGather"}.intersection(ops(after))


@pytest.mark.parametrize("device", ["", "/device:CPU:0"])
def test_tables_of_a_group_that_are_surely_on_one_device_are_read_by_one_op(device: str) -> None:
    def build() -> Any:
        with tf.device(device):
            return tf.concat([column(name) for name in "abc"], 1)

    after = checked(graph_of(build), feeds(*"abc"), ["grouped"] * 3)
    counts = [node.attr["num_tables"].i for node in after.node if node.op == "ReadEmbeddingTables"]
    assert counts == ([3] if device else [1, 1, 1])


@pytest.mark.parametrize(("rows", "count"), [(2048, 0), (2049, 1)])
def test_stock_reads_keep_only_large_tables_from_being_copied(rows: int, count: int) -> None:
    def build() -> Any:
        large = v1.get_variable("large", [rows, 8], use_resource=True)
        return column("a", large)

    after = LowerLookups().apply(graph_of(build)).graph_def
    assert ops(after).count("DisableCopyOnRead") == count
    reads = (node for node in plainly_named(after).node if node.op == "ReadVariableOp")
    (read,) = (node for node in reads if node.name.endswith("/table"))
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
