"""Ways to ask for the gradient of lookups in an embedding variable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fusion.tables import EmbeddingVariable

Way = Callable[[EmbeddingVariable, tf.Tensor], Any]


def loss_of(variable: EmbeddingVariable, keys: tf.Tensor) -> tf.Tensor:
    """A loss whose gradient is a row of 1, 2, ... for each key."""
    rows = variable.embedding_lookup(keys)
    return tf.reduce_sum(rows * tf.range(1.0, variable.dimension + 1))


def eager(variable: EmbeddingVariable, keys: tf.Tensor) -> Any:
    with tf.GradientTape() as tape:
        loss = loss_of(variable, keys)
    return tape.gradient(loss, variable.table)


def eager_persistent(variable: EmbeddingVariable, keys: tf.Tensor) -> Any:
    with tf.GradientTape(persistent=True) as tape:
        loss = loss_of(variable, keys)
    tape.gradient(loss, variable.table)
    return tape.gradient(loss, variable.table)


def tape_in_function(variable: EmbeddingVariable, keys: tf.Tensor) -> Any:
    return tf.function(eager)(variable, keys)


def tape_around_function(variable: EmbeddingVariable, keys: tf.Tensor) -> Any:
    function = tf.function(lambda keys: loss_of(variable, keys))
    with tf.GradientTape() as tape:
        loss = function(keys)
    return tape.gradient(loss, variable.table)


def persistent_tape_around_function(variable: EmbeddingVariable, keys: tf.Tensor) -> Any:
    function = tf.function(lambda keys: loss_of(variable, keys))
    with tf.GradientTape(persistent=True) as tape:
        loss = function(keys)
    tape.gradient(loss, variable.table)
    return tape.gradient(loss, variable.table)


def nested_functions(variable: EmbeddingVariable, keys: tf.Tensor) -> Any:
    inner = tf.function(variable.embedding_lookup)
    outer = tf.function(
        lambda keys: tf.reduce_sum(inner(keys) * tf.range(1.0, variable.dimension + 1))
    )
    with tf.GradientTape() as tape:
        loss = outer(keys)
    return tape.gradient(loss, variable.table)


def tape_between_functions(variable: EmbeddingVariable, keys: tf.Tensor) -> Any:
    inner = tf.function(lambda keys: loss_of(variable, keys))

    @tf.function
    def outer(keys: tf.Tensor) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            loss = inner(keys)
        return tape.gradient(loss, variable.table)

    return outer(keys)


def _conditional(variable: EmbeddingVariable, keys: tf.Tensor) -> tf.Tensor:
    return tf.cond(tf.size(keys) > 0, lambda: loss_of(variable, keys), lambda: tf.constant(0.0))


def tape_around_cond(variable: EmbeddingVariable, keys: tf.Tensor) -> Any:
    @tf.function
    def function(keys: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = _conditional(variable, keys)
        return tape.gradient(loss, variable.table)

    return function(keys)


def tape_around_function_of_cond(variable: EmbeddingVariable, keys: tf.Tensor) -> Any:
    function = tf.function(lambda keys: _conditional(variable, keys))
    with tf.GradientTape() as tape:
        loss = function(keys)
    return tape.gradient(loss, variable.table)


def tape_in_cond(variable: EmbeddingVariable, keys: tf.Tensor) -> Any:
    @tf.function
    def function(keys: tf.Tensor) -> Any:
        none = tf.zeros(variable.table.shape)
        return tf.cond(
            tf.size(keys) > 0,
            lambda: tf.convert_to_tensor(eager(variable, keys)),
            lambda: none,
        )

    return function(keys)


def tape_around_switch_case(variable: EmbeddingVariable, keys: tf.Tensor) -> Any:
    @tf.function
    def function(keys: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            none, some = lambda: tf.constant(0.0), lambda: loss_of(variable, keys)
            loss = tf.switch_case(tf.size(keys) // tf.size(keys), [none, some])
        return tape.gradient(loss, variable.table)

    return function(keys)


def _total(variable: EmbeddingVariable, keys: tf.Tensor) -> tf.Tensor:
    """The loss, key by key."""
    _, total = tf.while_loop(
        lambda k, _: k < tf.size(keys),
        lambda k, total: (k + 1, total + loss_of(variable, keys[k : k + 1])),
        [0, 0.0],
    )
    return total


def tape_around_loop(variable: EmbeddingVariable, keys: tf.Tensor) -> Any:
    @tf.function
    def function(keys: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = _total(variable, keys)
        return tape.gradient(loss, variable.table)

    return function(keys)


def tape_around_function_of_loop(variable: EmbeddingVariable, keys: tf.Tensor) -> Any:
    function = tf.function(lambda keys: _total(variable, keys))
    with tf.GradientTape() as tape:
        loss = function(keys)
    return tape.gradient(loss, variable.table)


def tape_in_loop(variable: EmbeddingVariable, keys: tf.Tensor) -> Any:
    def step(k: tf.Tensor, total: tf.Tensor) -> Any:
        return k + 1, total + tf.convert_to_tensor(eager(variable, keys[k : k + 1]))

    @tf.function
    def function(keys: tf.Tensor) -> Any:
        zeros = tf.zeros(variable.table.shape)
        return tf.while_loop(lambda k, _: k < tf.size(keys), step, [0, zeros])[1]

    return function(keys)


def tape_around_map(variable: EmbeddingVariable, keys: tf.Tensor) -> Any:
    @tf.function
    def function(keys: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            losses = tf.map_fn(
                lambda key: loss_of(variable, key[None]), keys, fn_output_signature=tf.float32
            )
            loss = tf.reduce_sum(losses)
        return tape.gradient(loss, variable.table)

    return function(keys)


def recomputed(variable: EmbeddingVariable, keys: tf.Tensor) -> Any:
    @tf.function
    def function(keys: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.recompute_grad(lambda keys: loss_of(variable, keys))(keys)
        return tape.gradient(loss, variable.table)

    return function(keys)


#: Those whose gradients are `IndexedSlices`, as stock's of a plain table.
SPARSE: dict[str, Way] = {
    way.__name__: way
    for way in (
        *(eager, eager_persistent, tape_in_function, tape_around_function),
        *(persistent_tape_around_function, nested_functions, tape_between_functions),
        *(tape_around_cond, tape_around_function_of_cond, tape_around_switch_case),
    )
}

#: Those whose gradients are dense, as stock's of a plain table.
DENSE: dict[str, Way] = {
    way.__name__: way
    for way in (
        *(tape_in_cond, tape_around_loop, tape_around_function_of_loop, tape_in_loop),
        *(tape_around_map, recomputed),
    )
}
