"""Bags of RaggedTensors in training steps: the forward is one op, gradients need few stock ops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fusion.passes.fuse_lookups import FuseLookups
from tests.passes import stock_graphs as stock

v1 = tf.compat.v1
raw = tf.raw_ops
ROWS, WIDTHS = 40, (4, 3)
FETCHES = ("out", "table0_after", "table1_after")
PASS = FuseLookups(frozenset({*FETCHES, "initialize"}), runs=True)
Sums = Callable[[Any], Any]

OF_STOCK = frozenset({"Where", "UnsortedSegmentSum", "SelectV2", "Max", "Less", "ResourceGather"})
"""What nothing is left of."""


def build(
    reduce: Sums,
    *,
    ids: Any = tf.int64,
    splits: Any = tf.int64,
    dtype: Any = tf.float32,
    batch: int | None = None,
    more: Sums | None = None,
    is_vector: bool = True,
    reader: Sums | None = None,
) -> graph_pb2.GraphDef:
    """A step of SGD of two tables, whose bags are side by side.

    Args:
        reduce: (rows of a RaggedTensor) -> bags.
        ids, splits, dtype: of what.
        batch: how many bags there are, if the graph knows it.
        more: (the ragged ids of the first table) -> what is computed of them besides.
        is_vector: whether the graph knows that ids are a vector.
        reader: (joined bags) -> what the loss is made of, if not of them.
    """
    with tf.Graph().as_default() as graph:
        parts, handles, bags = [], [], []
        for n, width in enumerate(WIDTHS):
            values = v1.placeholder(ids, [None] if is_vector else None, f"ids{n}")
            size = None if batch is None else batch + 1
            ends = v1.placeholder(splits, [size], f"splits{n}")
            handle = raw.VarHandleOp(
                dtype=dtype, shape=[ROWS, width], shared_name=f"table{n}", name=f"table{n}"
            )
            rows = raw.ResourceGather(resource=handle, indices=values, dtype=dtype)
            # As the model knows, and its graph does not say.
            values.set_shape([None])
            bags.append(tf.RaggedTensor.from_row_splits(values, ends, validate=False))
            rows.set_shape([None, width])
            handles.append((handle, rows))
            parts.append(reduce(bags[-1].with_values(rows)))
        joined = tf.concat(parts, 1)
        found = joined if reader is None else reader(joined)
        loss = tf.reduce_sum(tf.square(found) * tf.cast(0.3, dtype))
        gradients = tf.gradients(loss, [rows for _, rows in handles])
        writes = [
            raw.ResourceScatterSub(resource=handle, indices=one.values, updates=gradient)
            for (handle, _), one, gradient in zip(handles, bags, gradients, strict=True)
        ]
        beside = tf.constant(0, dtype) if more is None else tf.cast(more(bags[0]), dtype)
        with tf.control_dependencies(writes):
            tf.identity(joined + beside, name="out")
            for n, (handle, _) in enumerate(handles):
                raw.ReadVariableOp(resource=handle, dtype=dtype, name=f"table{n}_after")
        tf.no_op(name="initialize")
        graph_def = graph.as_graph_def()
    return v1.graph_util.extract_sub_graph(graph_def, [*FETCHES, "initialize"])


def run(graph_def: graph_pb2.GraphDef, lengths: tuple[int, ...]) -> list[Any]:
    """Returns what is fetched in two steps; with a length of 0 a mean has NaN, which spreads."""
    nodes, rng = {node.name: node for node in graph_def.node}, np.random.default_rng(0)
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        tf.import_graph_def(graph_def, name="")
        feed = {}
        for n, width in enumerate(WIDTHS):
            dtype = tf.as_dtype(nodes[f"table{n}"].attr["dtype"].type)
            handle = graph.get_tensor_by_name(f"table{n}:0")
            value = tf.constant(rng.normal(size=[ROWS, width]), dtype)
            session.run(raw.AssignVariableOp(resource=handle, value=value))
            # Repeated ids, whose gradients are applied one after the other.
            feed[f"ids{n}:0"] = rng.integers(0, 7, sum(lengths))
            feed[f"splits{n}:0"] = np.cumsum([0, *lengths])
        return [session.run([f"{name}:0" for name in FETCHES], feed) for _ in range(2)]


BATCHES = ((3, 1, 20, 2), (0, 5, 0), (1,), (0,), ())


def check(
    graph_def: graph_pb2.GraphDef, batches: Any = BATCHES, *, only_optimized: bool = False
) -> Counter[str]:
    """Checks that bags become one op with the same bits, optimized or not; returns its ops."""
    optimized = stock.optimized(graph_def, list(FETCHES))
    for one in (optimized,) if only_optimized else (graph_def, optimized):
        result = PASS.apply(one)
        assert result.report.fused_count == len(WIDTHS), str(result.report)
        assert not PASS.apply(result.graph_def).modified
        for lengths in batches:
            for before, after in zip(
                run(one, lengths), run(result.graph_def, lengths), strict=True
            ):
                for theirs, ours in zip(before, after, strict=True):
                    np.testing.assert_array_equal(theirs, ours)
                    same = np.signbit(theirs) == np.signbit(ours)
                    assert (same | np.isnan(theirs)).all()
    return Counter(node.op for node in result.graph_def.node)


def mean(rows: Any) -> Any:
    return tf.reduce_mean(rows, 1)


def total(rows: Any) -> Any:
    return tf.reduce_sum(rows, 1)


@pytest.mark.parametrize("reduce", [mean, total])
@pytest.mark.parametrize("batch", [None, 3])
def test_sums_and_means_are_one_op_and_their_gradients_few(reduce: Sums, batch: Any) -> None:
    batches = BATCHES if batch is None else [one for one in BATCHES if len(one) == batch]
    # How many there are is a number to TensorFlow's optimizer, and to nobody before it.
    ops = check(build(reduce, batch=batch), batches, only_optimized=batch is not None)
    assert ops["GroupedEmbeddingLookup"] == 1
    assert not OF_STOCK & ops.keys(), ops
    # One for each table: what numbers the entries, and the gather of the gradient of their bags.
    assert ops["RaggedTensorToSparse"] == ops["GatherV2"] == len(WIDTHS)


@pytest.mark.parametrize(
    ("ids", "splits", "dtype"),
    [(tf.int32, tf.int32, tf.float32), (tf.int64, tf.int32, tf.float64)],
    ids=str,
)
def test_dtypes(ids: Any, splits: Any, dtype: Any) -> None:
    ops = check(build(mean, ids=ids, splits=splits, dtype=dtype), [(3, 1, 4)])
    assert not OF_STOCK & ops.keys(), ops


def test_counts_of_half_types_are_stocks() -> None:
    """A sum of ones is rounded there: 2,049 of them are 2,048 in float16."""
    ops = check(build(mean, dtype=tf.float16), [(3, 1), (2100, 1)])
    assert ops["UnsortedSegmentSum"] == len(WIDTHS)


def test_numbers_of_bags_that_others_read_are_the_same() -> None:
    for dtype in (tf.int64, tf.int32):
        graph_def = build(total, splits=dtype, more=lambda ids: ids.value_rowids()[-1])
        assert not OF_STOCK & check(graph_def, [(3, 1, 4)]).keys()


def test_counts_that_others_read_are_the_same() -> None:
    counted: list[Any] = []

    def reduce(rows: Any) -> Any:
        ones = tf.reduce_sum(tf.ones_like(rows), 1)
        counted.append(ones)
        return tf.reduce_sum(rows, 1) / ones

    graph_def = build(reduce, more=lambda ids: tf.reduce_sum(counted[0]))
    assert not OF_STOCK & check(graph_def, [(3, 1, 4)]).keys()


@pytest.mark.parametrize(
    ("op", "other"),
    [("GreaterEqual", "Greater"), ("LogicalAnd", "LogicalOr"), ("Maximum", "Minimum")],
)
def test_what_is_nearly_the_gradient_of_a_sum_is_not_a_gather(op: str, other: str) -> None:
    graph_def = build(total)
    changed = [one for one in graph_def.node if one.op == op and one.name.startswith("gradients")]
    assert changed
    for node in changed:
        node.op = other
    assert check(graph_def, [(3, 1, 4)])["SelectV2"] == len(WIDTHS)


def test_malformed_splits_are_errors_as_stocks() -> None:
    graph_def = build(mean)
    fused = PASS.apply(graph_def).graph_def
    for one in (graph_def, fused):
        with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
            tf.import_graph_def(one, name="")
            for n, width in enumerate(WIDTHS):
                value = tf.ones([ROWS, width])
                handle = graph.get_tensor_by_name(f"table{n}:0")
                session.run(raw.AssignVariableOp(resource=handle, value=value))
            feed = {f"ids{n}:0": [1, 2, 3] for n in range(2)}
            feed |= {f"splits{n}:0": [0, 2] for n in range(2)}
            with pytest.raises(tf.errors.InvalidArgumentError):
                session.run("out:0", feed)


def test_a_graph_that_is_not_about_to_run_keeps_its_gradients() -> None:
    graph_def = build(mean)
    result = FuseLookups(PASS.preserve).apply(graph_def)
    assert result.report.fused_count == 0


def test_maxima_stay_whose_gradient_reads_rows() -> None:
    result = PASS.apply(build(lambda rows: tf.reduce_max(rows, 1)))
    assert result.report.fused_count == 0
    assert not result.modified


def product(joined: Any) -> Any:
    kernel = tf.reshape(tf.range(7.0), [7, 1])
    return tf.matmul(tf.identity(joined), kernel)


def test_ids_of_any_rank_are_vectors_where_a_product_reads_their_bags() -> None:
    """As those of a RaggedTensor from an iterator are; of others stock fails at the product."""
    graph_def = build(mean, is_vector=False, reader=product)
    ids = next(node for node in graph_def.node if node.name == "ids0")
    assert ids.attr["shape"].shape.unknown_rank
    assert not OF_STOCK & check(graph_def, [(3, 1, 4), (2,)]).keys()
    fused = PASS.apply(graph_def).graph_def
    for one in (graph_def, fused):
        with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
            tf.import_graph_def(one, name="")
            for n, width in enumerate(WIDTHS):
                handle = graph.get_tensor_by_name(f"table{n}:0")
                session.run(raw.AssignVariableOp(resource=handle, value=tf.ones([ROWS, width])))
            feed = {f"ids{n}:0": np.array([[1, 2], [3, 4]]) for n in range(2)}
            feed |= {f"splits{n}:0": np.array([0, 2]) for n in range(2)}
            with pytest.raises(tf.errors.InvalidArgumentError):
                session.run("out:0", feed)


def added(joined: Any) -> Any:
    return tf.nn.relu(joined)


def product_that_waits(joined: Any) -> Any:
    with tf.control_dependencies([tf.debugging.assert_positive(tf.shape(joined))]):
        return product(joined)


@pytest.mark.parametrize("reader", [added, product_that_waits])
def test_ids_of_any_rank_stay_elsewhere(reader: Sums) -> None:
    result = PASS.apply(build(mean, is_vector=False, reader=reader))
    assert {column.reason for column in result.report.columns} == {
        "the ids are not known to be a vector"
    }
