"""Fused concrete functions do what the originals do: values, gradients, effects, signatures."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.python.eager import context

import fusion
from fusion.functions import explain_function

v1 = tf.compat.v1
lookup = tf.nn.safe_embedding_lookup_sparse
ROWS, DIM = 20, 6
FUSED_OP = "FusedEmbeddingSparsePostLookUpV2"


def sparse(seed: int = 0, rows: int = 9) -> tf.SparseTensor:
    """Bags of 0 to 5 ids, some of them negative."""
    rng = np.random.default_rng(seed)
    indices = np.argwhere(rng.random((rows, 5)) < 0.5)
    values = rng.integers(-2, ROWS, len(indices))
    return tf.SparseTensor(indices, values, [rows, 5])


IDS = sparse()
SPEC = tf.SparseTensorSpec([None, None], tf.int64)


def values(seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(ROWS, DIM)).astype(np.float32)


@pytest.fixture
def table() -> tf.Variable:
    return tf.Variable(values(), name="items")


def ops(function: Any) -> set[str]:
    """The types of all ops that the function runs, those of the functions it calls included."""
    graph = tf.Graph()
    function.add_to_graph(graph)
    return {n.op for f in graph.as_graph_def().library.function for n in f.node_def}


def outcome(function: Any, args: Any, kwargs: Any, watched: Any) -> tuple[Any, Any]:
    with tf.GradientTape() as tape:
        result = function(*args, **kwargs)
        floats = [x for x in tf.nest.flatten(result) if x is not None and x.dtype.is_floating]
        loss = tf.add_n([tf.reduce_sum(x * x) for x in floats])
    return result, tape.gradient(loss, watched) if watched is not None else None


def assert_same_outcome(
    original: Any, fused: Any, args: Any = (IDS,), watched: Any = None, **kwargs: Any
) -> None:
    expected, gradient = outcome(original, args, kwargs, watched)
    found, found_gradient = outcome(fused, args, kwargs, watched)
    tf.nest.assert_same_structure(expected, found, expand_composites=True)
    flat = (tf.nest.flatten(x, expand_composites=True) for x in (expected, found))
    for a, b in zip(*flat, strict=True):
        if a is not None:
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
    if watched is not None:
        assert gradient is not None
        assert type(found_gradient) is type(gradient)
        dense = tf.convert_to_tensor(gradient)
        assert np.any(dense)
        np.testing.assert_allclose(
            tf.convert_to_tensor(found_gradient), dense, rtol=1e-6, atol=1e-6
        )


def assert_same_signature(original: Any, result: Any) -> None:
    assert type(result) is type(original)
    assert result.structured_input_signature == original.structured_input_signature
    assert str(result.function_type) == str(original.function_type)
    assert result.output_shapes == original.output_shapes
    assert result.output_dtypes == original.output_dtypes
    assert result.graph.name == original.graph.name
    assert result.function_def.attr == original.function_def.attr
    assert result.variables == original.variables
    assert result.trainable_variables == original.trainable_variables
    captured, theirs = result.captured_inputs, original.captured_inputs
    if not original.graph.deferred_external_captures:
        assert [id(tensor) for tensor in captured] == [id(tensor) for tensor in theirs]
    assert len(captured) == len(theirs)
    count = len(result.graph.captures) + len(result.graph.deferred_external_captures)
    assert count == len(captured)
    inside = [internal for _, internal in result.graph.captures]
    inside += tf.nest.flatten(result.graph.deferred_internal_captures, expand_composites=True)
    for tensor in (*inside, *tf.nest.flatten(result.structured_outputs, expand_composites=True)):
        assert getattr(tensor, "graph", result.graph) is result.graph


def fused(original: Any) -> Any:
    """The fused function, after checking that there is something to it."""
    result = fusion.fuse_function(original)
    assert result is not original
    assert_same_signature(original, result)
    assert FUSED_OP in ops(result)
    assert "SparseSegmentMean" not in ops(result)
    assert FUSED_OP not in ops(original)
    return result


# What functions are made of


def nested(t: tf.Variable) -> Callable[..., Any]:
    inner = tf.function(lambda ids: lookup(t, ids))
    middle = tf.function(lambda ids: inner(ids) + inner(ids))
    return lambda ids: middle(ids) * 2.0


def conditional(t: tf.Variable) -> Callable[..., Any]:
    inner = tf.function(lambda ids: lookup(t, ids))

    def body(ids: tf.SparseTensor) -> tf.Tensor:
        rows = inner(ids)
        return tf.cond(rows[0, 0] > 1e9, lambda: rows, lambda: rows + inner(ids))

    return body


def only_in_a_branch(t: tf.Variable) -> Callable[..., Any]:
    def body(ids: tf.SparseTensor) -> tf.Tensor:
        return tf.cond(tf.size(ids.values) > 0, lambda: lookup(t, ids), lambda: tf.zeros([1, DIM]))

    return body


def loop(t: tf.Variable) -> Callable[..., Any]:
    def body(ids: tf.SparseTensor) -> tf.Tensor:
        total = tf.zeros([9, DIM])
        for _ in tf.range(3):
            total += lookup(t, ids)
        return total

    return body


@tf.custom_gradient
def cubed(x: tf.Tensor) -> Any:
    """Its gradient, 5 instead of 3 x squared, closes over a tensor of the graph."""
    return x * x * x, lambda gradient: gradient * 5.0 * x * x


def custom_gradient(t: tf.Variable) -> Callable[..., Any]:
    inner = tf.function(lambda ids: cubed(lookup(t, ids)))
    return lambda ids: cubed(inner(ids) + lookup(t, ids))


def custom_gradient_in_a_loop(t: tf.Variable) -> Callable[..., Any]:
    def body(ids: tf.SparseTensor) -> tf.Tensor:
        total = tf.zeros([9, DIM])
        for _ in tf.range(2):
            total += cubed(lookup(t, ids) + 0.1 * total)
        return total

    return body


def beside_another_call(t: tf.Variable) -> Callable[..., Any]:
    other = tf.function(cubed)
    return lambda ids: other(lookup(t, ids))


def on_a_device(t: tf.Variable) -> Callable[..., Any]:
    def body(ids: tf.SparseTensor) -> tf.Tensor:
        with tf.device("/CPU:0"):
            return lookup(t, ids)

    return body


def several_results(t: tf.Variable) -> Callable[..., Any]:
    return lambda ids: {"rows": lookup(t, ids), "ids": ids, "nothing": None, "pair": (ids.values,)}


def with_a_captured_tensor(t: tf.Variable) -> Callable[..., Any]:
    big = tf.constant(np.tile(values(3), (50, 1)))
    small = tf.constant([1.0, 2.0])
    return lambda ids: (lookup(t, ids), lookup(big, ids), small)


BODIES = [
    nested,
    conditional,
    only_in_a_branch,
    loop,
    custom_gradient,
    custom_gradient_in_a_loop,
    beside_another_call,
    on_a_device,
    several_results,
    with_a_captured_tensor,
]


def ran(function: Any, watched: tf.Variable) -> set[str]:
    """The types of the ops that TensorFlow runs for values and gradients."""
    with context.collect_graphs(optimized=True) as graphs:
        outcome(function, (IDS,), {}, watched)
    return {
        node.op
        for graph in graphs
        for nodes in (graph.node, *(f.node_def for f in graph.library.function))
        for node in nodes
    }


@pytest.mark.parametrize("make", BODIES)
def test_tensorflow_runs_the_fused_ops_in_both_directions(make: Any, table: tf.Variable) -> None:
    original = tf.function(make(table)).get_concrete_function(SPEC)
    stock_ops, fused_ops = (ran(f, table) for f in (original, fused(original)))
    assert {"SparseSegmentMean", "SparseSegmentMeanGrad"} <= stock_ops
    assert {FUSED_OP, f"{FUSED_OP}Grad"} <= fused_ops
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


# SavedModels


class Module(tf.Module):
    def __init__(self, t: tf.Variable, function: Any) -> None:
        super().__init__()
        self.table = t
        self.function = function


FLAT = [
    tf.TensorSpec([None, 2], tf.int64, name="Indices"),
    tf.TensorSpec([None], tf.int64, name="values"),
    tf.TensorSpec([2], tf.int64, name="shape"),
]
FEEDS = {"Indices": IDS.indices, "values": IDS.values, "shape": IDS.dense_shape}


def flat_signature(t: tf.Variable) -> Any:
    inner = tf.function(lambda ids: lookup(t, ids))
    return tf.function(
        lambda indices, values, shape: {"rows": inner(tf.SparseTensor(indices, values, shape))}
    ).get_concrete_function(*FLAT)


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
