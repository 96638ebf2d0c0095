"""Branches, loops and lists of tensors: what of them is of the request is computed once.

Each model is compared with its original on repeated rows, by functions and by Sessions; what mixes
rows in a body is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from fusion.saved_model import ModelError, fuse_saved_model
from fusion.saved_model.requests.request_signatures import COUNTS

STEPS, DIM, CANDIDATES = 5, 4, 6
ONE, SEVERAL = "serving_default_request", "serving_default_requests"
SPECS = {
    "user": tf.TensorSpec([None, STEPS, DIM], tf.float32, "user"),
    "item": tf.TensorSpec([None, STEPS, DIM], tf.float32, "item"),
}

Score = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


WEIGHTS = drawn(DIM, DIM)


def save_function(score: Score, path: Path) -> Path:
    """Writes a model of a history of a user and one of an item."""
    module = tf.Module()
    module.serve = tf.function(lambda user, item: {"score": score(user, item)}, [*SPECS.values()])
    tf.saved_model.save(module, str(path), module.serve)
    return path


def save_layers(package: Any, make: Callable[[Any], Any], path: Path, of: str) -> Path:
    """Writes a model of a layer of one of the two histories."""
    layers = package.layers
    inputs = {name: package.Input((STEPS, DIM), name=name) for name in SPECS}
    found = make(layers)(inputs[of])
    if len(found.shape) == 3:
        found = layers.Flatten()(found)
    other = layers.Flatten()(inputs["item" if of == "user" else "user"])
    end = layers.Dense(3, "relu")(layers.Concatenate()([found, other]))
    model = package.Model(inputs, layers.Dense(1, name="score")(end))
    model.set_weights([0.5 * drawn(*w.shape, seed=k) for k, w in enumerate(model.get_weights())])
    return save_model(package, model, path)


def save_model(package: Any, model: Any, path: Path) -> Path:
    if package is keras:
        model.export(str(path), verbose=False)
    else:
        tf.saved_model.save(model, str(path))
    return path


def check(stock: Path, ranked: Path, *, exact: bool) -> None:
    """Compares the new signatures with the original; `fuse_saved_model` does it in Sessions."""
    fuse_saved_model(stock, ranked, target="stock", request_inputs=["user"], exact=exact)
    signatures = tf.saved_model.load(str(ranked)).signatures
    user, item = drawn(2, STEPS, DIM, seed=3), drawn(CANDIDATES, STEPS, DIM, seed=4)
    for counts in ([CANDIDATES], [4, 2], [0, CANDIDATES]):
        users = user[: len(counts)]
        repeated = tf.constant(np.repeat(users, counts, 0))
        wanted = signatures["serving_default"](user=repeated, item=tf.constant(item))
        given: dict[str, Any] = {"user": tf.constant(users), "item": tf.constant(item)}
        found = [signatures[SEVERAL](**given, **{COUNTS: tf.constant(counts, tf.int64)})]
        if len(counts) == 1:
            found.append(signatures[ONE](**given))
        for one in found:
            for key, value in wanted.items():
                if exact:
                    np.testing.assert_array_equal(one[key], value)
                else:
                    np.testing.assert_allclose(one[key], value, rtol=1e-5, atol=1e-5)


def loops_of_requests(path: Path) -> list[str]:
    """Returns the loops of the new signature that read no repeated rows."""
    graph = tf.saved_model.load(str(path)).signatures[ONE].graph.as_graph_def()
    nodes = {node.name: node for node in graph.node}
    found = []
    for node in graph.node:
        if node.op in ("While", "StatelessWhile"):
            waiting, seen = [node.name], set[str]()
            while waiting:
                name = waiting.pop().lstrip("^").partition(":")[0]
                if name not in seen:
                    seen.add(name)
                    waiting += nodes[name].input
            if "item" not in seen:
                found.append(node.name)
    return found


LAYERS: Mapping[str, Callable[[Any], Any]] = {
    "lstm": lambda layers: layers.LSTM(3),
    "lstm of all steps": lambda layers: layers.LSTM(3, return_sequences=True),
    "gru": lambda layers: layers.GRU(3),
    "gru before": lambda layers: layers.GRU(3, reset_after=False),
    "simple": lambda layers: layers.SimpleRNN(3),
    "backwards": lambda layers: layers.LSTM(3, go_backwards=True),
    "both ways": lambda layers: layers.Bidirectional(layers.GRU(3)),
    "cells": lambda layers: layers.RNN([layers.LSTMCell(3), layers.GRUCell(2)]),
}


@pytest.mark.parametrize("of", ["user", "item"])
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("package", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_recurrent_layers(package: Any, name: str, of: str, tmp_path: Path) -> None:
    stock = save_layers(package, LAYERS[name], tmp_path / "stock", of)
    check(stock, tmp_path / "ranked", exact=False)
    if of == "user":
        assert loops_of_requests(tmp_path / "ranked")
    check(stock, tmp_path / "exact", exact=True)


def masked(layers: Any) -> Callable[[Any], Any]:
    return lambda x: layers.LSTM(3)(layers.Masking()(x))


@pytest.mark.parametrize("package", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_steps_that_are_masked(package: Any, tmp_path: Path) -> None:
    stock = save_layers(package, masked, tmp_path / "stock", "user")
    check(stock, tmp_path / "ranked", exact=False)


@pytest.mark.parametrize("package", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_histories_of_any_length(package: Any, tmp_path: Path) -> None:
    layers = package.layers
    inputs = {"user": package.Input((None, DIM), name="user")}
    inputs["item"] = package.Input((STEPS, DIM), name="item")
    joined = [layers.LSTM(3)(inputs["user"]), layers.Flatten()(inputs["item"])]
    model = package.Model(inputs, layers.Dense(1, name="score")(layers.Concatenate()(joined)))
    stock = save_model(package, model, tmp_path / "stock")
    check(stock, tmp_path / "ranked", exact=False)
    assert loops_of_requests(tmp_path / "ranked")


def conditional(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    """A branch that a variable's value decides, of rows of both."""
    switch = tf.Variable(True) if tf.executing_eagerly() else tf.constant(2.0) > tf.norm(WEIGHTS)
    return tf.cond(
        switch,
        lambda: tf.reduce_sum(user, 1) * tf.reduce_sum(item, 1),
        lambda: tf.reduce_sum(user, 1) - tf.reduce_sum(item, 1),
    )


def switched(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    number = tf.cast(tf.norm(WEIGHTS), tf.int32) % 3
    found = tf.switch_case(number, [lambda: user, lambda: 2.0 * user, lambda: tf.exp(user)])
    return tf.reduce_sum(found * item, 1)


def repeated_products(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    """A loop of a fixed number of rounds over a request, and another over candidates."""

    def rounds(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(
            lambda k, _: k < 3,
            lambda k, x: (k + 1, tf.tanh(x @ WEIGHTS)),
            (0, x[:, 0]),
        )[1]

    return rounds(user) * rounds(item)


def mapped_steps(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    """`tf.map_fn` over steps."""
    steps = tf.map_fn(lambda x: x @ WEIGHTS, tf.transpose(user, [1, 0, 2]))
    return tf.reduce_sum(steps, 0) * item[:, 0]


def scanned_steps(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    """`tf.scan` over steps, from zeros for each row."""
    first = tf.zeros_like(user[:, 0])
    states = tf.scan(lambda h, x: tf.tanh(h @ WEIGHTS + x), tf.transpose(user, [1, 0, 2]), first)
    return states[-1] * item[:, 0]


def steps_of_both(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    """A loop over steps of candidates that reads the request in each."""
    state = user[:, 0]
    states = tf.scan(
        lambda h, x: tf.tanh(h @ WEIGHTS + x + state),
        tf.transpose(item, [1, 0, 2]),
        tf.zeros([tf.shape(item)[0], DIM]),
    )
    return states[-1]


def nested(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    """A branch in a loop."""

    def body(k: tf.Tensor, x: tf.Tensor) -> Any:
        return k + 1, tf.cond(k > 1, lambda: x * 2.0, lambda: x @ WEIGHTS)

    found = tf.while_loop(lambda k, _: k < 4, body, (tf.constant(0), user[:, 1]))[1]
    return found + item[:, 0]


@tf.function
def inner(x: tf.Tensor) -> tf.Tensor:
    return tf.tanh(x @ WEIGHTS)


def called(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    """A function that a body calls."""
    found = tf.while_loop(lambda k, _: k < 2, lambda k, x: (k + 1, inner(x)), (0, user[:, 0]))
    return found[1] * item[:, 0]


FUNCTIONS = [conditional, switched, repeated_products, mapped_steps, scanned_steps]
FUNCTIONS += [steps_of_both, nested, called]


@pytest.mark.parametrize("score", FUNCTIONS, ids=lambda one: one.__name__)
def test_functions(score: Score, tmp_path: Path) -> None:
    stock = save_function(score, tmp_path / "stock")
    check(stock, tmp_path / "ranked", exact=False)
    check(stock, tmp_path / "exact", exact=True)


def mapped_rows(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    return tf.map_fn(lambda x: tf.reduce_sum(x, 0), user) * item[:, 0]


def scanned_rows(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    return tf.scan(lambda h, x: h + x, item[:, 0]) * user[:, 0]


def carried_from_row_to_row(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    rows = tf.shape(item)[0]
    total = tf.while_loop(
        lambda k, _: k < rows, lambda k, x: (k + 1, x + item[k, 0]), (0, tf.zeros([DIM]))
    )[1]
    return user[:, 0] + total


def decided_by_rows(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    return tf.cond(tf.reduce_any(item > 1.0), lambda: user[:, 0], lambda: user[:, 1]) * item[:, 0]


def decided_by_their_number(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    few = tf.shape(item)[0] < 4
    return tf.cond(few, lambda: user[:, 0], lambda: user[:, 1]) * item[:, 0]


def as_many_rounds_as_rows(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    rows = tf.shape(item)[0]
    found = tf.while_loop(lambda k, _: k < rows, lambda k, x: (k + 1, x * 1.1), (0, user[:, 0]))
    return found[1] * item[:, 0]


def as_many_rounds_as_values_say(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    most = tf.reduce_max(item)
    found = tf.while_loop(lambda k, _: k < most, lambda k, x: (k + 1, x * 1.1), (0.0, user[:, 0]))
    return found[1] * item[:, 0]


def summed_in_a_body(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    found = tf.while_loop(
        lambda k, _: k < 2,
        lambda k, x: (k + 1, x - tf.reduce_mean(x, 0, keepdims=True)),
        (0, item[:, 0]),
    )
    return found[1] * user[:, 0]


def reversed_in_a_branch(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    test = tf.norm(tf.constant(WEIGHTS)) > 1.0
    return tf.cond(test, lambda: item[::-1, 0], lambda: item[:, 0]) * user[:, 0]


def rows_on_another_axis(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    square = tf.matmul(item[:, 0], item[:, 1], transpose_b=True)
    found = tf.while_loop(
        lambda k, _: k < 2, lambda k, x: (k + 1, tf.transpose(x)), (tf.constant(0), square)
    )[1]
    return tf.reduce_sum(found, 1, keepdims=True) * user[:, 0]


def other_rows_each_round(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    found = tf.while_loop(
        lambda k, _: k < 3, lambda k, x: (k + 1, tf.roll(x, 1, 0)), (0, item[:, 0])
    )
    return found[1] * user[:, 0]


def list_of_rows(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    found = tf.TensorArray(tf.float32, tf.shape(item)[0]).unstack(item[:, 0])
    return user[:, 0] * found.read(0)


def random_in_a_body(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    found = tf.while_loop(
        lambda k, _: k < 3,
        lambda k, x: (k + 1, x + tf.random.uniform(tf.shape(x))),
        (0, item[:, 0]),
    )
    return found[1] * user[:, 0]


MIXING: Mapping[Score, str] = {
    mapped_rows: "goes on by",
    scanned_rows: "goes on by",
    carried_from_row_to_row: "rows",
    decided_by_rows: "If decides by",
    decided_by_their_number: "If decides by",
    as_many_rounds_as_rows: "goes on by",
    as_many_rounds_as_values_say: "goes on by",
    summed_in_a_body: "Mean goes over the rows",
    reversed_in_a_branch: "StridedSlice takes some of the rows",
    rows_on_another_axis: "rows",
    other_rows_each_round: "Roll goes over the rows",
    list_of_rows: "makes an element of each row",
    random_in_a_body: "there is no rule for RandomUniform",
}


@pytest.mark.parametrize("score", MIXING, ids=lambda one: one.__name__)
def test_what_mixes_rows_is_refused(score: Score, tmp_path: Path) -> None:
    stock = save_function(score, tmp_path / "stock")
    with pytest.raises(ModelError, match=MIXING[score]):
        fuse_saved_model(stock, tmp_path / "ranked", target="stock", request_inputs=["user"])
    assert not (tmp_path / "ranked").exists()
