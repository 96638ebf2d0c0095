"""Checks of embedding variables in the replicas of a strategy; a program, which prints what failed.

A process of its own: devices are configured before TensorFlow starts them, and there is one
strategy, for the collective ops of several disturb each other.
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import fusion
from fusion.optimizers import keras3
from fusion.optimizers import tf_keras as legacy
from fusion.tables import CounterFilter, EmbeddingVariable, EmbeddingVariableOption
from tests.embedding_variables.plain import initial_values, keyed, rows_of

v1 = tf.compat.v1

BATCH, KEYS, DIM = 8, 40, 4
RNG = np.random.default_rng(0)
BATCHES = [
    (RNG.integers(0, KEYS, (BATCH, 3)), RNG.random(BATCH).astype(np.float32)) for _ in range(6)
]

#: A lookup of ids [n, 3] in a table, [n, DIM] or [n, 3, DIM].
Lookup = Callable[[Any, tf.Tensor], tf.Tensor]
Strategy = tf.distribute.Strategy


def rows_of_keys(table: Any, ids: tf.Tensor) -> tf.Tensor:
    if isinstance(table, EmbeddingVariable):
        return table.embedding_lookup(ids)
    return tf.nn.embedding_lookup(table, ids)


def sums_v1(table: Any, ids: tf.Tensor) -> tf.Tensor:
    sparse = tf.sparse.from_dense(ids + 1)
    sparse = tf.SparseTensor(sparse.indices, sparse.values - 1, sparse.dense_shape)
    return fusion.fused_embedding_lookup_sparse(table, sparse, combiner="sum")


def means_v2(table: Any, ids: tf.Tensor) -> tf.Tensor:
    sparse = tf.sparse.from_dense(ids + 1)
    sparse = tf.SparseTensor(sparse.indices, sparse.values - 1, sparse.dense_shape)
    return fusion.fused_embedding_lookup_sparse_v2(table, sparse, combiner="mean")


class Model:
    """A table that is trained by a loop."""

    def __init__(
        self,
        strategy: Strategy,
        optimizer: Callable[[], Any],
        lookup: Lookup = rows_of_keys,
        table: Callable[[], Any] = lambda: keyed(DIM, 100),
    ) -> None:
        self.strategy, self._lookup = strategy, lookup
        with strategy.scope():
            self.table, self.optimizer = table(), optimizer()
            if hasattr(self.optimizer, "build"):
                self.optimizer.build([self.variable])
        self.step = tf.function(self._step)

    @property
    def variable(self) -> Any:
        return getattr(self.table, "table", self.table)

    def _in_replica(self, ids: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            rows = self._lookup(self.table, ids)
            outputs = tf.reduce_sum(tf.reshape(rows, [tf.shape(ids)[0], -1]), 1)
            loss = tf.reduce_sum((outputs - labels) ** 2) / BATCH
        gradient = tape.gradient(loss, self.variable)
        assert isinstance(gradient, tf.IndexedSlices)
        self.optimizer.apply_gradients([(gradient, self.variable)])
        return loss

    def _step(self, ids: Any, labels: Any) -> tf.Tensor:
        losses = self.strategy.run(self._in_replica, (ids, labels))
        return self.strategy.reduce("SUM", losses, axis=None)

    def train(self, batches: Any = BATCHES) -> list[float]:
        """The losses of some batches."""
        return [float(self.step(*split(self.strategy, *batch))) for batch in batches]

    def row_values(self) -> Any:
        """The rows of all keys that were trained."""
        return self._lookup_all().numpy()

    def _lookup_all(self) -> tf.Tensor:
        return rows_of_keys(self.table, np.unique([ids for ids, _ in BATCHES]))


def split(strategy: Strategy, *parts: Any) -> list[Any]:
    """A batch as each replica has its part of it."""
    count = strategy.num_replicas_in_sync
    return [
        strategy.experimental_distribute_values_from_function(
            lambda context, part=part: tf.constant(
                np.array_split(part, count)[context.replica_id_in_sync_group]
            )
        )
        if count > 1
        else tf.constant(part)
        for part in parts
    ]


ALONE = tf.distribute.get_strategy()


def close(ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def losses_are_those_of_one_replica(strategy: Strategy) -> None:
    for make in (lambda: keras.optimizers.SGD(0.05), lambda: keras3.LazyAdam(0.05)):
        for lookup in (rows_of_keys, sums_v1, means_v2):
            one, several = Model(ALONE, make, lookup), Model(strategy, make, lookup)
            losses = one.train()
            assert len({*losses}) == len(losses)
            close(several.train(), losses)
            close(several.row_values(), one.row_values())


def losses_are_those_of_mirrored_tables(strategy: Strategy) -> None:
    values = initial_values(DIM, KEYS)
    optimizers = {
        rows_of_keys: (keras.optimizers.SGD, keras3.Adagrad, legacy.LazyAdam),
        means_v2: (keras.optimizers.Adagrad, keras3.LazyAdam, tf_keras.optimizers.SGD),
    }
    for lookup, kinds in optimizers.items():
        for kind in kinds:
            make = lambda: kind(0.05)  # noqa: B023, E731
            plain = Model(strategy, make, lookup, lambda: tf.Variable(values))
            ours = Model(strategy, make, lookup)
            assert ours.train() == plain.train(), (lookup, kind)
            np.testing.assert_array_equal(ours.row_values(), plain.row_values())


def several_optimizers_of_v1(strategy: Strategy) -> None:
    for kind in (v1.train.GradientDescentOptimizer, v1.train.AdamOptimizer, v1.train.AdagradOptimizer):
        one = Model(ALONE, lambda: kind(0.05))  # noqa: B023
        several = Model(strategy, lambda: kind(0.05))  # noqa: B023
        close(several.train(), one.train())
    ours = [Model(of, lambda: fusion.optimizers.LazyAdamOptimizer(0.05)) for of in (ALONE, strategy)]
    close(ours[1].train(), ours[0].train())


def default_capacities_take_no_memory(strategy: Strategy) -> None:
    table = lambda: EmbeddingVariable("large", DIM, seed=1)  # noqa: E731
    for make in (lambda: keras.optimizers.SGD(0.05), lambda: keras3.LazyAdam(0.05)):
        before = resident_bytes()
        several, one = Model(strategy, make, table=table), Model(ALONE, make, table=table)
        close(several.train(), one.train())
        assert resident_bytes() - before < 2**28


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def keras_models(strategy: Strategy) -> None:
    ids, labels = (np.concatenate(part) for part in zip(*BATCHES, strict=True))

    def made(of: Strategy, optimizer: Any) -> Any:
        keras.utils.set_random_seed(1)
        with of.scope():
            option = EmbeddingVariableOption(capacity=100, seed=4)
            inputs = keras.Input([3], dtype="int64")
            layer = fusion.keras.layers.DynamicEmbedding(DIM, ev_option=option)
            rows = keras.layers.Flatten()(layer(inputs))
            model = keras.Model(inputs, keras.layers.Dense(1)(rows))
            model.compile(optimizer(0.05), "mse")
        return model

    def fit(model: Any) -> list[float]:
        history = model.fit(ids, labels, BATCH, epochs=2, verbose=0, shuffle=False)
        return history.history["loss"]

    with tempfile.TemporaryDirectory() as folder:
        for kind in (keras.optimizers.SGD, keras.optimizers.Adagrad, keras3.LazyAdam):
            one, several = made(ALONE, kind), made(strategy, kind)
            close(fit(several), fit(one))
            close(several.predict(ids, verbose=0), one.predict(ids, verbose=0))
            close(several.evaluate(ids, labels, verbose=0), one.evaluate(ids, labels, verbose=0))
            for model, other, of in ((one, several, strategy), (several, one, ALONE)):
                model.save_weights(f"{folder}/some.weights.h5")
                again = made(of, kind)
                again.load_weights(f"{folder}/some.weights.h5")
                close(again.predict(ids, verbose=0), other.predict(ids, verbose=0))
                path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(f"{folder}/save")
                restored = made(of, kind)
                with of.scope():
                    restored.optimizer.build(restored.trainable_variables)
                tf.train.Checkpoint(model=restored, optimizer=restored.optimizer).read(path).assert_consumed()
                close(restored.predict(ids, verbose=0), other.predict(ids, verbose=0))


def columns(strategy: Strategy) -> None:
    ids, labels = (np.concatenate(part) for part in zip(*BATCHES, strict=True))
    data = {"a": ids}

    def made(of: Strategy, k: Any, optimizer: Any, do_fusion: str) -> Any:
        k.utils.set_random_seed(1)
        option = EmbeddingVariableOption(CounterFilter(1), capacity=100, seed=4)
        column = fusion.feature_column.categorical_column_with_embedding("a", tf.int64, ev_option=option)
        embedding = fusion.feature_column.embedding_column(column, DIM, do_fusion=do_fusion)
        with of.scope():
            if k is keras:
                inputs = {"a": k.Input([3], dtype="int64", name="a")}
                outputs = fusion.feature_column.DenseFeatures([embedding])(inputs)
                model = k.Model(inputs, k.layers.Dense(1)(outputs))
            else:
                model = k.Sequential([k.layers.DenseFeatures([embedding]), k.layers.Dense(1)])
            model.compile(optimizer(0.05), "mse")
        return model

    for k, kinds in ((keras, (keras.optimizers.SGD, keras3.LazyAdam)), (tf_keras, (tf_keras.optimizers.SGD, tf_keras.optimizers.Adagrad, legacy.LazyAdam))):
        for kind in kinds:
            for do_fusion in ("v1", "v2", None):
                losses = []
                for of in (ALONE, strategy):
                    model = made(of, k, kind, do_fusion)
                    history = model.fit(data, labels, BATCH, epochs=2, verbose=0, shuffle=False)
                    losses.append(history.history["loss"])
                close(losses[1], losses[0])


def checkpoints_go_both_ways(strategy: Strategy) -> None:
    make = lambda: keras3.LazyAdam(0.05)  # noqa: E731
    for before, after in ((ALONE, strategy), (strategy, ALONE)):
        first, second = Model(before, make), Model(after, make)
        first.train(BATCHES[:3])
        second.train(BATCHES[4:5])
        with tempfile.TemporaryDirectory() as folder:
            parts = lambda m: {"table": m.table, "optimizer": m.optimizer}  # noqa: E731
            path = tf.train.Checkpoint(**parts(first)).write(f"{folder}/save")
            tf.train.Checkpoint(**parts(second)).read(path).assert_consumed()
        close(second.train(BATCHES[3:]), first.train(BATCHES[3:]))
        close(second.row_values(), first.row_values())


def models_are_exported(strategy: Strategy) -> None:
    model = Model(strategy, lambda: keras.optimizers.SGD(0.05), means_v2)
    model.train()
    ids = BATCHES[0][0]
    module = tf.Module()
    module.table = model.table
    module.look_up = tf.function(
        lambda ids: means_v2(model.table, ids), [tf.TensorSpec([None, 3], tf.int64)]
    )
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder)
        loaded = tf.saved_model.load(folder)
        np.testing.assert_array_equal(loaded.look_up(ids), means_v2(model.table, ids))


def keys_are_counted_by_all_replicas(strategy: Strategy) -> None:
    with strategy.scope():
        table = keyed(DIM, 100, admission=3)

    def in_replica() -> Any:
        with tf.GradientTape() as tape:
            rows = table.embedding_lookup(tf.constant([5, 7, 5], tf.int64)[: 2 + index()])
        return tape.gradient(rows, table.table).indices

    def index() -> Any:
        return tf.distribute.get_replica_context().replica_id_in_sync_group

    for run in (in_replica, tf.function(in_replica)):
        strategy.run(run)
    found = rows_of(table, [5, 7, 9]).numpy()
    assert (found >= 0).tolist() == [True, True, False]
    entries = fusion.ops.embedding_key_entries(index=table.index.handle)
    counts = dict(zip(entries.keys.numpy().tolist(), entries.counts.numpy().tolist(), strict=True))
    assert counts == {5: 6, 7: 4}
    strategy.run(lambda: table.embedding_lookup(tf.constant([1, 2], tf.int64)))
    strategy.run(tf.function(lambda: table.embedding_lookup(tf.constant([1, 2], tf.int64))))
    assert (rows_of(table, [1, 2]).numpy() < 0).all()


def tables_are_used_outside_of_replicas(strategy: Strategy) -> None:
    from fusion.tables import LeastFrequent

    with strategy.scope():
        table = keyed(DIM, 100, eviction=LeastFrequent(3))
        model = Model(strategy, lambda: keras3.LazyAdam(0.05), table=lambda: table)
        model.train()
        inside = table.embedding_lookup([1, 2])
    np.testing.assert_array_equal(table.embedding_lookup([1, 2]), inside)
    with tf.GradientTape() as tape:
        rows = table.embedding_lookup([1, 99])
    assert (rows_of(table, [99]).numpy() >= 0).all()
    assert tape.gradient(rows, table.table).indices.shape == [2]
    frozen = table.freeze()
    np.testing.assert_array_equal(frozen.embedding_lookup([1, 2]), table.embedding_lookup([1, 2]))
    with tempfile.TemporaryDirectory() as folder:
        count = table.export(f"{folder}/rows")
        other = keyed(DIM, 100)
        assert other.import_from(f"{folder}/rows") == count
        np.testing.assert_array_equal(other.embedding_lookup([1]), table.embedding_lookup([1]))
        with strategy.scope():
            table.import_from(f"{folder}/rows")
    with pytest.raises(RuntimeError, match="evict"):
        strategy.run(table.evict)
    assert int(table.evict()) == count - 3
    with strategy.scope():
        assert int(table.evict()) == 0
    model.train()


def sessions_of_v1(strategy: Strategy) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        of = v1.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        with of.scope():
            def in_replica(ids: Any) -> Any:
                table = fusion.get_embedding_variable("t", DIM, ev_option=EmbeddingVariableOption(capacity=100))
                loss = tf.reduce_sum(table.embedding_lookup(ids) ** 2)
                return v1.train.AdagradOptimizer(0.1).minimize(loss), loss
            op, loss = of.run(in_replica, (tf.constant([1, 2, 3], tf.int64),))
            group = tf.group(of.experimental_local_results(op))
            total = of.reduce("SUM", loss, axis=None)
        session.run(v1.global_variables_initializer())
        losses = [session.run([total, group])[0] for _ in range(3)]
        assert losses[0] > losses[1] > losses[2], losses
        print([v.name for v in v1.global_variables()])
        saver = v1.train.Saver()
        with tempfile.TemporaryDirectory() as folder:
            path = saver.save(session, f"{folder}/save")
            saver.restore(session, path)
        session.run(total)


def other_strategies(strategy: Strategy) -> None:
    one = Model(ALONE, lambda: keras3.LazyAdam(0.05)).train()
    assert Model(tf.distribute.OneDeviceStrategy("CPU:1"), lambda: keras3.LazyAdam(0.05)).train() == one
    central = tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"])
    with central.scope(), pytest.raises(NotImplementedError, match="CentralStorageStrategy"):
        keyed(DIM, 100)


CHECKS = {
    check.__name__: check
    for check in (losses_are_those_of_one_replica, losses_are_those_of_mirrored_tables, several_optimizers_of_v1, default_capacities_take_no_memory, keras_models, columns, checkpoints_go_both_ways, models_are_exported, keys_are_counted_by_all_replicas, tables_are_used_outside_of_replicas, sessions_of_v1, other_strategies)
}


def main() -> None:
    """Runs all checks, or those that are named."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    failed = {}
    for name in sys.argv[1:] or CHECKS:
        try:
            CHECKS[name](strategy)
        except (Exception, pytest.fail.Exception):
            failed[name] = traceback.format_exc()
    print(json.dumps(failed))


if __name__ == "__main__":
    main()
