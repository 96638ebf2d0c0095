"""Training of a table and a dense variable by Adams of every kind, with gradients given."""

from __future__ import annotations

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

#: (the row-sparse one, the stock one) of each family.
OPTIMIZERS: dict[str, tuple[Any, Any]] = {
    "v1": (LazyAdamOptimizer, v1.train.AdamOptimizer),
    "keras3": (keras3.LazyAdam, keras.optimizers.Adam),
    "tf_keras": (fusion_tf_keras.LazyAdam, tf_keras.optimizers.Adam),
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
    """What training left: the variables, and the moments of the table and of the kernel."""

    table: Array
    kernel: Array
    moments: dict[str, Array]


def _slices(values: tf.Tensor, ids: tf.Tensor) -> tf.IndexedSlices:
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
        gradients = [(_slices(feeds[1], feeds[0]), table), (feeds[2], kernel)]
        step = optimizer.apply_gradients(gradients)
        session.run(v1.global_variables_initializer())
        for batch in batches:
            given = [batch.ids, batch.values, batch.kernel]
            session.run(step, dict(zip(feeds, given, strict=True)))
        return State(*session.run((table, kernel, moments(optimizer, table, kernel))))


def moments(optimizer: Any, table: Any, kernel: Any) -> dict[str, Any]:
    """The optimizer variables of both variables, by "<name> of <variable>"."""
    both = {"table": table, "kernel": kernel}
    if isinstance(optimizer, v1.train.Optimizer):
        slots = {name: [optimizer.get_slot(v, name) for v in both.values()] for name in ("m", "v")}
    else:
        slots = {"m": optimizer._momentums, "v": optimizer._velocities}
        if optimizer.amsgrad:
            slots["vhat"] = optimizer._velocity_hats
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
        optimizer.apply_gradients([(_slices(of_rows, ids), table), (of_kernel, kernel)])

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


def train(way: str, which: str, batches: Sequence[Batch], **arguments: Any) -> State:
    """Trains one of `WAYS` with the "lazy" or the "stock" optimizer of its family."""
    family, run = WAYS[way]
    optimizer = OPTIMIZERS[family][which == "stock"]
    return run(optimizer(RATE, **{"epsilon": EPSILON, **arguments}), batches)
