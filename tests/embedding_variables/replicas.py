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
from fusion.tables import EmbeddingVariable, EmbeddingVariableOption, LeastFrequent
from fusion.tables.replicas import SharedVariable
from tests.embedding_variables.plain import initial_values, keyed, rows_of
from tests.keras.releases import HAS_ADAGRAD_OF_ROWS

v1 = tf.compat.v1

BATCH, KEYS, DIM = 8, 40, 4
RNG = np.random.default_rng(0)
BATCHES = [
    (RNG.integers(0, KEYS, (BATCH, 3)), RNG.random(BATCH).astype(np.float32)) for _ in range(6)
]

#: A lookup of ids [n, 3] in a table, [n, DIM] or [n, 3, DIM].
Lookup = Callable[[Any, tf.Tensor], tf.Tensor]
#: A `tf.distribute.Strategy`.
Strategy = Any


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
        optimizer: Callable[[float], Any],
        lookup: Lookup = rows_of_keys,
        table: Callable[[], Any] = lambda: keyed(DIM, 100),
    ) -> None:
        self.strategy, self._lookup = strategy, lookup
        with strategy.scope():
            self.table, self.optimizer = table(), optimizer(0.05)
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
    before = resident_bytes()
    table = lambda: EmbeddingVariable("large", DIM, seed=1)  # noqa: E731
    for kind, lookup in (
        (keras.optimizers.SGD, rows_of_keys),
        (keras3.LazyAdam, sums_v1),
        (legacy.Adagrad, rows_of_keys),
    ):
        one, several = (Model(of, kind, lookup, table) for of in (ALONE, strategy))
        losses = one.train()
        assert len({*losses}) == len(losses)
        close(several.train(), losses)
        close(several.row_values(), one.row_values())
    assert resident_bytes() - before < 2**28  # of tables and slots of the default capacity


def resident_bytes() -> int:
    return 4096 * int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])


def losses_are_those_of_mirrored_tables(strategy: Strategy) -> None:
    values = initial_values(DIM, KEYS)
    # Those of older Keras fail with any table.
    for kind, lookup in (
        (keras.optimizers.Adagrad if HAS_ADAGRAD_OF_ROWS else keras3.Adagrad, rows_of_keys),
        (keras.optimizers.SGD, means_v2),
        (tf_keras.optimizers.Adagrad, sums_v1),
    ):
        plain = Model(strategy, kind, lookup, lambda: tf.Variable(values))
        ours = Model(strategy, kind, lookup)
        assert ours.train() == plain.train()
        np.testing.assert_array_equal(ours.row_values(), plain.row_values())
        for slot in getattr(ours.optimizer, "_accumulators", []):
            assert isinstance(getattr(slot, "_value", slot), SharedVariable)  # not one per replica


def optimizers_of_v1(strategy: Strategy) -> None:
    train = v1.train
    for kind in (train.AdamOptimizer, train.AdagradOptimizer, fusion.optimizers.LazyAdamOptimizer):
        one, several = (Model(of, kind) for of in (ALONE, strategy))
        close(several.train(), one.train())


IDS, LABELS = (np.concatenate(parts) for parts in zip(*BATCHES, strict=True))
OPTION = EmbeddingVariableOption(capacity=100, seed=11)


def fit(model: Any, ids: Any = IDS) -> list[float]:
    """The losses of two epochs."""
    history = model.fit(ids, LABELS, BATCH, epochs=2, verbose=0, shuffle=False)
    losses: list[float] = history.history["loss"]
    return losses


def keras_model(strategy: Strategy, optimizer: Any, layer: Callable[[], Any]) -> Any:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        inputs = keras.Input([3], dtype="int64")
        rows = keras.layers.Flatten()(layer()(inputs))
        model = keras.Model(inputs, keras.layers.Dense(1)(rows))
        model.compile(optimizer(0.05), "mse")
    return model


def dynamic(strategy: Strategy, optimizer: Any) -> Any:
    """A model of an embedding variable, of the default capacity."""
    initializer = keras.initializers.RandomNormal(seed=5)
    option = EmbeddingVariableOption(seed=11)
    layer = fusion.keras.layers.DynamicEmbedding
    return keras_model(strategy, optimizer, lambda: layer(DIM, initializer, ev_option=option))


def layers_of_keras(strategy: Strategy) -> None:
    values = keras.initializers.Constant(initial_values(DIM, KEYS))
    for kind in (keras.optimizers.SGD, keras3.LazyAdam):
        plain = keras_model(strategy, kind, lambda: keras.layers.Embedding(KEYS, DIM, values))
        ours = dynamic(strategy, kind)
        assert fit(ours) == fit(plain)
        for call in (
            lambda m: m.predict(IDS, verbose=0),
            lambda m: m.evaluate(IDS, LABELS, verbose=0),
        ):
            np.testing.assert_array_equal(call(ours), call(plain))


def files_of_keras(strategy: Strategy) -> None:
    for before, after in ((ALONE, strategy), (strategy, ALONE)):
        first, second = (dynamic(of, keras3.LazyAdam) for of in (before, after))
        fit(first)
        with tempfile.TemporaryDirectory() as folder:
            first.save_weights(f"{folder}/some.weights.h5")
            second.load_weights(f"{folder}/some.weights.h5")
        close(second.predict(IDS, verbose=0), first.predict(IDS, verbose=0))


def checkpoints(strategy: Strategy) -> None:
    parts = lambda model: {"table": model.table, "optimizer": model.optimizer}  # noqa: E731
    for before, after in ((ALONE, strategy), (strategy, ALONE)):
        first, second = (Model(of, keras3.LazyAdam) for of in (before, after))
        first.train(BATCHES[:3])
        second.train(BATCHES[4:5])
        with tempfile.TemporaryDirectory() as folder:
            path = tf.train.Checkpoint(**parts(first)).write(f"{folder}/save")
            tf.train.Checkpoint(**parts(second)).read(path).assert_consumed()
        close(second.train(BATCHES[3:]), first.train(BATCHES[3:]))
        close(second.row_values(), first.row_values())


def columns(strategy: Strategy) -> None:
    values = initial_values(DIM, KEYS)
    feature_column = fusion.feature_column

    def columns_of(is_keyed: bool, is_shared: bool, do_fusion: str | None) -> Any:
        if is_keyed:
            make = feature_column.categorical_column_with_embedding
            keys = [make(name, tf.int64, ev_option=OPTION) for name in "ab"]
            start: Any = keras.initializers.RandomNormal(seed=5)
        else:
            of_ids = tf.feature_column.categorical_column_with_identity
            keys = [of_ids(name, KEYS) for name in "ab"]
            start = lambda shape, dtype: tf.constant(values, dtype)  # noqa: E731
        options = {"initializer": start, "do_fusion": do_fusion}
        if not is_shared:
            return [feature_column.embedding_column(one, DIM, **options) for one in keys]
        with tf.Graph().as_default():
            return feature_column.shared_embeddings(keys, DIM, **options)

    def made(k: Any, optimizer: Any, is_shared: bool, is_keyed: bool, do_fusion: str | None) -> Any:
        k.utils.set_random_seed(1)
        both = columns_of(is_keyed, is_shared, do_fusion)
        with strategy.scope():
            if k is keras:
                inputs = {name: k.Input([3], dtype="int64", name=name) for name in "ab"}
                outputs = feature_column.DenseFeatures(both)(inputs)
                model = k.Model(inputs, k.layers.Dense(1)(outputs))
            else:
                model = k.Sequential([k.layers.DenseFeatures(both), k.layers.Dense(1)])
            model.compile(optimizer(0.05), "mse")
        return model

    for k, optimizer, is_shared, do_fusion in (
        (keras, keras3.LazyAdam, False, "v2"),
        (keras, keras3.LazyAdam, True, "v2"),
        (keras, keras.optimizers.SGD, True, None),
        (tf_keras, legacy.LazyAdam, False, None),
    ):
        features = {"a": IDS, "b": IDS[::-1]}
        losses, expected = (
            fit(made(k, optimizer, is_shared, is_keyed, do_fusion), features)
            for is_keyed in (True, False)
        )
        assert losses == expected


def models_are_exported(strategy: Strategy) -> None:
    model = Model(strategy, keras.optimizers.SGD, means_v2)
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
    with strategy.scope():
        table = keyed(DIM, 100, eviction=LeastFrequent(3))
        model = Model(strategy, keras3.LazyAdam, table=lambda: table)
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


def variables_are_made_once(strategy: Strategy) -> None:
    made: list[EmbeddingVariable] = []

    def lazily(ids: tf.Tensor) -> tf.Tensor:
        if not made:
            made.append(keyed(DIM, 100))
        return made[0].embedding_lookup(ids)

    strategy.run(tf.function(lazily), (tf.constant([1]),))
    assert isinstance(made[0].table, SharedVariable)
    with pytest.raises(RuntimeError, match="each replica"):
        strategy.run(lambda: keyed(DIM, 100).embedding_lookup([1]))


def sessions_of_v1(strategy: Strategy) -> None:
    del strategy
    with tf.Graph().as_default(), v1.Session() as session:
        strategy = v1.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

        def in_replica(ids: tf.Tensor) -> Any:
            table = fusion.get_embedding_variable("t", DIM, ev_option=OPTION)
            loss = tf.reduce_sum(table.embedding_lookup(ids) ** 2)
            return v1.train.AdagradOptimizer(0.1).minimize(loss), loss

        with strategy.scope():
            ops, losses = strategy.run(in_replica, (tf.constant([1, 2, 3], tf.int64),))
            step = tf.group(strategy.experimental_local_results(ops))
            loss = strategy.reduce("SUM", losses, axis=None)
        names = sorted(variable.name for variable in v1.global_variables())
        assert names == ["t/Adagrad:0", "t/initial_rows:0", "t/key_index:0", "t:0"], names
        session.run(v1.global_variables_initializer())
        with tempfile.TemporaryDirectory() as folder:
            path = v1.train.Saver().save(session, f"{folder}/save")
            first = [session.run([loss, step])[0] for _ in range(3)]
            assert first[0] > first[1] > first[2]
            v1.train.Saver().restore(session, path)
        assert [session.run([loss, step])[0] for _ in range(3)] == first


def other_strategies(strategy: Strategy) -> None:
    losses = Model(ALONE, keras3.LazyAdam).train()
    for one in (
        tf.distribute.OneDeviceStrategy("CPU:1"),
        tf.distribute.MirroredStrategy(["CPU:1"]),
    ):
        assert Model(one, keras3.LazyAdam).train() == losses
    central = tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"])
    with central.scope(), pytest.raises(NotImplementedError, match="CentralStorageStrategy"):
        keyed(DIM, 100)
    strategy.extended._num_workers = 2  # as that of several workers
    try:
        with strategy.scope(), pytest.raises(NotImplementedError, match="with 2 workers"):
            keyed(DIM, 100)
    finally:
        del strategy.extended._num_workers


CHECKS = {
    check.__name__: check
    for check in (
        *(losses_are_those_of_one_replica, losses_are_those_of_mirrored_tables, optimizers_of_v1),
        *(layers_of_keras, files_of_keras, checkpoints, columns, models_are_exported),
        *(keys_are_counted_by_all_replicas, tables_are_used_outside_of_replicas),
        *(variables_are_made_once, sessions_of_v1, other_strategies),
    )
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
