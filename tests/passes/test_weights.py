"""Weights of plain lookups, however they are made: fused where they are a vector for sure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.graph.inferred_shapes import symbolic_shapes
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.targets import PASSES, Target
from fusion.running import grappler
from tests.passes.rewritten_graphs import refused

v1 = tf.compat.v1
ROWS, DIM = 20, 4
IDF = np.linspace(0.5, 2, ROWS, dtype=np.float32)

Weights = Callable[[tf.SparseTensor, tf.Tensor, tf.Tensor], tf.Tensor]

#: Of the ids, of numbers and of texts of them.
WAYS: dict[str, Weights] = {
    "given": lambda ids, w, text: w,
    "cast": lambda ids, w, text: tf.cast(tf.cast(w, tf.float64), tf.float32),
    "sigmoid": lambda ids, w, text: tf.sigmoid(w),
    "exp": lambda ids, w, text: tf.exp(-w),
    "abs": lambda ids, w, text: tf.abs(w) * 2,
    "sqrt": lambda ids, w, text: tf.sqrt(w),
    "pow": lambda ids, w, text: w**0.75,
    "clip": lambda ids, w, text: tf.clip_by_value(w, 0.0, 2.0),
    "minimum": lambda ids, w, text: tf.minimum(w, 1.5),
    "where": lambda ids, w, text: tf.where(w > 1, w, 0.5),
    "without NaN": lambda ids, w, text: tf.where(tf.math.is_nan(w), tf.ones_like(w), w),
    "part of the largest": lambda ids, w, text: w / tf.reduce_max(w),
    "1 / position": lambda ids, w, text: 1 / (1 + tf.cast(ids.indices[:, 1], tf.float32)),
    "ones_like": lambda ids, w, text: tf.ones_like(ids.values, tf.float32),
    "ones": lambda ids, w, text: tf.ones([tf.shape(ids.indices)[0]]),
    "fill": lambda ids, w, text: tf.fill(tf.shape(w), 2.0),
    "to_number": lambda ids, w, text: tf.strings.to_number(text),
    "split": lambda ids, w, text: tf.strings.to_number(
        tf.strings.split(tf.strings.reduce_join(text, separator=" ")[None]).values
    ),
    "gather": lambda ids, w, text: w * tf.gather(tf.constant(IDF), ids.values),
    "reshape": lambda ids, w, text: tf.reshape(tf.expand_dims(w, 1) * 2, [-1]),
    "concat and slice": lambda ids, w, text: tf.concat([w, w], 0)[: tf.shape(w)[0]],
    "boolean_mask": lambda ids, w, text: tf.boolean_mask(w, w > 0),
    "random": lambda ids, w, text: tf.random.stateless_uniform(tf.shape(w), [1, 2], 0.5),
    "cumsum": lambda ids, w, text: tf.cumsum(w),
    "range": lambda ids, w, text: tf.cast(tf.range(tf.size(w)), tf.float32) + 1,
    "counts": lambda ids, w, text: tf.cast(
        tf.gather(tf.unique_with_counts(ids.values)[2], tf.unique(ids.values)[1]), tf.float32
    ),
    "length": lambda ids, w, text: tf.cast(tf.strings.length(text), tf.float32),
    "map_fn": lambda ids, w, text: tf.map_fn(lambda one: one * 2, w),
}
SIGNATURE = [
    tf.SparseTensorSpec([None, None], tf.int64),
    tf.TensorSpec([None], tf.float32),
    tf.TensorSpec([None], tf.string),
]


def batch() -> tuple[Any, ...]:
    rows = np.array([0, 0, 1, 3, 3, 3], np.int64)
    columns = np.array([0, 1, 0, 0, 1, 2], np.int64)
    ids = tf.constant([1, 5, 1, 7, 2, 19], tf.int64)
    numbers = np.array([1, 0.5, 2.25, 0.125, 3, 1.5], np.float32)
    texts = tf.constant([str(number) for number in numbers])
    indices = np.stack([rows, columns], 1)
    return tf.SparseTensor(indices, ids, [4, 3]), tf.constant(numbers), texts


class Model(tf.Module):
    def __init__(self, way: str, combiner: str) -> None:
        super().__init__()
        rng = np.random.default_rng(1)
        self.table = tf.Variable(rng.standard_normal((ROWS, DIM)).astype(np.float32))
        self.way, self.combiner = WAYS[way], combiner

    def lookup(self, ids: tf.SparseTensor, w: tf.Tensor, text: tf.Tensor) -> tf.Tensor:
        weights = ids.with_values(self.way(ids, w, text))
        return tf.nn.embedding_lookup_sparse(self.table, ids, weights, combiner=self.combiner)

    def gradient(self, *arguments: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.lookup(*arguments) ** 2)
        gradient = tape.gradient(loss, self.table)
        return gradient.indices, gradient.values


def run(method: Any) -> Any:
    """The results of a method in a function of its own."""
    return tf.function(method, SIGNATURE, autograph=False)(*batch())


def fused(method: Any) -> tuple[Any, list[str | None]]:
    """The same under fusion, and the forms of the lookups."""
    grappler._state.last_report = None  # which is not told twice of equal lookups
    with fusion.fused():
        result = run(method)
    report = fusion.stats().last_report
    assert report is not None
    return result, [column.form for column in report.columns]


@pytest.mark.parametrize("way", WAYS)
def test_weights_made_in_everyday_ways_are_fused(way: str) -> None:
    model = Model(way, "mean")
    result, forms = fused(model.lookup)
    assert forms == ["single"]
    np.testing.assert_allclose(result, run(model.lookup), rtol=1e-6, atol=1e-6)
    (ids, rows), forms = fused(model.gradient)
    assert forms == ["forward" if way == "map_fn" else "trained"]
    of_ids, of_rows = run(model.gradient)
    np.testing.assert_array_equal(np.sort(ids), np.sort(of_ids))
    np.testing.assert_allclose(
        rows.numpy()[np.argsort(ids)], of_rows.numpy()[np.argsort(of_ids)], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_in_files_too(combiner: str, tmp_path: Path) -> None:
    models = {way: Model(way, combiner) for way in WAYS}
    module = tf.Module()
    module.models = models

    def serve(indices: Any, values: Any, shape: Any, w: Any, text: Any) -> dict[str, tf.Tensor]:
        ids = tf.SparseTensor(indices, values, shape)
        return {way.replace(" ", "_"): one.lookup(ids, w, text) for way, one in models.items()}

    ids, w, text = batch()
    arguments = {"indices": ids.indices, "values": ids.values, "shape": ids.dense_shape}
    arguments |= {"w": w, "text": text}
    specs = [
        tf.TensorSpec([None] * one.shape.rank, one.dtype, name) for name, one in arguments.items()
    ]
    specs[0], specs[2] = tf.TensorSpec([None, 2], tf.int64), tf.TensorSpec([2], tf.int64)
    module.serve = tf.function(serve, input_signature=specs, autograph=False)
    tf.saved_model.save(module, str(tmp_path / "stock"), {"serving_default": module.serve})
    report = fusion.fuse_saved_model(str(tmp_path / "stock"), str(tmp_path / "fused"), verify=False)
    assert [column.reason for column in report.columns if not column.fused] == []
    assert len(report.columns) == len(WAYS)
    results = []
    for name in ("stock", "fused"):
        loaded = tf.saved_model.load(str(tmp_path / name))
        results.append(loaded.signatures["serving_default"](**arguments))
    for way, stock in results[0].items():
        np.testing.assert_allclose(results[1][way], stock, rtol=1e-6, atol=1e-6, err_msg=way)


CONSTANTS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "ones_like": tf.ones_like,
    "fill": lambda w: tf.fill(tf.shape(w), 2.0),
    "numbers": lambda w: tf.constant([1, 0.5, 2, -1, 3, 0], w.dtype),
}


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("way", CONSTANTS)
def test_constants_which_grappler_folds_into_a_column_are_fused(way: str, combiner: str) -> None:
    model = Model("given", combiner)
    model.way = lambda ids, w, text: CONSTANTS[way](w)
    ids, w, text = batch()

    def results(method: Any) -> Any:
        return tf.function(method, autograph=False)(ids, w, text)

    grappler._state.last_report = None
    with fusion.fused():
        forward, gradient = results(model.lookup), results(model.gradient)
    report = fusion.stats().last_report
    assert report is not None
    assert [column.form for column in report.columns] == ["trained"]
    np.testing.assert_allclose(forward, results(model.lookup), rtol=1e-6, atol=1e-6)
    for own, stock in zip(gradient, results(model.gradient), strict=True):
        np.testing.assert_allclose(own, stock, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", Target)
@pytest.mark.parametrize("shape", [(6, 1), (5, 1), (1, 1), (1, DIM), (6, DIM)])
@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_a_constant_column(target: Target, shape: tuple[int, int], combiner: str) -> None:
    """Is a column of weights, and a constant of another width is none."""
    factors = np.random.default_rng(5).random(shape, np.float32)
    with tf.Graph().as_default() as graph:
        indices = v1.placeholder(tf.int64, [None, 2], "indices")
        values = v1.placeholder(tf.int64, [None], "values")
        v1.placeholder(tf.float32, [None], "weights")
        keys, index = tf.unique(values)
        table = v1.get_variable("table", initializer=TABLE, use_resource=True)
        product = tf.gather(tf.gather(table, keys), index) * factors
        out = tf.math.segment_sum(product, indices[:, 0])
        if combiner == "mean":
            out /= tf.math.segment_sum(tf.constant(factors), indices[:, 0])
        tf.identity(out, name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
    graph_def = graph.as_graph_def()
    fuse = PASSES[target](preserve=frozenset({"out", "initialize"}))
    result = fuse.apply(graph_def)
    assert {column.fused for column in result.report.columns} == {shape[1] == 1}
    try:
        stock = outcome(graph_def, np.ones(6, np.float32))
    except tf.errors.InvalidArgumentError:
        with pytest.raises(tf.errors.InvalidArgumentError):
            outcome(result.graph_def, np.ones(6, np.float32))
    else:
        fused = outcome(result.graph_def, np.ones(6, np.float32))
        np.testing.assert_allclose(fused, stock, rtol=1e-6, atol=1e-6)


# Left to stock


def graph_of(table: Any, weights_shape: Any, combiner: str = "sum") -> Any:
    with tf.Graph().as_default() as graph:
        indices = v1.placeholder(tf.int64, [None, 2], "indices")
        values = v1.placeholder(tf.int64, [None], "values")
        ids = tf.SparseTensor(indices, values, [4, 3])
        weights = v1.placeholder(tf.float32, weights_shape, "weights")
        source = v1.get_variable("table", initializer=table, use_resource=True)
        out = tf.nn.embedding_lookup_sparse(source, ids, ids.with_values(weights * 2), combiner)
        tf.identity(out, name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
    return graph.as_graph_def()


def outcome(graph_def: Any, weights: Any) -> Any:
    ids = batch()[0]
    feeds = {"indices:0": ids.indices.numpy(), "values:0": ids.values.numpy(), "weights:0": weights}
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        tf.import_graph_def(graph_def, name="")
        session.run("initialize")
        return session.run("out:0", feeds)


TABLE = np.random.default_rng(3).standard_normal((ROWS, DIM)).astype(np.float32)


@pytest.mark.parametrize("shape", [(), (1,), (6,), (6, 1), (6, 6)])
def test_weights_of_unknown_rank_keep_stocks_numbers(shape: tuple[int, ...]) -> None:
    """Of some ranks that are none of a SparseTensor's stock has numbers, by broadcasting."""
    graph_def = graph_of(TABLE, None)
    assert refused(graph_def).reason == "the weights are not known to be a vector"
    weights = np.random.default_rng(4).random(shape, np.float32)
    stock = outcome(graph_def, weights)
    assert stock.shape == ((4, 6, DIM) if len(shape) == 2 else (4, DIM))
    rewritten = FuseLookups(preserve=frozenset({"out", "initialize"})).apply(graph_def).graph_def
    np.testing.assert_array_equal(outcome(rewritten, weights), stock)


@pytest.mark.parametrize("shape", [[None], [None, None]])
def test_a_vector_alone_is_fused(shape: Any) -> None:
    with tf.Graph().as_default() as graph:
        weights = v1.placeholder(tf.float32, shape, "weights")
        indices = v1.placeholder(tf.int64, [None, 2], "indices")
        values = v1.placeholder(tf.int64, [None], "values")
        keys, index = tf.unique(values)
        rows = tf.gather(v1.get_variable("table", initializer=TABLE), keys)
        column = tf.reshape(tf.exp(weights), tf.concat([tf.shape(tf.exp(weights)), [1]], 0))
        product = tf.gather(rows, index) * column
        tf.identity(tf.math.segment_sum(product, indices[:, 0]), name="out")
        tf.group(v1.global_variables_initializer(), name="initialize")
    graph_def = graph.as_graph_def()
    if len(shape) == 2:
        assert refused(graph_def).reason == "the weights have rank 2, not 1"
    else:
        (column,) = FuseLookups(preserve=frozenset({"out"})).apply(graph_def).report.columns
        assert column.fused, column.reason


def test_a_column_of_another_length_is_left_to_stock() -> None:
    """Which raises, unless it happens to be the weights' own."""
    with tf.Graph().as_default() as graph:
        weights = v1.placeholder(tf.float32, [None], "weights")
        indices = v1.placeholder(tf.int64, [None, 2], "indices")
        values = v1.placeholder(tf.int64, [None], "values")
        keys, index = tf.unique(values)
        rows = tf.gather(v1.get_variable("table", initializer=TABLE), keys)
        column = tf.reshape(tf.exp(weights[:2]), [tf.shape(weights)[0], 1])
        product = tf.gather(rows, index) * column
        tf.identity(tf.math.segment_sum(product, indices[:, 0]), name="out")
    reason = refused(graph.as_graph_def()).reason
    assert reason == "the weights are not a column of the entries' weights"


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("rank", [1, 3])
def test_a_table_of_another_rank_is_what_is_wrong(rank: int, combiner: str) -> None:
    table = TABLE[:, 0] if rank == 1 else TABLE[:, None]
    graph_def = graph_of(table, [None], combiner)
    assert refused(graph_def).reason == f"the table has rank {rank}, not 2"
    assert outcome(graph_def, np.ones(6, np.float32)).shape == (4, *table.shape[1:])


# Shapes


def test_shapes_are_symbols_of_what_they_are_made_of() -> None:
    with tf.Graph().as_default() as graph:
        one, two = (v1.placeholder(tf.float32, [None], name) for name in ("one", "two"))
        tf.exp(one, name="exp")
        tf.fill(tf.shape(one), 2.0, name="filled")
        tf.identity(tf.exp(two), name="other")
        tf.concat([tf.shape(one), [1]], 0, name="target")
        tf.exp(v1.placeholder(tf.float32, None), name="unknown")
        tf.exp(v1.placeholder(tf.float32, [3, None]), name="matrix")
    view = GraphView.of_graph(graph.as_graph_def())
    names = ("exp", "filled", "other", "unknown")
    exp, filled, other, unknown, target = symbolic_shapes(
        view, tuple(map(Tensor, names)), (Tensor("target"),)
    )
    assert exp is not None
    assert exp == filled
    assert other is not None
    assert other != exp
    assert unknown is None
    assert target == (*exp, 1)
    assert view.shape(Tensor("matrix")) == (3, None)
    assert view.shape(Tensor("unknown")) is None


def test_a_graph_that_makes_no_sense_has_no_shapes() -> None:
    with tf.Graph().as_default() as graph:
        tf.exp(v1.placeholder(tf.float32, [None]), name="exp")
    graph_def = graph.as_graph_def()
    graph_def.node[-1].input[0] = "missing"
    assert GraphView.of_graph(graph_def).shape(Tensor("exp")) is None
    assert GraphView.of_graph(graph_def).shape(Tensor("nowhere")) is None
