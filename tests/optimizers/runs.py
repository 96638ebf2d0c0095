"""Training of a table and a dense variable by optimizers of every kind, with gradients given."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tf_keras

from fusion.optimizers import LazyAdamOptimizer, keras3
from fusion.optimizers import tf_keras as fusion_tf_keras

Array = Any
v1 = tf.compat.v1

ROWS, DIM = 20, 3
RATE, EPSILON = 0.1, 1e-7

_RNG = np.random.default_rng(0)
TABLE = _RNG.standard_normal((ROWS, DIM)).astype(np.float32)
KERNEL = _RNG.standard_normal((DIM,)).astype(np.float32)


@dataclass(frozen=True)
class Pair:
    """A row-sparse optimizer, the stock one that it stands for, and arguments for both.

    `legacy` is a stock optimizer that moves the rows of the batch alone, by the same rule.
    """

    ours: Any
    stock: Any
    options: dict[str, Any]
    legacy: Any = None

    def make(self, which: str, rate: Any = RATE, **arguments: Any) -> Any:
        """The "lazy", the "stock" or the "legacy" optimizer."""
        kind = {"lazy": self.ours, "stock": self.stock, "legacy": self.legacy}[which]
        return kind(rate, **{**self.options, **arguments})


ADAM = {"epsilon": EPSILON}
MOMENTUM = {"momentum": 0.9}
NESTEROV = {**MOMENTUM, "nesterov": True}
FTRL = {
    "l1_regularization_strength": 0.001,
    "l2_regularization_strength": 0.002,
    "l2_shrinkage_regularization_strength": 0.003,
    "beta": 0.004,
}
_k3, _k2, _legacy = keras.optimizers, tf_keras.optimizers, tf_keras.optimizers.legacy
#: By "<family> <rule>".
OPTIMIZERS: dict[str, Pair] = {
    "v1 adam": Pair(LazyAdamOptimizer, v1.train.AdamOptimizer, ADAM),
    "keras3 adam": Pair(keras3.LazyAdam, _k3.Adam, ADAM),
    "keras3 momentum": Pair(keras3.LazyMomentum, _k3.SGD, MOMENTUM, _legacy.SGD),
    "keras3 nesterov": Pair(keras3.LazyMomentum, _k3.SGD, NESTEROV, _legacy.SGD),
    "keras3 ftrl": Pair(keras3.LazyFtrl, _k3.Ftrl, FTRL, _legacy.Ftrl),
    "keras3 adagrad": Pair(keras3.Adagrad, _k3.Adagrad, {}),
    "tf_keras adam": Pair(fusion_tf_keras.LazyAdam, _k2.Adam, ADAM),
    "tf_keras momentum": Pair(fusion_tf_keras.LazyMomentum, _k2.SGD, MOMENTUM, _legacy.SGD),
    "tf_keras nesterov": Pair(fusion_tf_keras.LazyMomentum, _k2.SGD, NESTEROV, _legacy.SGD),
    "tf_keras ftrl": Pair(fusion_tf_keras.LazyFtrl, _k2.Ftrl, FTRL, _legacy.Ftrl),
}
#: Those of Keras, each with one set of arguments.
KERAS = [name for name in OPTIMIZERS if name != "v1 adam" and not name.endswith("nesterov")]
#: Optimizer variables: their name, and the attribute of a Keras optimizer that lists them.
SLOTS = {
    "m": "_momentums",
    "v": "_velocities",
    "vhat": "_velocity_hats",
    "momentum": "momentums",
    "accumulator": "_accumulators",
    "linear": "_linears",
}


@dataclass(frozen=True)
class Batch:
    """Gradients: of rows `ids` [n] of the table, `values` [n, DIM], and of the kernel [DIM]."""

    ids: Array
    values: Array
    kernel: Array

    @classmethod
    def random(cls, ids: Any, seed: int) -> Batch:
        rng = np.random.default_rng(seed)
        values = rng.standard_normal((len(ids), DIM)).astype(np.float32)
        return cls(np.array(ids, np.int64), values, rng.standard_normal(DIM).astype(np.float32))


#: Batches with repeated ids, one without any, and rows that never occur (17 and above).
BATCHES = [
    Batch.random([3, 5, 3, 0, 3], 1),
    Batch.random([5, 16, 2], 2),
    Batch.random([], 3),
    Batch.random([0, 0], 4),
    Batch.random([*range(17), 4], 5),
    Batch.random([3], 6),
]
#: Every row in every batch, once, in some order.
FULL_BATCHES = [Batch.random(np.random.default_rng(k).permutation(ROWS), k) for k in range(6)]


@dataclass(frozen=True)
class State:
    """What training left: the variables, and the optimizer variables of both."""

    table: Array
    kernel: Array
    moments: dict[str, Array]


def slices(values: tf.Tensor, ids: tf.Tensor) -> tf.IndexedSlices:
    """A gradient of the table."""
    return tf.IndexedSlices(values, ids, tf.constant([ROWS, DIM]))


def train_session(optimizer: Any, batches: Sequence[Batch], use_resource: bool) -> State:
    """Training of resource or reference variables in a v1 session."""
    with tf.Graph().as_default(), v1.Session() as session:
        table = v1.get_variable("table", initializer=TABLE, use_resource=use_resource)
        kernel = v1.get_variable("kernel", initializer=KERNEL, use_resource=use_resource)
        feeds = [
            v1.placeholder(tf.int64, [None]),
            v1.placeholder(tf.float32, [None, DIM]),
            v1.placeholder(tf.float32, [DIM]),
        ]
        gradients = [(slices(feeds[1], feeds[0]), table), (feeds[2], kernel)]
        step = optimizer.apply_gradients(gradients)
        session.run(v1.global_variables_initializer())
        for batch in batches:
            given = [batch.ids, batch.values, batch.kernel]
            session.run(step, dict(zip(feeds, given, strict=True)))
        return State(*session.run((table, kernel, moments(optimizer, table, kernel))))


def moments(optimizer: Any, table: Any, kernel: Any) -> dict[str, Any]:
    """The optimizer variables of both variables, by "<name> of <variable>"."""
    both = {"table": table, "kernel": kernel}
    if hasattr(optimizer, "get_slot_names"):  # v1 and legacy
        names = optimizer.get_slot_names()
        slots = {name: [optimizer.get_slot(v, name) for v in both.values()] for name in names}
    else:
        listed = {name: getattr(optimizer, attribute, None) for name, attribute in SLOTS.items()}
        slots = {name: variables for name, variables in listed.items() if variables}
    return {
        f"{name} of {of}": variable.value if isinstance(variable, keras.Variable) else variable
        for name, variables in slots.items()
        for of, variable in zip(both, variables, strict=True)
    }


def train_eager(optimizer: Any, batches: Sequence[Batch], compiled: bool = False) -> State:
    """Training of TF2 variables, if `compiled` in a tf.function."""
    table, kernel = tf.Variable(TABLE), tf.Variable(KERNEL)
    train_variables(optimizer, table, kernel, batches, compiled)
    found = moments(optimizer, table, kernel)
    return State(table.numpy(), kernel.numpy(), {name: m.numpy() for name, m in found.items()})


def train_variables(
    optimizer: Any, table: Any, kernel: Any, batches: Sequence[Batch], compiled: bool = False
) -> None:
    """Applies the gradients of the batches to two variables."""
    run = step_function(optimizer, table, kernel)
    if compiled:
        run = compile_step(run)
    for batch in batches:
        run(tf.constant(batch.ids), tf.constant(batch.values), tf.constant(batch.kernel))


def step_function(optimizer: Any, table: Any, kernel: Any) -> Callable[..., None]:
    """The function that applies one batch."""
    if hasattr(optimizer, "build"):
        optimizer.build([table, kernel])

    def step(ids: tf.Tensor, of_rows: tf.Tensor, of_kernel: tf.Tensor) -> None:
        optimizer.apply_gradients([(slices(of_rows, ids), table), (of_kernel, kernel)])

    return step


def compile_step(step: Callable[..., None]) -> Any:
    signature = [
        tf.TensorSpec([None], tf.int64),
        tf.TensorSpec([None, DIM]),
        tf.TensorSpec([DIM]),
    ]
    return tf.function(step, input_signature=signature)


#: Each way of training: the family of the optimizer, and a function of an optimizer and batches.
WAYS: dict[str, tuple[str, Callable[[Any, Sequence[Batch]], State]]] = {
    "v1 resource": ("v1", functools.partial(train_session, use_resource=True)),
    "v1 reference": ("v1", functools.partial(train_session, use_resource=False)),
    "v1 eager": ("v1", train_eager),
    "keras3 eager": ("keras3", train_eager),
    "keras3 function": ("keras3", functools.partial(train_eager, compiled=True)),
    "tf_keras eager": ("tf_keras", train_eager),
    "tf_keras function": ("tf_keras", functools.partial(train_eager, compiled=True)),
}


def train(
    way: str, which: str, batches: Sequence[Batch], rule: str = "adam", **arguments: Any
) -> State:
    """Trains one of `WAYS` with the "lazy", "stock" or "legacy" optimizer of its family."""
    family, run = WAYS[way]
    return run(OPTIMIZERS[f"{family} {rule}"].make(which, **arguments), batches)


#: Each optimizer in each way of its family.
CASES: list[tuple[str, str]] = [
    (way, name.partition(" ")[2])
    for way, (family, _) in WAYS.items()
    for name in OPTIMIZERS
    if name.startswith(f"{family} ")
]


def assert_same(states: Sequence[State]) -> None:
    first, second = map(dataclasses.asdict, states)
    tf.nest.map_structure(np.testing.assert_array_equal, first, second)


def assert_close(states: Sequence[State]) -> None:
    first, second = map(dataclasses.asdict, states)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    tf.nest.map_structure(close, first, second)


def untouched(batches: Sequence[Batch]) -> Array:
    """The rows of the table that no batch has."""
    return np.setdiff1d(np.arange(ROWS), np.concatenate([batch.ids for batch in batches]))
