"""Models of embedding variables, one of which is admitted by a filter, and of a sharded table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import fusion
from fusion.distribute import ShardedEmbeddingVariable
from fusion.tables import EmbeddingVariable, GlobalStepEvict
from tests.distribute import training

OPTIMIZERS = {**training.OPTIMIZERS, "adam": lambda: keras.optimizers.Adam(0.01)}

#: Of each embedding variable; keys are forgotten that two steps have not seen.
OPTIONS: list[dict[str, Any]] = [
    {"admission": 2, "capacity": 150},
    {"eviction": GlobalStepEvict(2), "capacity": 100, "default_value": 0.5},
]


class Model(training.Model):
    """Tables of which the first ones are embedding variables: ordinary ones in one process.

    Of these Keras 3 would take the gradients of two lookups one by one.
    """

    twice = (2,)

    def __init__(self, *arguments: Any) -> None:
        # Lookups, which keys are noted with else, count on in a model that is restored.
        self.number = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.evicted = 0
        super().__init__(*arguments)

    def _table(self, number: int, rows: int, dim: int, replicas: int) -> Any:
        if number >= len(OPTIONS):
            return super()._table(number, rows, dim, replicas)
        kind = EmbeddingVariable if replicas == 1 else ShardedEmbeddingVariable
        dtype = training.dtype_of(number)
        return kind(f"table_{number}", dim, dtype, step=self.number, **OPTIONS[number])

    @staticmethod
    def _variables_of(table: Any) -> list[Any]:
        is_one = isinstance(table, EmbeddingVariable)
        return [table.table] if is_one else training.Model._variables_of(table)

    def _id_bytes(self, number: int) -> int:
        # Of a filtered one it is sent how often a key was seen, too.
        return [12, 8, 4][number]

    def _owner(self, number: int, row: int) -> int:
        is_keyed = number < len(OPTIONS)
        count = self.strategy.num_replicas_in_sync
        return row % 1000 % count if is_keyed else super()._owner(number, row)

    def train(self, steps: range) -> list[float]:
        """The losses of steps, after each of which keys are forgotten."""
        losses = []
        for step in steps:
            self.number.assign(step)
            losses += super().train(range(step, step + 1))
            self.evicted += int(self.tables[1].evict())
        return losses


def work(strategy: Any, name: str, steps: int, saved: Path, restored: Path) -> dict[str, Any]:
    """What `training.work` tells of a model, and how many keys and rows went and are there.

    It is restored itself: to trace another one would take most of the time.
    """
    model = Model(strategy, OPTIMIZERS[name], 3)
    done = training.work(lambda: model, steps, saved, restored)
    sizes = [[model.evicted]]
    for table in model.tables[: len(OPTIONS)]:
        known = table.statistics()
        parts = known if isinstance(known, list) else [known]
        sizes.append([sum(part.keys for part in parts), sum(part.rows for part in parts)])
    return {**done, "sizes": sizes}


def made(name: str) -> Any:
    """A small one."""
    return ShardedEmbeddingVariable(name, 2, capacity=100)


def look_up_in_functions(strategy: Any) -> list[list[float]]:
    """What a replica gets by other lookups than `lookup_sparse`, in one that is initialised."""
    with strategy.scope():
        table = ShardedEmbeddingVariable("values", 2, capacity=100, seed=1)
    (shard, *_) = table.shards.values()
    keys, ids = (
        tf.constant([[5, 4], [-7, 5]], tf.int64),
        tf.ragged.constant([[5, 4], [8]], tf.int64),
    )

    @tf.function
    def step() -> Any:
        def look_up() -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                rows = table.embedding_lookup(keys)
                combined = fusion.fused_embedding_lookup_sparse_v2(table, ids.to_sparse())
                slots = fusion.slots_lookup(table, tf.maximum(keys, 0)[:, tf.newaxis])
                loss = tf.reduce_sum(rows) + tf.reduce_sum(combined) + tf.reduce_sum(slots)
            gradient = tape.gradient(loss, shard)  # which adds rows
            with tf.control_dependencies([gradient.values]):
                return [tf.reshape(found, [-1]) for found in (rows, combined, slots)]

        return strategy.run(look_up)

    step()
    return [
        np.round(strategy.experimental_local_results(found)[0].numpy(), 6).tolist()
        for found in step()
    ]


def export_files(strategy: Any, folder: str) -> list[str]:
    """What several processes say of files that would have the keys of one."""
    with strategy.scope():
        table = made("whole")
    said = []
    path = f"{folder}/{os.getpid()}"
    for write in (table.export, fusion.distribute.dump):
        arguments = [path + "-export"] if write == table.export else [path + "-dump", table]
        try:
            write(*arguments)
        except NotImplementedError as error:
            said.append(str(error))
    return said
