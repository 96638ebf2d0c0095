"""A small wide-and-deep model of lookups and dense variables, trained on the same data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests import reference, tables

Array = Any
Lookup = Callable[..., tf.Tensor]
v1 = tf.compat.v1

ROWS, DIM, BATCH, STEPS = 30, 4, 12, 5

_RNG = np.random.default_rng(0)
START = {
    name: _RNG.standard_normal(shape).astype(np.float32)
    for name, shape in {
        "table": (ROWS, DIM),
        "wide": (ROWS, 1),
        "kernel": (2 * DIM, 3),
        "bias": (3,),
    }.items()
}
TABLES = ("table", "wide")

#: Of one batch: two columns of sparse ids and the labels.
SIGNATURE = [
    *[tf.TensorSpec([None, 2], tf.int64), tf.TensorSpec([None], tf.int64)],
    tf.TensorSpec([2], tf.int64),
    *[tf.TensorSpec([None, 2], tf.int64), tf.TensorSpec([None], tf.int64)],
    tf.TensorSpec([2], tf.int64),
    tf.TensorSpec([None], tf.float32),
]


def batches(steps: int = STEPS) -> list[list[Array]]:
    """Arrays as `SIGNATURE` says; bags up to 13 ids, empty ones and invalid ids."""
    rng = np.random.default_rng(1)
    result = []
    for _ in range(steps):
        columns = [
            reference.sparse(rng, [*rng.integers(0, most, BATCH)], ROWS, negative=0.1)
            for most in (6, 14)
        ]
        ids = [column[key] for column in columns for key in ("indices", "values", "dense_shape")]
        result.append([*ids, rng.integers(0, 2, BATCH).astype(np.float32)])
    return result


def loss_of(lookups: Sequence[Lookup], variables: dict[str, Any], *batch: tf.Tensor) -> tf.Tensor:
    """The loss of a batch; `lookups` are the three that it uses, two of them of one table."""
    first, second = tf.SparseTensor(*batch[:3]), tf.SparseTensor(*batch[3:6])
    deep = [
        lookups[0](variables["table"], first, combiner="mean"),
        lookups[1](variables["table"], second, combiner="sqrtn"),
    ]
    wide = lookups[2](variables["wide"], second, combiner="sum")
    hidden = tf.tanh(tf.concat(deep, 1) @ variables["kernel"] + variables["bias"])
    logits = tf.reduce_sum(hidden, 1) + wide[:, 0]
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(batch[6], logits))


@dataclass(frozen=True)
class Trained:
    """The losses [steps], and the variables by name as they are after training."""

    losses: Array
    variables: dict[str, Array]

    def assert_same(self, other: Trained) -> None:
        """All bits are equal, and every variable has moved."""
        np.testing.assert_array_equal(self.losses, other.losses)
        for name, value in self.variables.items():
            np.testing.assert_array_equal(value, other.variables[name], err_msg=name)
            assert np.any(value != START[name]), name

    def assert_close(self, other: Trained) -> None:
        """Equal but for rounding."""
        np.testing.assert_allclose(self.losses, other.losses, rtol=1e-5)
        for name, value in self.variables.items():
            np.testing.assert_allclose(value, other.variables[name], rtol=1e-5, atol=1e-6)


def train_session(
    lookups: Sequence[Lookup], optimizer: Callable[[Any], Any], kind: str = "variable"
) -> Trained:
    """Trains in a v1 session; `kind` is that of the tables, `optimizer` a function of the step."""
    make = {**tables.EVERYWHERE, **tables.IN_SESSION}[kind]
    with tf.Graph().as_default(), v1.Session() as session:
        variables = {}
        for name, value in START.items():
            with v1.variable_scope(name):
                variables[name] = (
                    make(value, "div")
                    if name in TABLES
                    else v1.get_variable("dense", initializer=value, use_resource=kind != "ref")
                )
        feeds = [v1.placeholder(spec.dtype, spec.shape) for spec in SIGNATURE]
        loss = loss_of(lookups, variables, *feeds)
        count = v1.train.get_or_create_global_step()
        step = optimizer(count).minimize(loss, global_step=count)
        session.run(v1.global_variables_initializer())
        losses = [
            session.run([loss, step], dict(zip(feeds, batch, strict=True)))[0]
            for batch in batches()
        ]
        values = session.run({name: reference.sources(v) for name, v in variables.items()})
        return Trained(np.array(losses), {name: np.concatenate(v) for name, v in values.items()})


def train_keras(lookups: Sequence[Lookup], optimizer: Any, compiled: bool) -> Trained:
    """Trains with an optimizer of Keras 3 or tf_keras, eagerly or in a tf.function."""
    is_keras3 = isinstance(optimizer, keras.optimizers.Optimizer)
    make = keras.Variable if is_keras3 else tf.Variable
    variables = {name: make(value, name=name) for name, value in START.items()}
    inner = {name: v.value if is_keras3 else v for name, v in variables.items()}
    if hasattr(optimizer, "build"):
        optimizer.build(list(variables.values()))

    def step(*batch: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(lookups, inner, *batch)
        gradients = tape.gradient(loss, list(inner.values()))
        optimizer.apply_gradients(list(zip(gradients, variables.values(), strict=True)))
        return loss

    run = tf.function(step, input_signature=SIGNATURE) if compiled else step
    losses = [run(*map(tf.constant, batch)).numpy() for batch in batches()]
    return Trained(np.array(losses), {name: v.numpy() for name, v in inner.items()})
