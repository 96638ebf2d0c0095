"""Trains a model of sharded tables; a program, which prints its losses.

    python -m tests.distribute.training OPTIMIZER STEPS [DEVICES]

A process of its own: one without `TF_CONFIG` has so many devices, one with it is a worker.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tf_keras

import fusion
from fusion.distribute import ShardedTable
from fusion.optimizers import keras3
from fusion.optimizers import tf_keras as legacy

BATCH = 24
#: Rows and dimensions; some tables are smaller than there are replicas.
SHAPES = [(100, 4), (37, 8), (1000, 4), (3, 4), (64, 16), (1, 8)]
COMBINERS = ["sum", "mean", "sqrtn"]
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.3),
    "adagrad": lambda: keras.optimizers.Adagrad(0.3),
    "lazy_adam": lambda: keras3.LazyAdam(0.01),
    "tf_keras.sgd": lambda: tf_keras.optimizers.SGD(0.3),
    "tf_keras.adagrad": lambda: tf_keras.optimizers.Adagrad(0.3),
    "tf_keras.lazy_adam": lambda: legacy.LazyAdam(0.01),
}


def strategy_of(devices: int) -> Any:
    """The strategy of this process."""
    if "TF_CONFIG" in os.environ:
        return tf.distribute.MultiWorkerMirroredStrategy()
    if devices == 1:
        return tf.distribute.get_strategy()
    (cpu,) = tf.config.list_physical_devices("CPU")
    configuration = [tf.config.LogicalDeviceConfiguration()] * devices
    tf.config.set_logical_device_configuration(cpu, configuration)
    return tf.distribute.MirroredStrategy([f"CPU:{k}" for k in range(devices)])


def mode_of(number: int, replicas: int) -> str:
    """Every third table is on one replica."""
    return f"localized:{number % replicas}" if number % 3 == 2 else "distributed"


class Model:
    """Tables, a dense part behind them, and an optimizer."""

    def __init__(self, strategy: Any, optimizer: Callable[[], Any]) -> None:
        self.strategy, replicas = strategy, strategy.num_replicas_in_sync
        with strategy.scope():
            self.tables = [
                ShardedTable(rows, dim, mode_of(k, replicas), name=f"table_{k}")
                for k, (rows, dim) in enumerate(SHAPES)
            ]
            width = sum(dim for _, dim in SHAPES)
            weights = tf.random.stateless_normal([width, 1], [1, 2]) / 4
            self.dense = tf.Variable(weights, name="dense")
            self.optimizer = optimizer()
            self.optimizer.build(self.variables)  # as stock's has to be, outside of functions
        self.step = tf.function(self._step, reduce_retracing=True)

    @property
    def variables(self) -> list[Any]:
        return [*(x for t in self.tables for x in t.shards.values()), self.dense]

    def _in_replica(self, ids: Any, weights: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        combiners = [COMBINERS[k % 3] for k in range(len(SHAPES))]
        given = [ids[k].with_values(weights[k]) if k % 2 else None for k in range(len(SHAPES))]
        with tf.GradientTape() as tape:
            embedded = fusion.lookup_sparse(self.tables, ids, given, combiners)
            outputs = tf.matmul(tf.concat(embedded, 1), self.dense)[:, 0]
            loss = tf.reduce_sum((outputs - labels) ** 2) / BATCH
        gradients = tape.gradient(loss, self.variables)
        pairs = [
            pair for pair in zip(gradients, self.variables, strict=True) if pair[0] is not None
        ]
        self.optimizer.apply_gradients(pairs)
        return loss

    def _step(self, *batch: Any) -> tf.Tensor:
        losses = self.strategy.run(self._in_replica, batch)
        return self.strategy.reduce("SUM", losses, axis=None)

    def batch(self, step: int) -> Any:
        """What each replica has of a batch: rows that are not divided evenly."""
        rng = np.random.default_rng(step)
        lengths = rng.integers(0, 4, (len(SHAPES), BATCH))
        ids = [[rng.integers(0, rows, n) for n in lengths[k]] for k, (rows, _) in enumerate(SHAPES)]
        weights = [[rng.random(n) + 0.5 for n in some] for some in lengths]
        labels = rng.standard_normal(BATCH).astype(np.float32)
        count = self.strategy.num_replicas_in_sync

        def of_replica(context: Any) -> Any:
            begin = BATCH * context.replica_id_in_sync_group // count
            end = BATCH * (context.replica_id_in_sync_group + 1) // count
            here = [tf.ragged.constant([[*x] for x in some[begin:end]], tf.int64) for some in ids]
            values = [
                tf.constant(np.concatenate([*some[begin:end]]), tf.float32) for some in weights
            ]
            return here, values, tf.constant(labels[begin:end])

        if count == 1:
            return of_replica(tf.distribute.get_replica_context())
        make = self.strategy.experimental_distribute_values_from_function
        parts: dict[Any, Any] = {}

        def part(context: Any) -> Any:
            replica = context.replica_id_in_sync_group
            parts.setdefault(replica, of_replica(context))
            return parts[replica]

        return (
            [make(lambda context, k=k: part(context)[0][k]) for k in range(len(SHAPES))],
            [make(lambda context, k=k: part(context)[1][k]) for k in range(len(SHAPES))],
            make(lambda context: part(context)[2]),
        )

    def train(self, steps: range) -> list[float]:
        """The losses of steps."""
        return [float(self.step(*self.batch(step))) for step in steps]


def main() -> None:
    name, steps, *devices = sys.argv[1:]
    strategy = strategy_of(int(devices[0]) if devices else 1)
    model = Model(strategy, OPTIMIZERS[name])
    losses = model.train(range(int(steps)))
    peers = model.tables[0].replicas.peers
    sent = None if peers is None else peers.sent.numpy().tolist()
    print(json.dumps({"losses": losses, "sent": sent}), flush=True)


if __name__ == "__main__":
    main()
