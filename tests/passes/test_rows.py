"""Gathers by dense ids side by side, as layers leave them: which are one op, and their numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.lower_lookups import LowerLookups
from fusion.passes.recognise.spec import DenseIds
from fusion.passes.report.report import FusionReport
from fusion.running.grappler import LOOKUPS
from fusion.runtime.optimizer import prefilter
from tests import layer_graphs as layers
from tests.layer_graphs import Model, Table
from tests.passes import stock_graphs as stock
from tests.passes.planned_graphs import GROUP, ops

v1 = tf.compat.v1
PASS = FuseLookups(preserve=frozenset({"out", "out_1", "initialize"}))
MODELS = {
    "flatten": Model(),
    "flatten as Keras": Model(between="flatten as Keras", wraps=True),
    "one id": Model(shape=(), between=""),
    "one id, Keras": Model(shape=(), between="", wraps=True, ids="int32"),
    "[B, 1, D] along the last axis": Model(between="", joins=(("concat", -1),)),
    "[B, 1, D] along axis 1": Model((Table(),) * 3, between="", joins=(("concat", 1),)),
    "[B, 1, D] twice": Model(
        (Table(), Table(9)), between="", joins=(("concat", 1), ("concat", 2)), ids="int32"
    ),
    "squeezed": Model(between="squeeze"),
    **{
        f"sliced: {name}": Model((Table(), Table(9)), between=name, wraps=name == "first")
        for name in layers.SLICES[1:]
    },
    "with a new axis": Model((Table(), Table(5)), (), between="new axis", joins=(("concat", 1),)),
    "packed": Model((Table(), Table(5)), shape=(), between="", joins=(("pack", 1),)),
    "packed in front of the last": Model(
        (Table(), Table(5)), (3,), between="", joins=(("pack", 2),)
    ),
    "expanded": Model((Table(), Table(5)), shape=(), between="expand", joins=(("concat", 1),)),
    "sequences": Model(shape=(6,), between="", joins=(("concat", 2),), wraps=True),
    "sequences through identities": Model(shape=(6,), between="identity", joins=(("concat", -1),)),
    "sequences of any length": Model(
        shape=(6,), between="", joins=(("concat", 2),), wraps=True, any_length=True
    ),
    "grids of any size, packed": Model(
        (Table(), Table(5)), (3, 2), between="", joins=(("pack", 3),), any_length=True
    ),
    "beside a matrix": Model(beside=True, wraps=True),
    "ids as they are, and a matrix": Model(shape=(), between="", beside=True),
    "constants": Model((Table(kind="constant"), Table(4, 2, "constant"))),
    "variables that are read": Model((Table(kind="read"), Table(4, 2, "read")), wraps=True),
    "reference variables": Model((Table(kind="ref"), Table(4, 2, "ref"))),
    "of float64": Model(dtype="float64"),
    "of float16": Model(dtype="float16", wraps=True),
    "of bfloat16": Model(dtype="bfloat16"),
    "a matrix and a shape": Model(
        (Table(), Table(5)), shape=(), between="", joins=(("concat", 1), ("pack", 1))
    ),
}


def report(graph_def: graph_pb2.GraphDef) -> FusionReport:
    return PASS.explain(graph_def)


def compare(
    before: graph_pb2.GraphDef, after: graph_pb2.GraphDef, *feeds: Any, count: int = 1
) -> None:
    names = ["out:0", "out_1:0"][:count]
    stock_ones = stock.run_each(stock.imported(before), feeds, names, optimize=False)
    for optimize in (False, True):
        fused_ones = stock.run_each(stock.imported(after), feeds, names, optimize=optimize)
        for fused, wanted in zip(fused_ones, stock_ones, strict=True):
            for one, other in zip(fused, wanted, strict=True):
                np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))
                assert one.shape == other.shape


def batches(model: Model) -> list[Any]:
    """Feeds of a few ids, of one and of none."""
    return [layers.feeds(model, batch) for batch in (7, 1, 0)]


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_rows_side_by_side_are_one_op_with_the_same_bits(model: Model) -> None:
    built = layers.build(model)
    for graph_def in (built, stock.optimized(built, ["out", "out_1"][: len(model.joins)])):
        result = PASS.apply(graph_def)
        assert [column.form for column in result.report.columns] == ["grouped"] * len(model.tables)
        left = ops(result.graph_def)
        assert left.count(GROUP) == 1, left
        assert not {"GatherV2", "ResourceGather"} & {*left}, left
        assert left.count("ConcatV2") == model.any_length, left  # of sizes
        assert not PASS.apply(result.graph_def).modified
        assert report(graph_def).columns == result.report.columns
        compare(graph_def, result.graph_def, *batches(model), count=len(model.joins))


@pytest.mark.parametrize("name", ["flatten as Keras", "sequences", "packed", "one id, Keras"])
def test_stock_ops_again(name: str) -> None:
    model = MODELS[name]
    graph_def = layers.build(model)
    fused = PASS.apply(graph_def).graph_def
    lowered = LowerLookups(preserve=PASS.preserve).apply(fused).graph_def
    assert GROUP not in ops(lowered)
    compare(graph_def, lowered, layers.feeds(model), count=len(model.joins))


@pytest.mark.parametrize("kind", ["resource", "read", "constant"])
@pytest.mark.parametrize("ids", ["int32", "int64"])
@pytest.mark.parametrize("bad", [7, -8])
def test_ids_out_of_range_are_stocks_error(kind: str, ids: str, bad: int) -> None:
    model = Model((Table(7, 3, kind), Table(7, 3, kind)), wraps=True, ids=ids)
    graph_def = layers.build(model)
    result = PASS.apply(graph_def)
    assert result.report.fused_count == 2
    feed = layers.feeds(model)
    feed["ids_1:0"][3] = bad
    for one in (graph_def, result.graph_def):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"is not in \[0, 7\)"):
            stock.run(one, feed)


@pytest.mark.parametrize(
    "shapes", [((2, 3), (3, 2)), ((2, 0), (3, 0)), ((0, 3), (0, 4)), ((4, 2), (2, 2))], ids=str
)
def test_sequences_of_other_sizes_are_stocks_error(shapes: Any) -> None:
    """As many rows are no reason to take them for those of the same sequences."""
    model = Model((Table(), Table(9)), (1,), between="", joins=(("concat", 2),), any_length=True)
    graph_def = layers.build(model)
    result = PASS.apply(graph_def)
    assert result.report.fused_count == 2
    feed = {f"ids_{k}:0": np.zeros(shape, np.int64) for k, shape in enumerate(shapes)}
    for one in (graph_def, result.graph_def):
        with pytest.raises(tf.errors.InvalidArgumentError):
            stock.run(one, feed)


def test_the_same_ids_need_no_comparison_of_sizes() -> None:
    with tf.Graph().as_default() as graph:
        model = Model((Table(), Table(9)), (1,), any_length=True)
        ids = layers.ids_placeholder(model, 0)
        tf.concat([layers.rows_of(model, k, ids) for k in range(2)], 2, name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        graph_def = graph.as_graph_def(add_shapes=True)
    result = PASS.apply(graph_def)
    assert result.report.fused_count == 2
    assert "ConcatOffset" not in ops(result.graph_def)
    compare(graph_def, result.graph_def, {"ids_0:0": np.array([[1, 2, 3], [4, 5, 6]])})


def test_sequences_whose_sizes_nothing_tells_stay() -> None:
    with tf.Graph().as_default() as graph:
        model = Model((BIG, BIG), (1,), any_length=True)
        ids = [layers.ids_placeholder(model, 0), v1.placeholder(tf.int64, None)]
        rows = [layers.rows_of(model, k, one) for k, one in enumerate(ids)]
        tf.concat(rows, 2, name="out")
        graph_def = graph.as_graph_def(add_shapes=True)
    known, unknown = report(graph_def).columns
    assert "no other lookup is beside it" in str(known.reason)
    assert "the shape of its ids is not known" in str(unknown.reason)


def test_rows_that_wrap_are_ids_of_the_op() -> None:
    result = PASS.apply(layers.build(Model(between="flatten as Keras", wraps=True)))
    assert not {"Less", "SelectV2", "AddV2", "Shape", "StridedSlice"} & {*ops(result.graph_def)}
    for column in result.report.columns:
        assert column.spec is not None
        assert isinstance(column.spec.ids, DenseIds)
        assert column.spec.ids.wraps
        assert column.spec.is_exact


def wrapped(
    number: int = 20, less: Any = tf.less, zero: int = 0, other: str = "", swap: bool = False
) -> graph_pb2.GraphDef:
    """Two lookups, of which one has ids that nearly count from the end of its table."""
    with tf.Graph().as_default() as graph:
        ids, more = (v1.placeholder(tf.int64, [None], name) for name in ("ids_0", "ids_1"))
        table = v1.get_variable("table", initializer=np.ones([20, 3], np.float32))
        by = more if other == "tested" else ids
        moved = (more if other == "moved" else ids) + number
        kept = more if other == "kept" else ids
        pair = (kept, moved) if swap else (moved, kept)
        found = tf.gather(table, tf.where(less(by, zero), *pair))
        tf.concat([found, tf.gather(table, more)], 1, name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        return graph.as_graph_def()


NEARLY: dict[str, Any] = {
    "another number": {"number": 19},
    "0 moved, too": {"less": tf.less_equal},
    "another limit": {"zero": 1},
    "by other ids": {"other": "tested"},
    "other ids moved": {"other": "moved"},
    "other ids kept": {"other": "kept"},
    "the other way round": {"swap": True},
}


@pytest.mark.parametrize("name", NEARLY)
def test_ids_that_nearly_count_from_the_end_keep_their_ops(name: str) -> None:
    changed = NEARLY[name]
    good, near = wrapped(), wrapped(**changed)
    for graph_def, wraps in ((good, True), (near, False)):
        result = PASS.apply(graph_def)
        assert result.report.fused_count == 2
        specs = [column.spec for column in result.report.columns]
        assert [s.ids.wraps for s in specs if s and isinstance(s.ids, DenseIds)] == [wraps, False]
        assert ("SelectV2" in ops(result.graph_def)) is not wraps
        if "swap" not in changed:  # all of whose ids are out of range
            ids = np.arange(1, 19, 4)
            compare(graph_def, result.graph_def, {"ids_0:0": ids, "ids_1:0": ids + 1})


BIG = Table(3000, 8)


def stays(build: Any, reason: str, fused: int = 0) -> graph_pb2.GraphDef:
    """Two gathers of large tables that stay, of which each is reported with a reason."""
    with tf.Graph().as_default() as graph:
        model = Model((BIG, BIG), shape=(), between="")
        ids = [layers.ids_placeholder(model, k) for k in range(2)]
        rows = [layers.rows_of(model, k, one) for k, one in enumerate(ids)]
        tf.identity(build(rows, ids), name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        graph_def = graph.as_graph_def()
    found = report(graph_def)
    assert found.fused_count == fused, str(found)
    assert len(found.columns) == 2
    reasons = [column.reason for column in found.columns if column.reason is not None]
    assert all(reason in text for text in reasons), reasons
    return graph_def


def test_rows_that_are_not_side_by_side_stay() -> None:
    one_by_one = "its rows are not joined side by side, but one after the other"
    used = "not joined with others"
    stays(lambda rows, ids: tf.concat(rows, 0), one_by_one)
    stays(lambda rows, ids: tf.stack(rows, 0), one_by_one)
    stays(lambda rows, ids: tf.stack(rows, 2), one_by_one)
    stays(lambda rows, ids: tf.concat([tf.reshape(r, [-1, 4]) for r in rows], 1), one_by_one)
    stays(lambda rows, ids: rows[0] + rows[1], used)
    stays(lambda rows, ids: tf.concat([*rows, rows[0] * rows[1]], 1), used)
    stays(lambda rows, ids: tf.concat([tf.transpose(r) for r in rows], 0), used)
    stays(lambda rows, ids: tf.concat([rows[0], rows[1] * 2], 1), "")
    stays(lambda rows, ids: tf.concat([tf.reshape(r, [2, -1]) for r in rows], 1), one_by_one)


def pieces(between: Any, shape: tuple[int, ...] = (2,)) -> graph_pb2.GraphDef:
    """Two lookups by ids [B, *shape], of which something is joined along the last axis."""
    with tf.Graph().as_default() as graph:
        model = Model((BIG, BIG), shape)
        ids = [layers.ids_placeholder(model, k) for k in range(2)]
        tf.concat([between(layers.rows_of(model, k, one)) for k, one in enumerate(ids)], -1)
        return graph.as_graph_def(add_shapes=True)


PIECES: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...]]] = {
    "the first of two": (lambda rows: rows[:, 0], (1,), (2,)),
    "the last of two": (lambda rows: rows[:, -1], (1,), (2,)),
    "all but the first": (lambda rows: rows[:, 1:], (), (2,)),
    "all but the last": (lambda rows: rows[:, :-1], (), (2,)),
    "every second": (lambda rows: rows[:, ::2], (), (2,)),
    "backwards": (lambda rows: rows[:, ::-1], (), (2,)),
    "some columns": (lambda rows: rows[..., :7], (), (1,)),
    "a column": (lambda rows: rows[..., 0], (), (1,)),
    "the first rows": (lambda rows: rows[:3], (), (1,)),
    "the first row": (lambda rows: rows[0], (), (2,)),
    "as few as are known at run time": (
        lambda rows: tf.slice(rows, [0, 0, 0], [tf.shape(rows)[0] - 1, 1, -1]),
        (),
        (1,),
    ),
    "from the second on": (lambda rows: tf.slice(rows, [0, 1, 0], [-1, -1, -1]), (), (2,)),
    "gathered": (lambda rows: tf.gather(rows, 0, axis=1), (1,), (2,)),
    "gathered in another order": (lambda rows: tf.gather(rows, [1, 0], axis=1), (), (2,)),
    "gathered twice": (lambda rows: tf.gather(rows, [0, 0], axis=1), (), (1,)),
    "one of two parts": (lambda rows: tf.split(rows, 2, 1)[0], (), (2,)),
    "one of two unstacked": (lambda rows: tf.unstack(rows, axis=1)[0], (1,), (2,)),
}


@pytest.mark.parametrize("name", PIECES)
def test_slices_that_leave_something_out_stay(name: str) -> None:
    between, good, shape = PIECES[name]
    found = report(pieces(between, shape))
    assert found.fused_count == 0, str(found)
    assert all("not joined with others" in str(column.reason) for column in found.columns)
    if good:
        assert report(pieces(between, good)).fused_count == 2


def test_slices_of_an_axis_whose_size_is_not_known_stay() -> None:
    with tf.Graph().as_default() as graph:
        model = Model((BIG, BIG), (1,), any_length=True)
        ids = [layers.ids_placeholder(model, k) for k in range(2)]
        tf.concat([layers.rows_of(model, k, one)[:, 0] for k, one in enumerate(ids)], 1)
        graph_def = graph.as_graph_def(add_shapes=True)
    assert report(graph_def).fused_count == 0


@pytest.mark.parametrize("between", ["flatten", "first"])
@pytest.mark.parametrize("order", ["waits", "is awaited", "neither"])
def test_what_is_between_rows_and_their_join_and_in_an_order_stays(
    between: str, order: str
) -> None:
    """TensorFlow puts the edges on the constants that say what is reshaped or sliced how."""
    with tf.Graph().as_default() as graph:
        model = Model((BIG, BIG), (1,), between=between)
        ids = [layers.ids_placeholder(model, k) for k in range(2)]
        rows = [layers.rows_of(model, k, one) for k, one in enumerate(ids)]
        check = tf.debugging.assert_less(ids[0], tf.constant(9, tf.int64))
        with tf.control_dependencies([check] if order == "waits" else []):
            parts = [layers.rearranged(model, one) for one in rows]
        with tf.control_dependencies(parts if order == "is awaited" else []):
            tf.concat(parts, 1)
        graph_def = graph.as_graph_def(add_shapes=True)
    assert report(graph_def).fused_count == (2 if order == "neither" else 0)


@pytest.mark.parametrize("name", layers.SLICES[1:])
def test_ids_that_are_sliced_are_those_of_the_op(name: str) -> None:
    """As of rows: `emb(x[:, 0])` of x [B, 1]."""
    with tf.Graph().as_default() as graph:
        ids = [v1.placeholder(tf.int64, [None, 1, 4], f"ids_{k}") for k in range(2)]
        model = Model((Table(), Table(9)))
        parts = [layers.BETWEEN[name](model, one) for one in ids]
        rows = [layers.rows_of(model, k, part) for k, part in enumerate(parts)]
        tf.concat(rows, -1, name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        graph_def = graph.as_graph_def(add_shapes=True)
    result = PASS.apply(graph_def)
    specs = [column.spec for column in result.report.columns]
    assert [spec.ids.values.node for spec in specs if spec is not None] == ["ids_0", "ids_1"]
    feed = {f"ids_{k}:0": np.arange(8).reshape(2, 1, 4) + k for k in range(2)}
    compare(graph_def, result.graph_def, feed)


def test_rows_with_another_tensor_between_them_stay() -> None:
    def build(rows: Any, ids: Any) -> Any:
        unknown = tf.reshape(tf.cast(ids[0], tf.float32), v1.placeholder_with_default([4, 1], None))
        return tf.concat([rows[0], unknown, rows[1]], 1)

    stays(build, "nothing to gain: no other lookup is beside it")


def test_a_gather_of_a_small_constant_that_stays_is_no_lookup_to_speak_of() -> None:
    graph_def = layers.build(Model((Table(kind="constant"),)))
    assert report(graph_def).columns == ()


@pytest.mark.parametrize("kind", ["resource", "read", "ref"])
def test_a_gather_of_a_small_variable_that_stays_is_reported(kind: str) -> None:
    (column,) = report(layers.build(Model((Table(kind=kind),)))).columns
    assert not column.fused
    assert column.reason


def test_a_lone_gather_of_a_large_table_is_reported() -> None:
    graph_def = layers.build(Model((BIG,), beside=True))
    (column,) = report(graph_def).columns
    assert not column.fused
    assert "nothing to gain" in str(column.reason)


def test_a_lone_gather_in_a_graph_that_joins_nothing_is_reported() -> None:
    with tf.Graph().as_default() as graph:
        model = Model((BIG,), (), between="")
        ids = layers.ids_placeholder(model, 0)
        tf.matmul(layers.rows_of(model, 0, ids), tf.ones([8, 2]), name="out")
        graph_def = graph.as_graph_def(add_shapes=True)
    assert not {"AddN", "ConcatV2", "Pack"} & {*ops(graph_def)}
    data = graph_def.SerializeToString()
    assert prefilter.meets(LOOKUPS, data)
    (column,) = report(graph_def).columns
    assert not column.fused


@pytest.mark.parametrize(("length", "is_fused"), [(1024, False), (1025, True)])
def test_a_lone_gather_of_many_rows_is_one_op(length: int, is_fused: bool) -> None:
    """From 32 KiB on it takes longer than an op does."""
    model = Model((BIG,), (length,), between="")
    with tf.Graph().as_default() as graph:
        ids = layers.ids_placeholder(model, 0)
        tf.nn.relu(layers.rows_of(model, 0, ids), name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        graph_def = graph.as_graph_def(add_shapes=True)
    result = PASS.apply(graph_def)
    assert [column.form for column in result.report.columns] == ["single" if is_fused else None]
    compare(graph_def, result.graph_def, layers.feeds(model))


def vectors(count: int, shape: tuple[int, ...], join: tuple[str, int], kind: str) -> Model:
    tables = tuple(Table(20_000 + k, 0, kind) for k in range(count))
    return Model(tables, shape, between="", joins=(join,))


@pytest.mark.parametrize("kind", ["resource", "read", "constant"])
@pytest.mark.parametrize(
    ("shape", "join"), [((), ("pack", 1)), ((1,), ("concat", 1)), ((3,), ("pack", 2))]
)
def test_vectors_are_tables_of_one_column(
    shape: tuple[int, ...], join: tuple[str, int], kind: str
) -> None:
    model = vectors(16, shape, join, kind)
    built = layers.build(model)
    for graph_def in (built, stock.optimized(built)):
        result = PASS.apply(graph_def)
        assert [column.form for column in result.report.columns] == ["grouped"] * 16
        assert not {"GatherV2", "ResourceGather", "Pack"} & {*ops(result.graph_def)}
        assert not PASS.apply(result.graph_def).modified
        lowered = LowerLookups(preserve=PASS.preserve).apply(result.graph_def).graph_def
        for after in (result.graph_def, lowered):
            compare(graph_def, after, *batches(model))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (vectors(15, (), ("pack", 1), "resource"), "nothing to gain: for fewer than 16 vectors"),
        (vectors(16, (3,), ("concat", 1), "resource"), "its rows are not joined side by side"),
    ],
    ids=["few", "one after the other"],
)
def test_vectors_that_stay(model: Model, reason: str) -> None:
    result = PASS.apply(layers.build(model))
    assert not result.modified
    assert {str(column.reason)[: len(reason)] for column in result.report.columns} == {reason}


def test_vectors_that_are_added_stay() -> None:
    with tf.Graph().as_default() as graph:
        model = vectors(16, (), ("pack", 1), "resource")
        ids = [layers.ids_placeholder(model, k) for k in range(16)]
        rows = [layers.rows_of(model, k, one) for k, one in enumerate(ids)]
        tf.add_n(rows, name="out")
        graph_def = graph.as_graph_def()
    reasons = {str(column.reason) for column in report(graph_def).columns}
    assert len(reasons) == 1
    assert "nothing to gain: gathers of numbers that are added" in reasons.pop()


def test_the_bag_of_a_vector_is_reported() -> None:
    with tf.Graph().as_default() as graph:
        model = vectors(1, (5,), ("pack", 1), "resource")
        rows = layers.rows_of(model, 0, layers.ids_placeholder(model, 0))
        tf.reduce_sum(rows, 1, name="out")
        graph_def = graph.as_graph_def(add_shapes=True)
    (column,) = report(graph_def).columns
    assert column.reason == "the table is a vector, whose rows are numbers"


def nested(shape: tuple[int, ...], join: tuple[str, int], width: int) -> graph_pb2.GraphDef:
    """Rows that are joined, flattened to `width` and put beside a matrix."""
    model = Model((Table(20, 4), Table(9, 4), Table(7, 4)), shape, between="", joins=(join,))
    with tf.Graph().as_default() as graph:
        ids = [layers.ids_placeholder(model, k) for k in range(3)]
        rows = [layers.rows_of(model, k, one) for k, one in enumerate(ids)]
        joined = tf.concat(rows, join[1]) if join[0] == "concat" else tf.stack(rows, join[1])
        dense = tf.cast(tf.reshape(ids[0], [tf.shape(ids[0])[0], -1]), tf.float32)
        tf.concat([tf.reshape(joined, [-1, width]), dense], 1, name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        return graph.as_graph_def(add_shapes=True)


@pytest.mark.parametrize(
    ("shape", "join"),
    [((1,), ("concat", 2)), ((1,), ("concat", 1)), ((), ("pack", 1))],
    ids=["columns", "rows", "packed"],
)
def test_what_is_joined_twice_is_one_op(shape: tuple[int, ...], join: tuple[str, int]) -> None:
    graph_def = nested(shape, join, 12)
    result = PASS.apply(graph_def)
    assert [column.op for column in result.report.columns] == ["out"] * 3
    left = ops(result.graph_def)
    assert left.count(GROUP) == 1
    assert "ConcatV2" not in left
    model = Model((Table(20, 4), Table(9, 4), Table(7, 4)), shape)
    compare(graph_def, result.graph_def, *batches(model))


def test_rows_of_several_ids_are_no_row_of_the_outer_join() -> None:
    """The op has a row for each id; what is beside has one for all of an example's."""
    graph_def = nested((5,), ("concat", 2), 60)
    result = PASS.apply(graph_def)
    assert result.report.fused_count == 3
    left = ops(result.graph_def)
    assert left.count(GROUP) == left.count("ConcatV2") == 1
    model = Model((Table(20, 4), Table(9, 4), Table(7, 4)), (5,))
    compare(graph_def, result.graph_def, layers.feeds(model))


def test_a_variable_that_is_read_whole_goes_on_being_read_so() -> None:
    """A sparse access would make each other read of it a copy."""
    model = Model((Table(kind="read"), Table(9, 3, "read")))
    after = ops(PASS.apply(layers.build(model)).graph_def)
    assert "ReadEmbeddingTables" not in after
    gathered = ops(PASS.apply(layers.build(Model((Table(), Table(9, 3))))).graph_def)
    assert "ReadEmbeddingTables" in gathered
