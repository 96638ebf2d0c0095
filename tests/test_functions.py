"""Fused concrete functions do what the originals do: values, gradients, effects, signatures."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.python.eager import context

import fusion
from fusion.passes.graph.calls import reached_functions
from fusion.running.functions import explain_function
from tests.fused_functions import (
    BODIES,
    DIM,
    FEEDS,
    FUSED_OP,
    GRADIENT_OP,
    IDS,
    ROWS,
    SPEC,
    Module,
    assert_same_outcome,
    conditional,
    flat_signature,
    fused,
    lookup,
    nested,
    ops,
    outcome,
    sparse,
    values,
)

v1 = tf.compat.v1


@pytest.fixture
def table() -> tf.Variable:
    return tf.Variable(values(), name="items")


def ran(function: Any, watched: tf.Variable) -> set[str]:
    """The types of the ops that TensorFlow runs for values and gradients."""
    with context.collect_graphs(optimized=True) as graphs:
        outcome(function, (IDS,), {}, watched)
    found = {node.op for graph in graphs for node in graph.node}
    for graph in graphs:
        # There may be functions of other programs beside them.
        reached = reached_functions(graph)
        for function_def in graph.library.function:
            if function_def.signature.name in reached:
                found |= {node.op for node in function_def.node_def}
    return found


@pytest.mark.parametrize("make", BODIES)
def test_tensorflow_runs_the_fused_ops_in_both_directions(make: Any, table: tf.Variable) -> None:
    original = tf.function(make(table)).get_concrete_function(SPEC)
    stock_ops, fused_ops = (ran(f, table) for f in (original, fused(original)))
    assert {"SparseSegmentMean", "SparseSegmentMeanGrad"} <= stock_ops
    assert {FUSED_OP, GRADIENT_OP} <= fused_ops
    assert not {"SparseSegmentMean", "SparseSegmentMeanGrad", FUSED_OP} & (stock_ops & fused_ops)


@pytest.mark.parametrize("make", BODIES)
def test_values_and_gradients(make: Any, table: tf.Variable) -> None:
    original = tf.function(make(table)).get_concrete_function(SPEC)
    # To take a gradient changes the graph of the original.
    for _ in range(2):
        result = fused(original)
        for seed in range(2):
            assert_same_outcome(original, result, (sparse(seed),), watched=table)


def test_the_signature_is_the_original_one(table: tf.Variable) -> None:
    @tf.function
    def function(features: Any, scale: Any, mode: str = "mean", *, offset: Any = 1.0) -> Any:
        rows = lookup(table, features["ids"], combiner=mode)
        return {"rows": rows * scale + offset, "ragged": features["ragged"]}

    ragged = tf.ragged.constant([[1], [2, 3]])
    features = {"ids": IDS, "ragged": ragged}
    number = tf.TensorSpec([], tf.float32)
    original = function.get_concrete_function(features, number, "mean", offset=number)
    result = fused(original)
    two, three = tf.constant(2.0), tf.constant(3.0)
    assert_same_outcome(original, result, (features, two, "mean"), watched=table, offset=three)
    flat = (IDS.indices, IDS.values, IDS.dense_shape, ragged.values, ragged.row_splits, two, three)
    assert_same_outcome(original, result, flat)
    with pytest.raises(TypeError, match="mode"):
        result(features, two, "sum", offset=three)


def test_effects_happen_once_and_in_order(table: tf.Variable) -> None:
    calls = tf.Variable(0)

    @tf.function
    def function(ids: tf.SparseTensor) -> Any:
        calls.assign_add(1)
        before = lookup(table, ids)
        table.assign(table * 2.0)
        tf.debugging.assert_positive(calls)
        return before, lookup(table, ids)

    original = function.get_concrete_function(SPEC)
    result = fused(original)
    expected = original(IDS)
    table.assign(values())
    found = result(IDS)
    assert calls.numpy() == 2
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(*found)


def test_a_failing_assertion_still_fails(table: tf.Variable) -> None:
    @tf.function
    def function(ids: tf.SparseTensor) -> Any:
        tf.debugging.assert_less(tf.size(ids.values), 3)
        return lookup(table, ids)

    result = fused(function.get_concrete_function(SPEC))
    with pytest.raises(tf.errors.InvalidArgumentError):
        result(IDS)
    few = tf.SparseTensor([[0, 0]], tf.constant([1], tf.int64), [1, 1])
    np.testing.assert_array_equal(result(few), table[1:2])


def test_tables_of_words_stay_captured(table: tf.Variable) -> None:
    keys = tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([1, 2], tf.int64))
    words = tf.lookup.StaticHashTable(keys, -1)

    @tf.function
    def function(text: tf.SparseTensor) -> Any:
        ids = tf.SparseTensor(text.indices, words.lookup(text.values), text.dense_shape)
        return lookup(table, ids)

    text = tf.SparseTensor([[0, 0], [0, 1], [2, 0]], ["a", "b", "c"], [3, 2])
    original = function.get_concrete_function(text)
    assert_same_outcome(original, fused(original), (text,), watched=table)


def test_values_captured_at_the_call_follow(table: tf.Variable) -> None:
    factor = tf.Variable(2.0)

    @tf.function
    def function(ids: tf.SparseTensor) -> Any:
        graph = v1.get_default_graph()
        late = graph.capture_call_time_value(
            lambda: tf.identity(factor), tf.TensorSpec([], tf.float32)
        )
        return lookup(table, ids) * late

    original = function.get_concrete_function(SPEC)
    result = fused(original)
    for number in (2.0, 5.0):
        factor.assign(number)
        assert_same_outcome(original, result, watched=table)


def test_recomputed_values(table: tf.Variable) -> None:
    """Only the forward direction is fused: Python computes it anew in the other."""

    def inner(*parts: tf.Tensor) -> tf.Tensor:
        return tf.tanh(lookup(table, tf.SparseTensor(*parts)))

    def body(ids: tf.SparseTensor) -> tf.Tensor:
        return tf.recompute_grad(inner)(ids.indices, ids.values, ids.dense_shape)

    original = tf.function(body).get_concrete_function(SPEC)
    assert_same_outcome(original, fused(original), watched=table)


def test_a_custom_gradient_that_needs_what_vanishes_says_so(table: tf.Variable) -> None:
    def function(ids: tf.SparseTensor) -> tf.Tensor:
        rows = lookup(table, ids)
        inside = rows.graph.get_tensor_by_name("embedding_lookup/GreaterEqual:0")

        @tf.custom_gradient
        def counted(x: tf.Tensor) -> Any:
            return x + 1.0, lambda gradient: gradient * tf.cast(tf.size(inside), tf.float32)

        return counted(rows)

    result = fused(tf.function(function).get_concrete_function(SPEC))
    assert result(IDS).shape == (9, DIM)
    with pytest.raises(LookupError, match="needs embedding_lookup/GreaterEqual:0, which is inside"):
        outcome(result, (IDS,), {}, table)


def test_captures_that_were_replaced(table: tf.Variable) -> None:
    big = tf.constant(np.tile(values(3), (50, 1)))
    original = tf.function(lambda ids: (lookup(big, ids), lookup(table, ids)))
    function = original.get_concrete_function(SPEC)
    others = [t * 2.0 if t.dtype == tf.float32 else t for t in function.captured_inputs]
    function.set_external_captures(others)
    result = fusion.fuse_function(function)
    assert FUSED_OP in ops(result)
    for a, b in zip(function(IDS), result(IDS), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(result(IDS)[0], lookup(big * 2.0, IDS))


@pytest.mark.parity("optimizers of Keras 3 and tf_keras", "pass")
def test_training_takes_the_same_steps(table: tf.Variable) -> None:
    other = tf.Variable(table)
    weights = tf.Variable(tf.ones([DIM, 1]))

    def model(t: tf.Variable) -> Any:
        return tf.function(lambda ids: lookup(t, ids) @ weights).get_concrete_function(SPEC)

    def train(function: Any, t: tf.Variable) -> list[float]:
        optimizer = tf_keras.optimizers.legacy.Adagrad(0.1)
        losses = []
        for step in range(4):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((function(sparse(step)) - 1.0) ** 2)
            optimizer.apply_gradients([(tape.gradient(loss, t), t)])
            losses.append(float(loss))
        return losses

    expected = train(model(table), table)
    np.testing.assert_allclose(train(fused(model(other)), other), expected, rtol=1e-6)
    np.testing.assert_allclose(other, table, rtol=1e-5, atol=1e-6)
    assert expected[0] != expected[-1]


def test_a_training_step_made_of_it(table: tf.Variable) -> None:
    """The gradient is taken inside another function."""
    inner = tf.function(nested(table)).get_concrete_function(SPEC)
    result = fused(inner)

    def step(function: Any) -> Any:
        @tf.function
        def run(ids: tf.SparseTensor) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(function(ids) ** 2)
            return loss, tf.convert_to_tensor(tape.gradient(loss, table))

        return run(IDS)

    for a, b in zip(step(inner), step(result), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-6)


def test_keras_models(table: tf.Variable) -> None:
    fc = tf.feature_column
    item = fc.categorical_column_with_identity("item", ROWS)
    model = tf_keras.Sequential(
        [tf_keras.layers.DenseFeatures([fc.embedding_column(item, DIM)]), tf_keras.layers.Dense(1)]
    )
    features = {"item": tf.constant([[1], [2], [-1], [2]], tf.int64)}
    model(features)
    spec = {"item": tf.TensorSpec([None, 1], tf.int64)}
    original = tf.function(model).get_concrete_function(spec)
    result = fused(original)
    assert_same_outcome(original, result, (features,), watched=model.trainable_variables[0])


def test_fusing_while_a_function_is_traced(
    table: tf.Variable, caplog: pytest.LogCaptureFixture
) -> None:
    original = tf.function(nested(table)).get_concrete_function(SPEC)

    @tf.function
    def outer(ids: tf.SparseTensor) -> tf.Tensor:
        return fusion.fuse_function(original)(ids)

    function = outer.get_concrete_function(SPEC)
    assert FUSED_OP in ops(function)
    assert_same_outcome(original, function, watched=table)
    assert caplog.text == ""
    with tf.Graph().as_default():
        result = fusion.fuse_function(original)
    assert_same_outcome(original, result, watched=table)


# What is left alone


def test_a_function_without_lookups_is_returned(table: tf.Variable) -> None:
    function = tf.function(lambda x: x + 1.0).get_concrete_function(tf.TensorSpec([]))
    assert fusion.fuse_function(function) is function
    assert explain_function(function).columns == ()


def test_attributes_and_the_ban_to_save_stay(table: tf.Variable) -> None:
    function = tf.function(
        lambda ids: lookup(table, ids), experimental_attributes={"_noinline": True}
    )
    original = function.get_concrete_function(SPEC)
    original.graph.mark_as_unsaveable("for a reason")
    result = fused(original)
    assert result.function_def.attr["_noinline"].b
    assert not result.graph.saveable
    assert result.graph.saving_errors == {"for a reason"}


def test_fusing_twice_changes_nothing_more(table: tf.Variable) -> None:
    result = fused(tf.function(nested(table)).get_concrete_function(SPEC))
    assert fusion.fuse_function(result) is result


def test_equal_functions_become_equal(table: tf.Variable) -> None:
    original = tf.function(lambda ids: lookup(table, ids)).get_concrete_function(SPEC)
    first, second = (fused(original).function_def for _ in range(2))
    assert first.signature.name != second.signature.name
    second.signature.name = first.signature.name
    assert first == second


def test_the_original_is_not_changed(table: tf.Variable) -> None:
    original = tf.function(conditional(table)).get_concrete_function(SPEC)
    before, graph = original.function_def, original.graph.as_graph_def()
    result = fused(original)
    outcome(result, (IDS,), {}, table)
    assert original.function_def == before
    assert original.graph.as_graph_def() == graph


@pytest.mark.parametrize("inside", [False, True])
def test_functions_compiled_by_xla_stay(inside: bool, table: tf.Variable) -> None:
    function = tf.function(lambda ids: lookup(table, ids), jit_compile=True)
    if inside:
        compiled = function
        function = tf.function(lambda ids: compiled(ids) + lookup(table, ids, combiner="sum"))
    original = function.get_concrete_function(SPEC)
    result = fusion.fuse_function(original)
    assert (result is not original) == inside
    assert "SparseSegmentMean" in ops(result)
    reasons = [c.reason for c in explain_function(original).columns if not c.fused]
    assert reasons == ["the function is compiled by XLA"]


def test_a_function_that_returns_a_value_inside_the_lookup_stays() -> None:
    table = tf.constant(values())

    def function(ids: tf.SparseTensor) -> Any:
        rows = lookup(table, ids)
        inside = rows.graph.get_operation_by_name("embedding_lookup/embedding_lookup_sparse")
        return rows, inside.outputs[0]

    original = tf.function(function).get_concrete_function(SPEC)
    assert fusion.fuse_function(original) is original
    (column,) = explain_function(original).columns
    assert "returned by the function" in str(column.reason) or "also used" in str(column.reason)


def test_variables_are_held_like_the_original_holds_them() -> None:
    module = Module(tf.Variable(values()), None)
    signature = flat_signature(module.table)
    result = fused(signature)
    del signature
    gc.collect()
    assert result(**FEEDS)["rows"].shape == (9, DIM)
    del module
    gc.collect()
    with pytest.raises(AssertionError, match="variables which have been deleted"):
        assert result.variables


# Arguments


def wrong_arguments() -> Iterator[tuple[Any, str]]:
    yield tf.function(lambda x: x), r"pass what its get_concrete_function"
    yield tf_keras.Sequential([]), r"got Sequential .*pass tf.function\(model\)"
    yield tf.keras.Sequential([]), r"got Sequential .*pass tf.function\(model\)"
    yield tf.Graph(), "concrete_function must be a concrete function, got Graph"
    yield "model", "got str 'model'$"
    yield None, "got NoneType None$"
    yield tf.saved_model.load, "got function"


@pytest.mark.parametrize(("argument", "message"), list(wrong_arguments()))
def test_other_arguments_are_refused(argument: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        fusion.fuse_function(argument)


def test_a_loaded_model_is_refused_with_advice(table: tf.Variable, tmp_path: Path) -> None:
    tf.saved_model.save(Module(table, None), tmp_path / "m", signatures=flat_signature(table))
    with pytest.raises(TypeError, match="pass one of its signatures"):
        fusion.fuse_function(tf.saved_model.load(tmp_path / "m"))
