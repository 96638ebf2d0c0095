"""Bags of padded and ragged ids, as layers leave them: which are fused, and their bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fusion.passes.choose import MIN_OPS
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.lower_lookups import LowerLookups
from fusion.schema.devices import Devices
from tests import layer_graphs as layers
from tests.layer_graphs import BAGS, Model, Table
from tests.passes import stock_graphs as stock
from tests.passes.planned_graphs import GROUP, SINGLE, ops

v1 = tf.compat.v1
STOCK = {"GatherV2", "ResourceGather", "Sum", "Mean", "Max"}
STOCK |= {"UnsortedSegmentSum", "UnsortedSegmentMax"}
PASS = FuseLookups(preserve=frozenset({"out", "out_1", "initialize"}))
TABLES = (Table(20, 8), Table(13, 3), Table(7, 16))
MODELS = {
    **{name: Model(TABLES, (17,), between="", bag=name, joins=(("concat", -1),)) for name in BAGS},
    "Keras": Model(TABLES, (20,), between="", bag="selected mean", wraps=True),
    "Keras, ragged and weighted": Model(TABLES, between="", bag="ragged weighted mean", wraps=True),
    "Keras, ragged": Model(TABLES, between="", bag="ragged mean", wraps=True),
    "of int32": Model(TABLES, (5,), between="", bag="product mean", ids="int32"),
    "of float64": Model(TABLES, (17,), between="", bag="product", dtype="float64"),
    "ragged, of float64": Model(TABLES, between="", bag="ragged mean", dtype="float64"),
    **{
        f"{name}, of {dtype}": Model(
            TABLES, (17,), between="", bag=name, dtype=dtype, joins=(("concat", -1),)
        )
        for name in BAGS
        for dtype in ("float16", "bfloat16")
        if name != "ragged weighted mean"
        and (name, dtype) != ("ones mean", "bfloat16")
        # Of how many ids they are is not known: a quotient of float16 may be rounded otherwise.
        and not name.startswith("padded")
    },
    "side by side on a new axis": Model(
        (Table(9, 8), Table(20, 8)), (6,), between="expand", bag="mean", joins=(("concat", 1),)
    ),
    "of several features": Model(TABLES, (4, 6), between="", bag="sum", joins=(("concat", 2),)),
    "beside a matrix": Model(TABLES, (6,), between="", bag="mean", beside=True),
    "of constants": Model(
        tuple(replace(table, kind="constant") for table in TABLES), (6,), between="", bag="mean"
    ),
}


def compare(before: graph_pb2.GraphDef, after: graph_pb2.GraphDef, *feeds: Any) -> None:
    stock_ones = stock.run_each(stock.imported(before), feeds, optimize=False)
    for optimize in (False, True):
        fused_ones = stock.run_each(stock.imported(after), feeds, optimize=optimize)
        for (got,), (wanted,) in zip(fused_ones, stock_ones, strict=True):
            assert got.shape == wanted.shape
            np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
            numbers = ~np.isnan(wanted)
            assert got[numbers].tobytes() == wanted[numbers].tobytes()


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_bags_side_by_side_are_one_op_with_the_same_bits(model: Model) -> None:
    built = layers.build(model)
    for graph_def in (built, stock.optimized(built)):
        result = PASS.apply(graph_def)
        assert [column.form for column in result.report.columns] == ["grouped"] * len(model.tables)
        left = ops(result.graph_def)
        assert left.count(GROUP) == 1
        # As it is built, a graph has shapes of ragged rows that nobody reads.
        assert graph_def is built or not STOCK & {*left}
        assert not PASS.apply(result.graph_def).modified
        compare(graph_def, result.graph_def, *(layers.feeds(model, batch) for batch in (7, 1, 0)))


@pytest.mark.parametrize(
    "name", ["selected mean", "kept sum", "lengths", "ragged mean", "kept max", "ragged max"]
)
def test_a_bag_alone_is_one_op(name: str) -> None:
    model = Model((Table(20, 8),), (17,), between="", bag=name, joins=(("concat", 1),))
    with tf.Graph().as_default() as graph:
        ids = layers.ids_placeholder(model, 0)
        rows = layers.rows_of(model, 0, ids)
        tf.add(BAGS[name](model, 0, rows, ids), 1.0, name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        graph_def = graph.as_graph_def()
    result = PASS.apply(graph_def)
    assert [column.form for column in result.report.columns] == ["single"]
    assert ops(result.graph_def).count(SINGLE) == 1
    compare(graph_def, result.graph_def, layers.feeds(model))


@pytest.mark.parametrize("name", MODELS)
def test_stock_ops_again(name: str) -> None:
    model = MODELS[name]
    graph_def = layers.build(model)
    fused = PASS.apply(graph_def).graph_def
    lowered = LowerLookups(preserve=PASS.preserve).apply(fused).graph_def
    assert not {GROUP, SINGLE} & {*ops(lowered)}
    compare(graph_def, lowered, layers.feeds(model))


def built(make: Any, tables: tuple[Table, ...] = (Table(3000, 8),)) -> graph_pb2.GraphDef:
    """A graph whose `out` is made of the rows [B, 17, 8] of padded ids, and the ids."""
    model = Model(tables, (17,))
    with tf.Graph().as_default() as graph:
        ids = layers.ids_placeholder(model, 0)
        tf.identity(make(layers.rows_of(model, 0, ids), ids), name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        return graph.as_graph_def()


def mask_of(ids: Any, other: int = 0) -> Any:
    return tf.expand_dims(tf.not_equal(ids, other), -1)


def numbers(ids: Any) -> Any:
    return tf.cast(mask_of(ids), tf.float32)


STAY: dict[str, tuple[Any, str]] = {
    "over the batch": (lambda rows, ids: tf.reduce_sum(rows, 0), "not added up over the last axis"),
    "over the row": (lambda rows, ids: tf.reduce_sum(rows, 2), "not added up over the last axis"),
    "over two axes": (lambda rows, ids: tf.reduce_sum(rows, [1, 2]), "not added up over the last"),
    "a mask of something else": (
        lambda rows, ids: tf.reduce_sum(tf.where(rows[:, :, :1] > 0, rows, tf.zeros([])), 1),
        "the mask is none of ids or lengths",
    ),
    "a mask of comparison": (
        lambda rows, ids: tf.reduce_sum(
            tf.where(tf.expand_dims(tf.greater(ids, 3), -1), rows, tf.zeros([])), 1
        ),
        "the mask is none of ids or lengths",
    ),
    "not zeros": (
        lambda rows, ids: tf.reduce_sum(tf.where(mask_of(ids), rows, tf.ones([])), 1),
        "not replaced by zeros",
    ),
    "negative zeros": (
        lambda rows, ids: tf.reduce_sum(tf.where(mask_of(ids), rows, tf.constant(-0.0)), 1),
        "not replaced by zeros",
    ),
    "the other way round": (
        lambda rows, ids: tf.reduce_sum(tf.where(mask_of(ids), tf.zeros([]), rows), 1),
        "not joined with others",
    ),
    "a mean of a product": (
        lambda rows, ids: tf.reduce_mean(rows * numbers(ids), 1),
        "divided by the number of all",
    ),
    "the largest over the batch": (
        lambda rows, ids: tf.reduce_max(rows, 0),
        "not added up over the last axis",
    ),
    "less weights": (
        lambda rows, ids: tf.reduce_max(
            rows - (1 - v1.placeholder(tf.float32, [None, 17, 1], "weights")) * 1e9, 1
        ),
        "not a number where a mask is 0",
    ),
    "less a mask of comparison": (
        lambda rows, ids: tf.reduce_max(
            rows - (1 - tf.cast(tf.expand_dims(ids > 3, -1), tf.float32)) * 1e9, 1
        ),
        "not a number where a mask is 0",
    ),
    "less more than a mask": (
        lambda rows, ids: tf.reduce_max(rows - (2 - numbers(ids)) * 1e9, 1),
        "not a number where a mask is 0",
    ),
    "less a mask": (
        lambda rows, ids: tf.reduce_max(rows - (1 - numbers(ids)), 1),
        "not a number where a mask is 0",
    ),
    "less numbers of the rows": (
        lambda rows, ids: tf.reduce_max(rows - (1 - numbers(ids)) * tf.range(8.0), 1),
        "not a number where a mask is 0",
    ),
    "less the mask itself": (
        lambda rows, ids: tf.reduce_max(rows - numbers(ids) * 1e9, 1),
        "not a number where a mask is 0",
    ),
    "a mask less rows": (
        lambda rows, ids: tf.reduce_max((1 - numbers(ids)) * 1e9 - rows, 1),
        "not joined with others",
    ),
    "weights for each element": (
        lambda rows, ids: tf.reduce_sum(
            rows * v1.placeholder(tf.float32, [None, 17, 8], "weights"), 1
        ),
        "not known to be one for each id",
    ),
    "weights of unknown number": (
        lambda rows, ids: tf.reduce_sum(
            rows * v1.placeholder(tf.float32, [None, None, 1], "weights"), 1
        ),
        "not known to be as many as its ids",
    ),
}


@pytest.mark.parametrize("name", STAY)
def test_what_is_no_bag_stays_and_is_reported(name: str) -> None:
    make, reason = STAY[name]
    graph_def = built(make)
    result = PASS.apply(graph_def)
    assert result.report.fused_count == 0
    assert not result.modified
    (column,) = result.report.columns
    assert reason in str(column.reason)


COMPUTED: dict[str, tuple[Any, str]] = {
    "added": (lambda rows, x: tf.add(rows, x, name="last"), "AddV2"),
    "a layer": (lambda rows, x: tf.nn.relu(tf.matmul(rows, tf.ones([8, 4])), name="last"), "Relu"),
    "joined": (lambda rows, x: tf.concat([rows, x], 1, name="last"), "ConcatV2"),
    "read twice": (
        lambda rows, x: tf.multiply(tf.nn.relu(rows), tf.tanh(rows), name="last"),
        "Mul",
    ),
}


def segments(make: Any, reduced: Any) -> graph_pb2.GraphDef:
    """A graph whose `out` reduces what is made of rows [nnz, 8] and of others."""
    model = Model((Table(3000, 8),), shape=())
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 8], "x")
        rows = layers.rows_of(model, 0, layers.ids_placeholder(model, 0))
        numbers = v1.placeholder(tf.int64, [None], "segments")
        tf.identity(reduced(make(rows, x), numbers), name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        return graph.as_graph_def(add_shapes=True)


@pytest.mark.parametrize("name", COMPUTED)
def test_what_computes_the_terms_of_a_segment_sum_is_a_reason(name: str) -> None:
    make, op = COMPUTED[name]
    of_sum, of_gather = PASS.explain(segments(make, tf.math.segment_sum)).columns
    reason = f"SegmentSum reduces what last ({op}) computes from looked-up rows, and not the rows"
    assert (of_sum.reason, of_sum.node) == (reason, "last")
    assert of_gather.reason != reason


@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.parametrize("reduction", ["SegmentMean", "UnsortedSegmentSum"])
def test_what_computes_the_terms_of_other_segment_reductions_is_why_the_gather_stays(
    reduction: str, name: str
) -> None:
    reduced = {
        "SegmentMean": tf.math.segment_mean,
        "UnsortedSegmentSum": lambda rows, numbers: tf.math.unsorted_segment_sum(rows, numbers, 5),
    }[reduction]
    make, op = COMPUTED[name]
    (column,) = PASS.explain(segments(make, reduced)).columns
    if name == "read twice":
        # A gradient would read them, too.
        assert "not joined with others" in str(column.reason)
        return
    reason = f"{reduction} reduces what last ({op}) computes from looked-up rows, and not the rows"
    assert (column.reason, column.node) == (reason, "last")


def test_sums_of_gradients_are_no_reason() -> None:
    def make(rows: Any, x: Any) -> Any:
        (gradient,) = tf.gradients(tf.nn.relu(tf.square(rows)), rows)
        return gradient

    graph_def = segments(make, lambda rows, numbers: tf.math.unsorted_segment_sum(rows, numbers, 5))
    assert "UnsortedSegmentSum" in ops(graph_def)
    (column,) = PASS.explain(graph_def).columns
    assert "not joined with others" in str(column.reason)


def test_a_segment_sum_of_something_else_reduces_no_rows() -> None:
    graph_def = segments(lambda rows, x: tf.fill(tf.shape(rows), 2.0) * x, tf.math.segment_sum)
    assert PASS.explain(graph_def).columns[0].reason == (
        "the segment sum does not reduce looked-up rows"
    )


def test_weighted_sums_of_ragged_half_types_stay() -> None:
    for dtype in ("float16", "bfloat16"):
        model = Model((Table(3000, 8),) * 2, between="", bag="ragged weighted mean", dtype=dtype)
        for column in PASS.explain(layers.build(model)).columns:
            assert column.reason == "weighted sums of half types are rounded in another way"


def test_the_largest_of_weighted_ragged_rows_stay() -> None:
    model = Model((Table(3000, 8),), between="", bag="ragged max")
    with tf.Graph().as_default() as graph:
        ids = layers.ids_placeholder(model, 0)
        weights = v1.placeholder(tf.float32, [None], "weights")
        rows = layers.rows_of(model, 0, ids) * ids.with_values(tf.expand_dims(weights, -1))
        tf.identity(tf.reduce_max(rows, 1), name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
    (column,) = PASS.explain(graph.as_graph_def()).columns
    assert column.reason == "it is the maximum of weighted rows"


@pytest.mark.parametrize(
    ("dtype", "length", "bag", "combiner"),
    [
        ("float16", 2048, "selected mean", "mean"),
        ("float16", 2049, "selected mean", "sum"),
        ("float16", 2049, "mean", "mean"),
        ("float16", 2049, "max", "max"),
        ("bfloat16", 2049, "selected mean", "mean"),
        ("bfloat16", 3, "ones mean", "sum"),
        ("float16", 3, "ones mean", "mean"),
    ],
)
def test_quotients_of_half_types_are_fused_if_they_are_rounded_alike(
    dtype: str, length: int, bag: str, combiner: str
) -> None:
    model = Model((Table(20, 8),), (length,), between="identity", bag=bag, dtype=dtype)
    with tf.Graph().as_default() as graph:
        layers.outputs(replace(model, joins=(("pack", 1),)), [layers.ids_placeholder(model, 0)])
        tf.group(v1.global_variables_initializer(), name="initialize")
        graph_def = graph.as_graph_def()
    result = PASS.apply(graph_def)
    (column,) = result.report.columns
    assert column.fused
    assert column.spec is not None
    assert column.spec.combiner == combiner
    compare(graph_def, result.graph_def, layers.feeds(model, 3))


@pytest.mark.parametrize("bag", ["max", "ragged max", "mean"])
def test_bags_on_a_gpu_stay(bag: str) -> None:
    model = Model((Table(3000, 8),) * 2, (17,), between="", bag=bag)
    graph_def = layers.build(model)
    for node in graph_def.node:
        node.device = "/device:GPU:0"
    everywhere = FuseLookups(PASS.preserve, devices=Devices(frozenset({"CPU", "GPU"})))
    assert not everywhere.apply(graph_def).modified


def test_a_maximum_that_is_trained_stays() -> None:
    model = Model((Table(3000, 8),), (17,))
    with tf.Graph().as_default() as graph:
        ids = layers.ids_placeholder(model, 0)
        rows = layers.rows_of(model, 0, ids)
        loss = tf.reduce_sum(tf.reduce_max(rows, 1) ** 2)
        variables = v1.trainable_variables()
        tf.convert_to_tensor(tf.gradients(loss, variables)[0], name="out")
        tf.identity(loss, name="out_1")
        tf.group(v1.global_variables_initializer(), name="initialize")
    assert not PASS.apply(graph.as_graph_def()).modified


DIVISORS: dict[str, Any] = {
    "another mask": lambda ids: tf.reduce_sum(tf.cast(mask_of(ids, 1), tf.float32), 1),
    "another axis": lambda ids: tf.reduce_sum(numbers(ids), 0),
    "a maximum": lambda ids: tf.maximum(tf.reduce_sum(numbers(ids), 1), 1.0),
    "too much": lambda ids: tf.reduce_sum(numbers(ids), 1) + tf.reduce_sum(numbers(ids), 1),
    "a root of no squares": lambda ids: tf.sqrt(tf.reduce_sum(numbers(ids), 1)),
    "of another shape": lambda ids: tf.reduce_sum(numbers(ids), 1, keepdims=True),
}


@pytest.mark.parametrize("name", DIVISORS)
def test_a_sum_that_something_else_divides_is_fused_alone(name: str) -> None:
    def make(rows: Any, ids: Any) -> Any:
        total = tf.reduce_sum(rows * numbers(ids), 1)
        divisor = DIVISORS[name](ids)
        return total / divisor

    graph_def = built(make)
    result = PASS.apply(graph_def)
    (column,) = result.report.columns
    assert column.fused
    assert column.spec is not None
    assert column.spec.combiner == "sum"
    ids = np.random.default_rng(0).integers(0, 9, (17 if name == "another axis" else 7, 17))
    for one, other in zip(
        stock.run(graph_def, {"ids_0:0": ids}, optimize=False),
        stock.run(result.graph_def, {"ids_0:0": ids}, optimize=False),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


def floated(source: str, of: str, other: float = 0.0) -> graph_pb2.GraphDef:
    """Ids that are floats on their way, with a mask of these; `of` is what the mask compares."""
    with tf.Graph().as_default() as graph:
        given = v1.placeholder(source, [None, 17], "given")
        numbers = tf.cast(given, tf.float32) if source != "float32" else given
        ids = tf.cast(numbers, tf.int32)
        model = Model((Table(3000, 8),), (17,), wraps=True)
        rows = layers.rows_of(model, 0, ids)
        compared = {"floats": numbers, "others": numbers + 0.5}[of]
        mask = tf.expand_dims(tf.not_equal(compared, other), -1)
        total = tf.reduce_sum(tf.where(mask, rows, tf.zeros([])), 1)
        tf.identity(total / tf.reduce_sum(tf.cast(mask, tf.float32), 1), name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
        return graph.as_graph_def()


@pytest.mark.parametrize("source", ["int32", "int64"])
def test_a_mask_of_ids_as_floats_is_one_of_ids(source: str) -> None:
    graph_def = floated(source, "floats")
    (column,) = PASS.explain(graph_def).columns
    assert column.form == "single"
    ids = np.random.default_rng(0).integers(-3000, 3000, (7, 17))
    ids[:, 5:] = 0
    ids[3] = 0
    after = PASS.apply(graph_def).graph_def
    compare(graph_def, after, {"given:0": ids})


@pytest.mark.parametrize(
    "how", [("float32", "floats"), ("int64", "others"), ("int64", "floats", 1.0)]
)
def test_a_mask_of_other_floats_is_none_of_ids(how: Any) -> None:
    # A half is no 0, and its id is 0.
    (column,) = PASS.explain(floated(*how)).columns
    assert column.reason == "the mask is none of ids or lengths"


def test_a_gather_that_others_read_stays_beside_its_bag() -> None:
    def make(rows: Any, ids: Any) -> Any:
        return tf.reduce_sum(rows, 1) + rows[:, 0]

    (column,) = PASS.explain(built(make)).columns
    assert not column.fused
    assert "also used by" in str(column.reason)


@pytest.mark.parametrize("name", [name for name in MODELS if not name.startswith("padded")])
def test_stock_ops_of_layers_stay_as_they_are(name: str) -> None:
    graph_def = layers.build(MODELS[name])
    result = LowerLookups(preserve=PASS.preserve).apply(graph_def)
    assert not result.modified
    assert {column.reason for column in result.report.columns} == {MIN_OPS}
