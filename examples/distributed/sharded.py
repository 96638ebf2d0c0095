"""Trains sharded tables in several processes of this machine, or on several devices of one.

    python -m examples.distributed.sharded mirrored|multi_worker [--tables rows|keys|slots]
        [--replicas 2] [--steps 20] [--columns 26]

Tables are `ShardedTable`s, or of keys `ShardedEmbeddingVariable`s, each column with its own; or one
`ShardedTable` of slots for all columns. It prints the loss of each step, and what a process has of
the tables and sends in a step. The losses are the same for any number of replicas.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

import fusion
from examples.distributed.cluster import CONFIG, tasks
from examples.distributed.model import BATCH, COLUMNS, DIM, HIDDEN, NUMBERS, ROWS, batches
from fusion.distribute import ShardedEmbeddingVariable, ShardedTable


class Model:
    """Sharded tables, two layers and an optimizer; to be made in the scope of a strategy."""

    def __init__(self, optimizer: Any, columns: int, kind: str) -> None:
        glorot = tf.keras.initializers.GlorotUniform
        self.columns, self.kind = columns, kind
        self.tables = [*_tables(columns, kind)]
        self.hidden = tf.Variable(glorot(seed=1)([columns * DIM + NUMBERS, HIDDEN]))
        self.last = tf.Variable(glorot(seed=2)([HIDDEN, 1]))
        shards = [shard for table in self.tables for shard in table.shards.values()]
        self.variables = [*shards, self.hidden, self.last]
        self.optimizer = optimizer
        self.optimizer.build(self.variables)

    def train(self, ids: tf.Tensor, numbers: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Does the step of one replica; returns its part of the loss."""
        with tf.GradientTape() as tape:
            vectors = self._vectors(ids[:, : self.columns])
            hidden = tf.nn.relu(tf.concat([vectors, numbers], 1) @ self.hidden)
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, hidden @ self.last)
            loss = tf.reduce_sum(losses) / BATCH
        gradients = tape.gradient(loss, self.variables)
        self.optimizer.apply_gradients(zip(gradients, self.variables, strict=True))
        return loss

    def _vectors(self, ids: tf.Tensor) -> tf.Tensor:
        """The means of the rows of ids, of which 0 is none, side by side."""
        if self.kind == "slots":
            firsts = ROWS * tf.range(self.columns, dtype=ids.dtype)[:, None]
            keys = tf.where(ids > 0, ids + firsts, -1)
            return tf.reshape(
                fusion.slots_lookup(self.tables[0], keys, "mean"), [-1, self.columns * DIM]
            )
        columns = [tf.sparse.from_dense(ids[:, k]) for k in range(self.columns)]
        # The distinct rows of all tables come in one exchange.
        return tf.concat(fusion.lookup_sparse(self.tables, columns, combiners="mean"), 1)


def _tables(columns: int, kind: str) -> Iterator[Any]:
    if kind == "slots":
        yield ShardedTable(ROWS * columns, DIM, name="slots")
        return
    for k in range(columns):
        if kind == "keys":
            yield ShardedEmbeddingVariable(f"table_{k}", DIM, capacity=2 * ROWS, seed=k)
        else:
            yield ShardedTable(ROWS, DIM, name=f"table_{k}")


def train(steps: int, columns: int, devices: int, kind: str = "rows") -> dict[str, Any]:
    """Trains in this process; returns the losses, and bytes of tables and of a step's messages."""
    strategy: Any = tf.distribute.get_strategy()
    if CONFIG in os.environ:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    elif devices > 1:
        (cpu,) = tf.config.list_physical_devices("CPU")
        configuration = [tf.config.LogicalDeviceConfiguration()] * devices
        tf.config.set_logical_device_configuration(cpu, configuration)
        strategy = tf.distribute.MirroredStrategy([f"CPU:{k}" for k in range(devices)])
    with strategy.scope():
        model = Model(tf.keras.optimizers.Adagrad(0.1), columns, kind)

    @tf.function(reduce_retracing=True)
    def step(batch: Any) -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(model.train, batch), axis=None)

    data = strategy.experimental_distribute_dataset(batches(steps))
    losses = [float(step(batch)) for batch in [*data]]
    shards = [shard for table in model.tables for shard in table.shards.values()]
    peers = model.tables[0].replicas.peers
    messages, sent = (0, 0) if peers is None else peers.sent.numpy().tolist()
    return {
        "losses": losses,
        "table_bytes": sum(4 * DIM * shard.shape[0] for shard in shards),
        "messages_in_a_step": messages / steps,
        "sent_in_a_step": sent / steps,
    }


def run(
    strategy: str, replicas: int, steps: int, columns: int, kind: str = "rows"
) -> list[dict[str, Any]]:
    """What each process tells.

    Raises:
        RuntimeError: one failed.
    """
    workers = replicas if strategy == "multi_worker" else 0
    order = [sys.executable, "-m", "examples.distributed.sharded", strategy, "--process"]
    order += [f"--steps={steps}", f"--replicas={replicas}", f"--columns={columns}"]
    order += [f"--tables={kind}"]
    started = [
        subprocess.Popen(order, env={**os.environ, **config}, stdout=subprocess.PIPE, text=True)
        for _, config in tasks({"worker": workers} if workers > 1 else {})
    ]
    told = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError(f"a process of {strategy} failed")
    return [json.loads(output.splitlines()[-1]) for output in told]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m examples.distributed.sharded")
    parser.add_argument("strategy", choices=["mirrored", "multi_worker"])
    parser.add_argument("--tables", choices=["rows", "keys", "slots"], default="rows")
    parser.add_argument("--replicas", type=int, default=2, help="devices, or processes")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--columns", type=int, default=COLUMNS, help=f"at most {COLUMNS}")
    parser.add_argument("--process", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.process:
        devices = given.replicas if given.strategy == "mirrored" else 1
        print(json.dumps(train(given.steps, given.columns, devices, given.tables)))
        return
    told = run(given.strategy, given.replicas, given.steps, given.columns, given.tables)
    for number, loss in enumerate(told[0]["losses"]):
        print(f"step {number:3} loss {loss:.6f}")
    for number, one in enumerate(told):
        tables, sent = one["table_bytes"] / 1e3, one["sent_in_a_step"] / 1e3
        messages = f"{one['messages_in_a_step']:.0f} messages"
        print(
            f"process {number}: {tables:,.0f} kB of tables, a step sends {sent:,.1f} kB, {messages}"
        )


if __name__ == "__main__":
    main()
