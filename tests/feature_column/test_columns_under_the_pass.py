"""Columns with do_fusion in stock hosts, side by side in one op when graphs are fused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import fusion
from fusion.lookup import VERSIONS
from tests.feature_column.hosts import as_tensors, placeholders
from tests.feature_column.kinds import SOME, Batch, build
from tests.reference import assert_same_bits

v1 = tf.compat.v1
GROUP = "GroupedEmbeddingLookup"


def executed(session: Any, fetch: Any, feed: dict[Any, Any]) -> tuple[Any, list[str]]:
    """The value, and the ops of the graph that TensorFlow made of it."""
    options = v1.RunOptions(output_partition_graphs=True)
    metadata = v1.RunMetadata()
    value = session.run(fetch, feed, options=options, run_metadata=metadata)
    return value, [node.op for graph in metadata.partition_graphs for node in graph.node]


@pytest.mark.parity("compat.v1 input_layer", "pass")
@pytest.mark.parametrize("version", VERSIONS)
def test_input_layer(version: str) -> None:
    with tf.Graph().as_default():
        tensors, feed = placeholders(Batch().features())
        vectors = v1.feature_column.input_layer(tensors, build(SOME, version))
        start = tf.group(v1.global_variables_initializer(), v1.tables_initializer())
        with v1.Session() as session:
            session.run(start)
            expected, before = executed(session, vectors, feed)
            assert GROUP not in before
        with fusion.fused(), v1.Session() as session:
            session.run(start)
            found, after = executed(session, vectors, feed)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)
    assert after.count(GROUP) == 1
    assert "ResourceGather" not in after
    assert fusion.stats().failures == 0


@pytest.mark.parity("tf_keras DenseFeatures, tf.function", "pass")
@pytest.mark.parametrize("version", VERSIONS)
def test_functions_and_saved_models(version: str, tmp_path: Path) -> None:
    layer = tf_keras.layers.DenseFeatures(build(SOME[:4], version))
    batch = as_tensors(Batch().features())
    layer(batch)

    @tf.function
    def serve(given: dict[str, Any]) -> Any:
        return {"vectors": layer(given)}

    concrete = serve.get_concrete_function(batch)
    fused = fusion.fuse_function(concrete)
    types = [op.type for op in fused.graph.get_operations()]
    assert types.count(GROUP) == 1
    assert "ResourceGather" not in types
    expected = concrete(batch)["vectors"].numpy()
    assert_same_bits(fused(batch)["vectors"].numpy(), expected)

    module = tf.Module()
    module.layer, module.serve = layer, serve
    tf.saved_model.save(module, tmp_path / "model", signatures=concrete)
    # Inputs that are made up for a comparison would have different numbers of rows.
    report = fusion.fuse_saved_model(tmp_path / "model", tmp_path / "fused", verify=False)
    assert {column.form for column in report.columns} == {"grouped"}
    loaded = tf.saved_model.load(tmp_path / "fused")
    assert_same_bits(loaded.serve(batch)["vectors"].numpy(), expected)
    again = fusion.fuse_saved_model(tmp_path / "fused", tmp_path / "again", verify=False)
    assert all(column.fused_before for column in again.columns)


def test_training_stays_in_parts() -> None:
    *trained, frozen = SOME
    assert not frozen.trainable
    layer = tf_keras.layers.DenseFeatures(build(trained, "v2"))
    batch = as_tensors(Batch().features())
    layer(batch)

    @tf.function
    def step(given: dict[str, Any]) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(given) ** 2)
        return tape.gradient(loss, layer.trainable_variables)

    columns = fusion.explain(step.get_concrete_function(batch)).columns
    assert columns
    assert all(column.fused_before for column in columns)
