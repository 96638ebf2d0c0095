"""Models of sharded tables, and what they do in a strategy; see `program`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tf_keras

import fusion
from fusion.distribute import ShardedTable
from fusion.keras import tf_keras as slots_of_tf_keras
from fusion.optimizers import keras3
from fusion.optimizers import tf_keras as legacy

#: Makes a table of a name.
Make = Callable[[str], Any]

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
    "tf_keras.legacy": lambda: tf_keras.optimizers.legacy.Adagrad(0.3),
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


def dtype_of(number: int) -> tf.DType:
    """Every fourth table has another one."""
    return tf.float64 if number % 4 == 1 else tf.float32


class Model:
    """Tables, a dense part behind them, and an optimizer.

    Attributes:
      twice: the numbers of the tables that are looked up by two lookups in a step.
    """

    twice: tuple[int, ...] = (0, 1)

    def __init__(self, strategy: Any, optimizer: Callable[[], Any], tables: int) -> None:
        self.strategy, replicas = strategy, strategy.num_replicas_in_sync
        self._shapes = [SHAPES[k % len(SHAPES)] for k in range(tables)]
        with strategy.scope():
            self.tables = [
                self._table(k, rows, dim, replicas) for k, (rows, dim) in enumerate(self._shapes)
            ]
            width = sum(dim for _, dim in self._shapes)
            weights = tf.random.stateless_normal([width, 1], [1, 2]) / 4
            self.dense = tf.Variable(weights, name="dense")
            self.optimizer = optimizer()
            if hasattr(self.optimizer, "build"):  # as stock's has to be, outside of functions
                self.optimizer.build(self.variables)
        self.step = tf.function(self._step, autograph=False, reduce_retracing=True)

    def _table(self, number: int, rows: int, dim: int, replicas: int) -> Any:
        mode, dtype = mode_of(number, replicas), dtype_of(number)
        return ShardedTable(rows, dim, mode, dtype=dtype, name=f"table_{number}")

    @staticmethod
    def _variables_of(table: Any) -> list[Any]:
        return [*table.shards.values()]

    @property
    def variables(self) -> list[Any]:
        return [*(x for table in self.tables for x in self._variables_of(table)), self.dense]

    def checkpoint(self) -> Any:
        """What saves all of it."""
        return tf.train.Checkpoint(tables=self.tables, dense=self.dense, optimizer=self.optimizer)

    def _in_replica(self, ids: Any, weights: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        combiners = [COMBINERS[k % 3] for k in range(len(self._shapes))]
        given = [
            ids[k].with_values(tf.cast(weights[k], dtype_of(k))) if k % 2 else None
            for k in range(len(self._shapes))
        ]
        with tf.GradientTape() as tape:
            embedded = fusion.lookup_sparse(self.tables, ids, given, combiners)
            # Another exchange of the same step, for tables that are looked up twice.
            twice = [self.tables[k] for k in self.twice], [ids[k] for k in self.twice]
            again = fusion.lookup_sparse(*twice, combiners="sum")
            parts = [tf.cast(part, tf.float32) for part in embedded]
            outputs = tf.matmul(tf.concat(parts, 1), self.dense)[:, 0]
            for part in again:
                outputs += 0.1 * tf.reduce_sum(tf.cast(part, tf.float32), 1)
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

    def min_bytes(self, steps: range) -> int:
        """What this process has to send for steps: ids, rows, gradients, counts."""
        replicas = self.strategy.num_replicas_in_sync
        (rank,) = self.tables[-1].replicas.devices
        counts = (len(self.tables) + 3) + (len(self.twice) + 3)  # of the two lookups
        total = len(steps) * (replicas - 1) * 4 * counts
        for step in steps:
            for k, some in enumerate(self._numbers(step)[0]):
                row_bytes = dtype_of(k).size * self._shapes[k][1]
                id_bytes, times = self._id_bytes(k), 2 if k in self.twice else 1
                for replica in range(replicas):
                    begin, end = (BATCH * r // replicas for r in (replica, replica + 1))
                    wanted = {int(i) for ids in some[begin:end] for i in ids}
                    owned = {i for i in wanted if self._owner(k, i) == rank}
                    if replica == rank:
                        total += times * len(wanted - owned) * (id_bytes + row_bytes)
                    else:
                        total += times * len(owned) * row_bytes
        return total

    def _id_bytes(self, number: int) -> int:
        del number
        return 4

    def _owner(self, number: int, row: int) -> int:
        layout = self.tables[number].layout
        return row % layout.count if layout.owner is None else layout.owner

    def _numbers(self, step: int) -> tuple[Any, Any, Any]:
        """The ids, weights and labels of a batch."""
        rng = np.random.default_rng(step)
        lengths = rng.integers(0, 4, (len(self._shapes), BATCH))
        ids = [
            [rng.integers(0, rows, n) for n in lengths[k]]
            for k, (rows, _) in enumerate(self._shapes)
        ]
        weights = [[rng.random(n) + 0.5 for n in some] for some in lengths]
        return ids, weights, rng.standard_normal(BATCH).astype(np.float32)

    def batch(self, step: int) -> Any:
        """What each replica has of a batch: rows that are not divided evenly."""
        ids, weights, labels = self._numbers(step)
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
            [make(lambda context, k=k: part(context)[0][k]) for k in range(len(self._shapes))],
            [make(lambda context, k=k: part(context)[1][k]) for k in range(len(self._shapes))],
            make(lambda context: part(context)[2]),
        )

    def train(self, steps: range) -> list[float]:
        """The losses of steps."""
        return [float(self.step(*self.batch(step))) for step in steps]


def work(make: Callable[[], Model], steps: int, saved: Path, restored: Path) -> dict[str, Any]:
    """The losses of a model, those of one that is restored, and what was sent for the first.

    Args:
      make: gives both.
      steps: how many there are before it is saved, and after it.
      saved, restored: the paths of checkpoints, without the number of the process.
    """
    model = make()
    peers = model.tables[-1].replicas.peers
    before = None if peers is None else peers.sent.numpy()
    losses = model.train(range(steps))
    sent = None
    if peers is not None:
        sent = [*map(int, peers.sent.numpy() - before), model.min_bytes(range(steps))]
    # Each process writes; the first one's files are those to be restored.
    rank = 0 if peers is None else peers.rank
    model.checkpoint().write(f"{saved}-{rank}")
    losses += model.train(range(steps, 2 * steps))
    other = make()
    other.train(range(100, 102))  # rows and slots are not as they were
    other.checkpoint().read(f"{restored}-0").assert_existing_objects_matched()
    again = other.train(range(steps, 2 * steps))
    return {"losses": losses, "restored": again, "sent": sent}


def ask_for_a_wrong_id(strategy: Any, make: Make, bad: int) -> str:
    """What all replicas are told if the last one asks for a row that is not there."""
    with strategy.scope():
        table = make("small")
    last = strategy.num_replicas_in_sync - 1

    @tf.function
    def step(wrong: tf.Tensor) -> Any:
        def look_up() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            is_last = tf.equal(context.replica_id_in_sync_group, last)
            ids = tf.RaggedTensor.from_row_splits([tf.where(is_last, wrong, 3)], [0, 1])
            return fusion.lookup_sparse(table, ids)

        return strategy.run(look_up)

    first = strategy.experimental_local_results(step(tf.constant(7)))[0]
    try:
        step(tf.constant(bad))
    except tf.errors.InvalidArgumentError as error:
        message = error.message
    else:
        message = ""
    again = strategy.experimental_local_results(step(tf.constant(7)))[0]
    np.testing.assert_array_equal(first, again)
    return message


def fit(strategy: Any) -> list[float]:
    """The losses of epochs of tf_keras' `fit`."""
    keras = tf_keras
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 50, (48, 3, 2))
    keys[rng.random(keys.shape) < 0.1] = -1
    labels = rng.random((48, 1)).astype(np.float32)
    initializer = keras.initializers.RandomUniform(seed=3)
    glorot = keras.initializers.GlorotUniform(seed=1)
    options = {"slot_num": 3, "embeddings_initializer": initializer}
    with strategy.scope():
        inputs = keras.Input((3, 2), dtype="int64")
        parts = [
            slots_of_tf_keras.SlotEmbedding(50, 4, mode="distributed", **options)(inputs),
            slots_of_tf_keras.AllToAllDenseEmbedding(50, 4, mode="localized:0", **options)(inputs),
        ]
        flat = keras.layers.Concatenate()([keras.layers.Flatten()(part) for part in parts])
        model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer=glorot)(flat))
        model.compile(keras.optimizers.Adagrad(0.5), "mse")
    data = tf.data.Dataset.from_tensor_slices((keys, labels)).batch(12)
    losses: list[float] = model.fit(data, epochs=3, verbose=0, shuffle=False).history["loss"]
    return losses


def is_refused(strategy: Any, make: Make) -> list[str]:
    """What is said of optimizers that would change the numbers."""
    v1, said = tf.compat.v1.train, []
    with strategy.scope():
        table = make("refused")
        variables = [*table.shards.values()]
        optimizers = [
            v1.GradientDescentOptimizer(0.1),
            keras.optimizers.SGD(0.1, global_clipnorm=1.0),
            tf_keras.optimizers.Adam(0.1, clipnorm=1.0),
            keras.optimizers.Adam(0.1, clipvalue=1.0),
            keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
            keras.optimizers.Adafactor(0.1),
        ]
        if strategy.num_replicas_in_sync == 1:
            optimizers.pop()  # Keras makes none of its variables for one with such a name
        for optimizer in optimizers:
            try:
                if hasattr(optimizer, "build"):
                    optimizer.build(variables)
                else:
                    optimizer.apply_gradients([(tf.zeros_like(v), v) for v in variables])
            except NotImplementedError as error:
                said.append(str(error))
    return said


def look_up_alone(strategy: Any, make: Make) -> str:
    """What is said of a lookup outside of the strategy's functions, if it is refused."""
    with strategy.scope():
        table = make("alone")
    try:
        fusion.lookup_sparse(table, tf.ragged.constant([[1, 2]]))
    except ValueError as error:
        return str(error)
    return ""


def is_exported(strategy: Any, folder: str, make: Make) -> bool:
    """Whether a SavedModel has the rows of all shards; several processes refuse it."""
    with strategy.scope():
        module = tf.Module()
        module.table = make("exported")

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int64, 1)])
    def sums(ids: tf.RaggedTensor) -> tf.Tensor:
        return fusion.lookup_sparse(module.table, ids)

    module.sums = sums
    path = f"{folder}/{type(module.table).__name__}-{os.getpid()}"
    try:
        tf.saved_model.save(module, path)
    except NotImplementedError:
        return False
    loaded = tf.saved_model.load(path)
    ids = tf.ragged.constant([[1, 2], [9]], tf.int64)
    np.testing.assert_array_equal(loaded.sums(ids), sums(ids))
    return True


def made(name: str) -> ShardedTable:
    """A small one."""
    return ShardedTable(10, 2, name=name)
