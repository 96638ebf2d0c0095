"""What the tests of ops, lookups and columns compare with: stock TensorFlow, run in three ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

Array = Any

#: The ways of running TensorFlow.
MODES = ("eager", "function", "session")


def sparse(
    rng: np.random.Generator,
    lengths: Sequence[int],
    vocabulary: int,
    dtype: Any = np.int64,
    negative: float = 0.0,
    shuffled: bool = False,
) -> dict[str, Array]:
    """A batch of ids as arrays: `indices`, `values`, `dense_shape` and positive `weights`.

    `negative` is the fraction of ids that are invalid; `shuffled` mixes the rows.
    """
    rows = np.repeat(np.arange(len(lengths)), lengths)
    columns = np.concatenate([np.arange(n) for n in [0, *lengths]])
    order = rng.permutation(len(rows)) if shuffled else np.arange(len(rows))
    values = rng.integers(0, vocabulary, len(rows)).astype(dtype)
    values[rng.random(len(rows)) < negative] = -1
    return {
        "indices": np.stack([rows, columns], 1).astype(np.int64).reshape(-1, 2)[order],
        "values": values,
        "dense_shape": np.array([len(lengths), max([*lengths, 1])], np.int64),
        "weights": rng.uniform(0.1, 3, len(rows)).astype(np.float32),
    }


def run(
    mode: str,
    build: Callable[..., Any],
    arrays: Mapping[str, Array],
    make: Callable[[], Any] = lambda: None,
) -> Any:
    """Evaluates `build(make(), **tensors)` and gives its (nested) result as NumPy values.

    In "function" and "session" all sizes of the inputs are unknown when the graph is built.
    `make` creates variables.
    """
    return prepare(mode, build, arrays, make)(arrays)


def prepare(
    mode: str, build: Callable[..., Any], arrays: Mapping[str, Array], make: Callable[[], Any]
) -> Callable[[Mapping[str, Array]], Any]:
    """What `run` does, to be done with any arrays of the same names, dtypes and ranks.

    Variables and the graph are made only once, here.
    """
    if mode == "session":
        return _in_session(build, arrays, make)
    state = make()
    call = partial(build, state)
    if mode == "function":
        specs = {
            name: tf.TensorSpec([None] * np.ndim(value), np.asarray(value).dtype)
            for name, value in arrays.items()
        }
        call = tf.function(lambda **tensors: build(state, **tensors)).get_concrete_function(**specs)

    def run(arrays: Mapping[str, Array]) -> Any:
        tensors = {name: tf.constant(value) for name, value in arrays.items()}
        return tf.nest.map_structure(_as_numpy, call(**tensors))

    return run


def _in_session(
    build: Callable[..., Any], arrays: Mapping[str, Array], make: Callable[[], Any]
) -> Callable[[Mapping[str, Array]], Any]:
    with tf.Graph().as_default() as graph:
        state = make()
        feeds = {
            name: tf.compat.v1.placeholder(np.asarray(value).dtype, [None] * np.ndim(value))
            for name, value in arrays.items()
        }
        result = build(state, **feeds)
        session = tf.compat.v1.Session(graph=graph)
        session.run(tf.compat.v1.global_variables_initializer())
    return lambda arrays: session.run(result, {feeds[name]: arrays[name] for name in feeds})


def _as_numpy(value: Any) -> Any:
    return value.numpy() if isinstance(value, tf.Tensor) else value


@dataclass(frozen=True)
class Outcome:
    """A lookup's result and its gradients: of each shard [rows, D], and of the weights."""

    output: Array
    tables: list[Array]
    weights: Array
    ids: list[Array]


def outcome(
    mode: str,
    lookup: Callable[..., tf.Tensor],
    make: Callable[[], Any],
    arrays: Mapping[str, Array],
    weighted: bool = False,
    rank: int | None = 2,
) -> Outcome:
    """Runs `lookup(table, ids, weights)` forward and backward.

    `make` creates the table, of which each shard is differentiated. The loss weighs each element
    of the result differently. `rank` is what is known statically of the ids, or None.
    """

    def build(table: Any, indices: Any, values: Any, dense_shape: Any, weights: Any) -> Any:
        shards = sources(table)
        if rank is not None:
            indices.set_shape([None, rank])
            dense_shape.set_shape([rank])
        with tf.GradientTape() as tape:
            for source in (*shards, weights) if mode != "session" else ():
                tape.watch(source)
            ids = tf.SparseTensor(indices, values, dense_shape)
            result = lookup(table, ids, weights if weighted else None)
            flat = tf.reshape(result, [-1])
            factors = tf.cos(tf.range(tf.size(flat), dtype=tf.float32))
            loss = tf.reduce_sum(flat * tf.cast(factors, flat.dtype))
        wanted = [*shards, weights]
        if mode == "session":  # tapes do not watch a v1 graph's ref variables
            *tables, of_weights = tf.compat.v1.gradients(loss, wanted)
        else:
            *tables, of_weights = tape.gradient(loss, wanted)
        tables = [gradient_parts(*pair) for pair in zip(tables, shards, strict=True)]
        of_weights = tf.zeros_like(weights) if of_weights is None else of_weights
        return result, tables, tf.convert_to_tensor(of_weights)

    output, tables, weights = run(mode, build, arrays, make)
    return Outcome(output, [dense for _, dense in tables], weights, [ids for ids, _ in tables])


def sources(table: Any) -> list[Any]:
    """The variables or tensors that a table consists of."""
    if isinstance(table, tf.compat.v1.Variable | tf.Variable | tf.Tensor):
        return [table]
    return list(getattr(table, "variables", table))


def gradient_parts(gradient: Any, table: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """(ids, dense gradient [rows, D]); all rows have a gradient if it is dense."""
    shape = tf.shape(table)
    if gradient is None:
        return tf.zeros([0], tf.int64), tf.zeros(shape, table.dtype.base_dtype)
    if not isinstance(gradient, tf.IndexedSlices):
        return tf.range(tf.cast(shape[0], tf.int64)), gradient
    ids = tf.cast(gradient.indices, tf.int64)
    return ids, tf.math.unsorted_segment_sum(gradient.values, ids, shape[0])


def assert_same_bits(actual: Array, expected: Array) -> None:
    """Equal shapes, dtypes and bits, but that zeros may differ in sign."""
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    with np.errstate(invalid="ignore"):  # ml_dtypes warns of NaN
        same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    assert same.all(), f"{(~same).sum()} of {same.size} elements differ"


def assert_within(actual: Array, expected: Array, bound: Array) -> None:
    """Every element is within its bound; NaN and inf are equal."""
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(actual[~finite], expected[~finite])
    with np.errstate(invalid="ignore"):
        error = np.abs(actual - expected)
    bound = np.broadcast_to(bound, expected.shape)
    worst = np.max(error[finite] - bound[finite], initial=0)
    assert np.all(error[finite] <= bound[finite]), f"exceeds its bound by {worst}"
