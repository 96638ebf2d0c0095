"""Lookups of one id per row, as `DenseFeatures` builds them of stock columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

import fusion
from fusion.feature_column import DenseFeatures
from fusion.feature_column.single_ids import embed
from fusion.schema.names import OP_NAMES

v1 = tf.compat.v1
fc = tf.feature_column
FEATURES = {
    "ids": np.array([[3], [-1], [0], [5], [2]]),
    "bounded": np.array([[7], [-1], [0], [5], [-9]]),
    "words": np.array([["x"], [""], ["yy"], ["x"], [""]]),
    "known": np.array([["b"], [""], ["a"], ["z"], ["c"]]),
    "number": np.array([[-1.0], [0.5], [7.0], [np.nan], [np.inf]], np.float32),
}


def values(rows: int, dim: int) -> Any:
    """Rows of a table, with numbers that arithmetic would change."""
    table = np.random.default_rng(rows).normal(size=(rows, dim)).astype(np.float32)
    table[0, 0], table[1, 0], table[2, -1] = np.nan, -0.0, np.inf
    return table


def columns(max_norm: float | None = None) -> list[Any]:
    made = {
        "ids": fc.categorical_column_with_identity("ids", 6),
        "bounded": fc.categorical_column_with_identity("bounded", 6, default_value=1),
        "words": fc.categorical_column_with_hash_bucket("words", 5),
        "known": fc.categorical_column_with_vocabulary_list("known", ["a", "b", "c"]),
        "number": fc.bucketized_column(fc.numeric_column("number"), [0.0, 1.0]),
    }
    rows = {"ids": 6, "bounded": 6, "words": 5, "known": 3, "number": 3}
    return [
        fc.embedding_column(
            column,
            3 + index,
            ["mean", "sum", "sqrtn"][index % 3],
            tf.constant_initializer(values(rows[name], 3 + index)),
            max_norm=max_norm,
        )
        for index, (name, column) in enumerate(made.items())
    ]


def layer_function(max_norm: float | None = None, **named: Any) -> Any:
    """A concrete function of a layer of stock columns; the layer is kept as its attribute."""
    layer = DenseFeatures(columns(max_norm))
    specs = {name: tf.TensorSpec([None, 1], array.dtype) for name, array in FEATURES.items()}
    function = tf.function(lambda features: layer(features, **named)).get_concrete_function(specs)
    function.layer = layer
    return function


def features(count: int | None = None) -> dict[str, tf.Tensor]:
    return {name: tf.constant(array[:count]) for name, array in FEATURES.items()}


def ops(graph: graph_pb2.GraphDef) -> Counter[str]:
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    return Counter(node.op for node in nodes)


@pytest.mark.parametrize("named", [{}, {"training": False}])
@pytest.mark.parametrize("count", [None, 1, 0])
def test_all_columns_of_a_layer_become_one_op(named: Any, count: int | None) -> None:
    stock = layer_function(**named)
    fused = fusion.fuse_function(stock)
    found = ops(fused.graph.as_graph_def())
    assert (found["GroupedEmbeddingLookup"], found["Unique"], found["ResourceGather"]) == (1, 0, 0)
    assert ops(stock.graph.as_graph_def())["Unique"] == 5
    expected, result = stock(features(count)), fused(features(count))
    assert expected.numpy().tobytes() == result.numpy().tobytes()
    report = fusion.explain(stock)
    assert report.fused_count == len(report.columns) == 5
    names = [column.name for column in report.columns]
    assert any(name.endswith("/ids_embedding/embedding_weights") for name in names)


def test_rows_are_clipped() -> None:
    stock = layer_function(max_norm=1.5)
    fused = fusion.fuse_function(stock)
    assert ops(fused.graph.as_graph_def())["GroupedEmbeddingLookup"] == 1
    np.testing.assert_allclose(fused(features()), stock(features()), rtol=1e-6)


def test_an_id_out_of_range_is_the_error_that_it_was() -> None:
    stock = layer_function()
    bad = features() | {"ids": tf.constant([[1], [6], [0], [0], [0]], tf.int64)}
    for function in (stock, fusion.fuse_function(stock)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="6"):
            function(bad)


def test_tensorflow_runs_the_op_under_enable() -> None:
    layer = layer_function().layer
    expected = tf.function(layer)(features())
    before = fusion.stats().columns_fused
    with fusion.fused():
        result = tf.function(layer)(features())
    assert fusion.stats().columns_fused == before + 5
    assert expected.numpy().tobytes() == result.numpy().tobytes()


def test_training_stays_as_it_was() -> None:
    layer = layer_function().layer

    def step(inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(inputs, training=True)[2:3] ** 2)
        return loss, [g.values for g in tape.gradient(loss, layer.trainable_variables)]

    concrete = tf.function(step).get_concrete_function(features())
    graph = concrete.graph.as_graph_def()
    result = fusion.fuse_graph(graph)
    assert result.graph_def == graph
    assert not result.report.fused_count


def test_a_variable_that_is_written_sparsely_is_not_read_whole() -> None:
    table = tf.Variable(values(6, 3))

    @tf.function
    def look_up_and_change(ids: tf.Tensor) -> tf.Tensor:
        found = embed(table, tf.reshape(ids, [-1]), None, fused=False)
        with tf.control_dependencies([found]):
            table.scatter_sub(tf.IndexedSlices(tf.ones([1, 3]), tf.constant([1])))
        return found

    spec = tf.TensorSpec([None, 1], tf.int64)
    fused = fusion.fuse_function(look_up_and_change.get_concrete_function(spec))
    assert not OP_NAMES & ops(fused.graph.as_graph_def()).keys()


def near_miss(**changed: Any) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """The lookup, with something about it changed."""
    part: dict[str, Any] = {
        "clipped": lambda ids: tf.maximum(ids, 0),
        "test": lambda ids: ids >= 0,
        "zeros": tf.zeros_like,
        "flat": lambda ids: tf.reshape(ids, [-1]),
        "places": lambda places: places,
        "keys": lambda keys: keys,
        "kept": lambda vectors: vectors,
        **changed,
    }

    def look_up(table: tf.Tensor, matrix: tf.Tensor) -> tf.Tensor:
        ids = part["flat"](matrix)
        keys, places = tf.unique(part["clipped"](ids))
        vectors = tf.gather(tf.gather(table, part["keys"](keys)), part["places"](places))
        return v1.where(part["test"](ids), part["kept"](vectors), part["zeros"](vectors))

    return look_up


NEAR_MISSES: dict[str, dict[str, Any]] = {
    "ids are made 1": {"clipped": lambda ids: tf.maximum(ids, 1)},
    "ids are made no more than 0": {"clipped": lambda ids: tf.minimum(ids, 0)},
    "ids from 1 on are kept": {"test": lambda ids: ids >= 1},
    "ids above 0 are kept": {"test": lambda ids: ids > 0},
    "negative ids are kept": {"test": lambda ids: ids < 0},
    "other ids are tested": {"test": lambda ids: ids + 1 >= 0},
    "ones are selected": {"zeros": tf.ones_like},
    "negative zeros are selected": {"zeros": lambda vectors: -tf.zeros([4, 3])},
    "ids lose digits": {
        "flat": lambda ids: tf.cast(tf.cast(tf.reshape(ids, [-1]), "int32"), "int64")
    },
    "ids are one after the other": {"flat": lambda ids: tf.reshape(ids[::-1], [-1])},
    "rows are in other places": {"places": lambda places: places[::-1]},
    "other rows are gathered": {"keys": lambda keys: (keys + 1) % 6},
    "rows are changed": {"kept": lambda vectors: vectors + 1},
}


def graph_of(look_up: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], width: int = 1) -> Any:
    with tf.Graph().as_default() as graph:
        matrix = v1.placeholder(tf.int64, [None, width], "ids")
        result = look_up(tf.constant(values(6, 3)), matrix)
        tf.identity(result, "result")
    return graph.as_graph_def()


def test_the_lookup_without_a_change_is_fused() -> None:
    result = fusion.fuse_graph(graph_of(near_miss()), outputs=["result"])
    assert ops(result.graph_def)["FusedEmbeddingLookup"] == 1


def run(graph: graph_pb2.GraphDef, second: int = 4) -> bytes:
    with tf.Graph().as_default(), v1.Session() as session:
        tf.import_graph_def(graph, name="")
        result = session.run("result:0", {"ids:0": np.array([[1], [second], [0], [2]])})
    return bytes(result.tobytes())


def test_the_stock_target_needs_no_distinct_ids() -> None:
    graph = graph_of(near_miss())
    lowered = fusion.fuse_graph(graph, outputs=["result"], target="stock").graph_def
    found = ops(lowered)
    assert not OP_NAMES & found.keys()
    assert (found["Unique"], found["GatherV2"]) == (0, 1)
    assert run(lowered, -4) == run(graph, -4)


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_give_what_they_gave(name: str) -> None:
    graph = graph_of(near_miss(**NEAR_MISSES[name]))
    result = fusion.fuse_graph(graph, outputs=["result"])
    if name == "ids are one after the other":
        # What is in front of the ids is not a part of the lookup.
        assert ops(result.graph_def)["FusedEmbeddingLookup"] <= 1
    else:
        assert result.graph_def == graph
    assert run(graph) == run(result.graph_def)


def test_a_table_that_may_be_no_matrix_is_left_alone() -> None:
    with tf.Graph().as_default() as graph:
        table = v1.placeholder(tf.float32, name="table")
        matrix = v1.placeholder(tf.int64, [None, 1], "ids")
        tf.identity(near_miss()(table, matrix), "result")
    graph_def = graph.as_graph_def()
    assert fusion.fuse_graph(graph_def, outputs=["result"]).graph_def == graph_def


def test_several_ids_of_a_row_are_no_single_ones() -> None:
    graph = graph_of(near_miss(), width=2)
    assert fusion.fuse_graph(graph, outputs=["result"]).graph_def == graph


def test_small_integers_are_left_alone() -> None:
    with tf.Graph().as_default() as graph:
        matrix = v1.placeholder(tf.int16, [None, 1], "ids")

        def look_up(table: tf.Tensor, matrix: tf.Tensor) -> tf.Tensor:
            ids = tf.reshape(matrix, [-1])
            keys, index = tf.unique(tf.maximum(ids, tf.constant(0, tf.int16)))
            vectors = tf.gather(v1.raw_ops.GatherV2(params=table, indices=keys, axis=0), index)
            return v1.where(ids >= 0, vectors, tf.zeros_like(vectors))

        tf.identity(look_up(tf.constant(values(6, 3)), matrix), "result")
    graph_def = graph.as_graph_def()
    assert fusion.fuse_graph(graph_def, outputs=["result"]).graph_def == graph_def


@pytest.mark.parametrize("inside", ["Unique", "GatherV2_1", "Maximum"])
def test_what_others_read_stays(inside: str) -> None:
    graph = graph_of(near_miss())
    assert inside in {node.name for node in graph.node}
    result = fusion.fuse_graph(graph, outputs=["result", inside])
    assert result.graph_def == graph
