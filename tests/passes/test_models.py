"""Whole models as users write them: feature columns in a v1 graph, and a tf_keras SavedModel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import fusion  # noqa: F401  (registers the ops)
from fusion.passes.fuse_lookups import FuseLookups
from tests.passes import stock_graphs as stock

v1 = tf.compat.v1
fc = tf.feature_column
WORDS = ["ape", "bee", "cat", "dog"]
DENSE = {
    "identity": np.array([[3, -1], [19, 4], [-1, -1]], np.int64),
    "hash": np.array([["x", "yy"], ["", "x"], ["", ""]]),
    "words": np.array([["bee", "gnu"], ["ape", ""], ["", ""]]),
    "bucket": np.array([[0.5], [7.0], [-3.0]], np.float32),
}


def embedding(categorical: Any, combiner: str) -> Any:
    def values(shape: Any, dtype: Any = tf.float32, **_: Any) -> Any:
        return tf.constant(np.random.default_rng(len(combiner)).normal(size=shape), dtype)

    return fc.embedding_column(categorical, stock.DIM, combiner, initializer=values)


def columns(default: int | None = None) -> list[Any]:
    return [
        embedding(fc.categorical_column_with_identity("identity", 20, default), "sum"),
        embedding(fc.categorical_column_with_hash_bucket("hash", 30), "mean"),
        embedding(
            fc.categorical_column_with_vocabulary_list("words", WORDS, num_oov_buckets=2), "sqrtn"
        ),
        embedding(fc.bucketized_column(fc.numeric_column("bucket"), [0.0, 5.0]), "mean"),
    ]


@pytest.mark.parity("compat.v1 input_layer", "pass")
@pytest.mark.parity("several columns at once", "pass")
@pytest.mark.parity("column: identity", "pass")
@pytest.mark.parity("column: identity with default", "pass")
@pytest.mark.parity("column: hash of words", "pass")
@pytest.mark.parity("column: vocabulary list with buckets", "pass")
@pytest.mark.parity("column: bucketized", "pass")
@pytest.mark.parity("columns of partitioned tables", "pass")
@pytest.mark.parametrize("default", [None, 2])
@pytest.mark.parametrize("partitions", [None, 3])
def test_input_layer(default: int | None, partitions: int | None) -> None:
    chosen = columns(default)
    with tf.Graph().as_default() as graph:
        inputs = {key: v1.placeholder(v.dtype, [None, v.shape[1]], key) for key, v in DENSE.items()}
        splits = v1.fixed_size_partitioner(partitions) if partitions else None
        with v1.variable_scope("model", partitioner=splits):
            result = v1.feature_column.input_layer(inputs, chosen)
        tf.identity(result, name="out")
        tf.group(v1.global_variables_initializer(), v1.tables_initializer(), name="initialize")
        graph_def = graph.as_graph_def(add_shapes=True)
    result = FuseLookups(preserve=frozenset({"out", "initialize"})).apply(graph_def)
    # Stock TensorFlow divides by zero where a table has fewer rows than shards: no such table here.
    assert {column.reason for column in result.report.columns} == {None}
    assert len(result.report.columns) == 4
    feed = {f"{key}:0": value for key, value in DENSE.items()}
    np.testing.assert_array_equal(stock.run(result.graph_def, feed), stock.run(graph_def, feed))


@pytest.mark.parity("tf_keras models saved and loaded", "pass")
@pytest.mark.parity("tf_keras DenseFeatures in a functional model", "pass")
def test_a_tf_keras_saved_model(tmp_path: Path) -> None:
    keras = pytest.importorskip("tf_keras")
    kinds = {"identity": "int64", "hash": "string", "words": "string"}
    inputs = {k: keras.Input((None,), sparse=True, dtype=t, name=k) for k, t in kinds.items()}
    model = keras.Model(inputs, keras.layers.DenseFeatures(columns()[:3])(inputs))
    dense = {key: (DENSE[key] + 1) % 20 if key == "identity" else DENSE[key] for key in kinds}
    features = {k: tf.sparse.from_dense(tf.constant(dense[k], t)) for k, t in kinds.items()}
    expected = model(features).numpy()
    model.save(tmp_path / "model", save_format="tf")
    path = tmp_path / "model" / "saved_model.pb"
    saved = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    result = FuseLookups().apply(saved.meta_graphs[0].graph_def)
    assert result.report.fused_count == len(result.report.columns) > 0
    assert {column.function for column in result.report.columns} != {""}
    saved.meta_graphs[0].graph_def.CopyFrom(result.graph_def)
    path.write_bytes(saved.SerializeToString())
    loaded = keras.models.load_model(tmp_path / "model")
    np.testing.assert_array_equal(loaded(features), expected)
    signature = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    assert "GroupedEmbeddingLookup" in str(signature.graph.as_graph_def())
