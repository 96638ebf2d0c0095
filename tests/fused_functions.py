"""Functions with lookups, and whether a fused one does what its original does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import fusion

lookup = tf.nn.safe_embedding_lookup_sparse
ROWS, DIM = 20, 6
FUSED_OP = "FusedEmbeddingLookup"
GRADIENT_OP = "FusedEmbeddingSparsePostLookUpV2Grad"


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


def nested(t: tf.Variable) -> Callable[..., Any]:
    inner = tf.function(lambda ids: lookup(t, ids))
    middle = tf.function(lambda ids: inner(ids) + inner(ids))
    return lambda ids: middle(ids) * 2.0


def several_results(t: tf.Variable) -> Callable[..., Any]:
    return lambda ids: {"rows": lookup(t, ids), "ids": ids, "nothing": None, "pair": (ids.values,)}


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


# What functions are made of


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
