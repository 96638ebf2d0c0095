"""Fusing the functions of loaded models, and saving what was fused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusion
from tests.fused_functions import (
    DIM,
    FEEDS,
    FLAT,
    FUSED_OP,
    IDS,
    SPEC,
    Module,
    assert_same_outcome,
    flat_signature,
    fused,
    lookup,
    nested,
    ops,
    several_results,
    values,
)

v1 = tf.compat.v1


@pytest.fixture
def table() -> tf.Variable:
    return tf.Variable(values(), name="items")


def test_a_loaded_signature(table: tf.Variable, tmp_path: Path) -> None:
    signature = flat_signature(table)
    tf.saved_model.save(Module(table, None), tmp_path / "m", signatures=signature)
    loaded = tf.saved_model.load(tmp_path / "m")
    original = loaded.signatures["serving_default"]
    result = fused(original)
    assert_same_outcome(original, result, (), watched=loaded.table, **FEEDS)
    loaded.table.assign(values(5))
    assert_same_outcome(original, result, (), watched=loaded.table, **FEEDS)


def test_a_model_loaded_for_replicas(table: tf.Variable, tmp_path: Path) -> None:
    tf.saved_model.save(Module(table, None), tmp_path / "m", signatures=flat_signature(table))
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        loaded = tf.saved_model.load(tmp_path / "m")
    original = loaded.signatures["serving_default"]
    result = fused(original)

    def in_replicas(function: Any) -> tf.Tensor:
        run = tf.function(lambda: strategy.run(lambda: function(**FEEDS)["rows"]))
        return run()

    np.testing.assert_array_equal(in_replicas(result), in_replicas(original))


def test_a_restored_function(table: tf.Variable, tmp_path: Path) -> None:
    function = tf.function(several_results(table), input_signature=[SPEC])
    tf.saved_model.save(Module(table, function), tmp_path / "m")
    loaded = tf.saved_model.load(tmp_path / "m")
    (original,) = loaded.function.concrete_functions
    result = fused(original)
    assert_same_outcome(original, result, (IDS,), watched=loaded.table)


def test_saving_a_fused_function(table: tf.Variable, tmp_path: Path) -> None:
    signature = flat_signature(table)
    result = fused(signature)
    module = Module(table, result)
    tf.saved_model.save(module, tmp_path / "m", signatures={"a": result})
    loaded = tf.saved_model.load(tmp_path / "m")
    again = loaded.signatures["a"]
    assert again.structured_outputs == {"rows": tf.TensorSpec([None, DIM], name="rows")}
    assert FUSED_OP in ops(again)
    assert_same_outcome(signature, again, (), **FEEDS)
    assert_same_outcome(again, again, (), watched=loaded.table, **FEEDS)
    restored = loaded.function(*FEEDS.values())
    np.testing.assert_array_equal(restored["rows"], signature(**FEEDS)["rows"])
    assert fusion.fuse_function(again) is again


def saved_by_tensorflow_1(path: Path, build: Callable[..., tf.Tensor], resource: bool) -> Any:
    """The loaded model whose signature is `build(table, ids)`."""
    with tf.Graph().as_default(), v1.Session() as session:
        t = v1.get_variable("items", initializer=values(), use_resource=resource)
        ids = v1.sparse_placeholder(tf.int64, [None, None], name="ids")
        rows = tf.identity(build(t, ids), name="rows")
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(path))
        inputs = dict(zip(FEEDS, (ids.indices, ids.values, ids.dense_shape), strict=True))
        signature = v1.saved_model.predict_signature_def(inputs, {"rows": rows})
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
        builder.save()
    return tf.saved_model.load(str(path))


@pytest.mark.parametrize("resource", [True, False])
def test_a_signature_of_tensorflow_1(resource: bool, tmp_path: Path) -> None:
    loaded = saved_by_tensorflow_1(tmp_path / "m", lookup, resource)
    original = loaded.signatures["serving_default"]
    result = fused(original)
    watched = loaded.variables[0] if resource else None
    assert_same_outcome(original, result, (), watched=watched, **FEEDS)


def test_control_flow_of_tensorflow_1(tmp_path: Path) -> None:
    """Its functions are definitions, without the graphs that they were made of."""

    def build(t: tf.Variable, ids: tf.SparseTensor) -> tf.Tensor:
        rows = nested(t)(ids)
        rows += v1.cond(tf.size(ids.values) > 0, lambda: lookup(t, ids), lambda: rows)
        loop = tf.while_loop(
            lambda i, _: i < 3, lambda i, x: (i + 1, x + lookup(t, ids)), [0, rows]
        )
        return loop[1]

    v1.enable_control_flow_v2()
    try:
        loaded = saved_by_tensorflow_1(tmp_path / "m", build, resource=True)
    finally:
        v1.disable_control_flow_v2()
    original = loaded.signatures["serving_default"]
    report = fusion.explain(original)
    assert report.fused_count == len(report.columns) >= 3
    assert {column.name for column in report.columns} == {"items"}
    assert_same_outcome(original, fused(original), (), **FEEDS)


def test_wrapped_code_of_tensorflow_1() -> None:
    def function(indices: tf.Tensor, ids: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
        t = v1.get_variable("items", initializer=values(), use_resource=True)
        return lookup(t, tf.SparseTensor(indices, ids, shape))

    original = v1.wrap_function(function, FLAT)
    result = fused(original)
    assert_same_outcome(original, result, tuple(FEEDS.values()), watched=original.variables[0])
