"""Program: embedding variables on two parameter servers, against the same ones in this process."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tf_keras

import fusion
from examples.distributed.cluster import CONFIG
from fusion.feature_column import (
    DenseFeatures,
    categorical_column_with_embedding,
    embedding_column,
)
from fusion.ops import embedding_key_entries
from fusion.optimizers import keras3 as rows_of_keras
from fusion.optimizers import tf_keras as rows_of_tf_keras
from fusion.tables import (
    EmbeddingVariable,
    EmbeddingVariableOption,
    LeastRecent,
    PartitionedEmbeddingVariable,
)

v1 = tf.compat.v1

DIM, SERVERS = 4, 2

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "tf_keras sgd": lambda: tf_keras.optimizers.SGD(0.3),
    "tf_keras legacy adagrad": lambda: tf_keras.optimizers.legacy.Adagrad(0.3),
    "tf_keras adagrad": lambda: rows_of_tf_keras.Adagrad(0.3),
    "keras sgd": lambda: keras.optimizers.SGD(0.3),
    "keras lazy adam": lambda: rows_of_keras.LazyAdam(0.1),
}


class Table(tf.Module):
    """An embedding variable as a model; of the default capacity where its slots take no memory."""

    def __init__(self, count: int | None, capacity: int | None) -> None:
        super().__init__()
        named: dict[str, Any] = {"capacity": capacity, "seed": 3}
        if count is None:
            self.table: Any = EmbeddingVariable("table", DIM, **named)
            self.parts = [self.table]
        else:
            self.table = PartitionedEmbeddingVariable("table", DIM, count, **named)
            self.parts = self.table.partitions
        self.tables = [part.table for part in self.parts]

    def __call__(self, keys: tf.Tensor) -> tf.Tensor:
        return self.table.embedding_lookup(keys)


def layer_of(package: Any, count: int | None) -> Any:
    """A layer of a column of keys."""
    option = EmbeddingVariableOption(capacity=300, seed=3)
    keys = categorical_column_with_embedding("keys", tf.int64, count, option)
    initializer = package.initializers.RandomNormal(seed=5)
    column = embedding_column(keys, DIM, initializer=initializer, do_fusion="v2")
    make = DenseFeatures if package is keras else package.layers.DenseFeatures
    layer = make([column])
    layer({"keys": tf.constant([[1]], tf.int64)})
    return layer


def batch(step: int) -> tf.Tensor:
    return tf.constant(np.random.default_rng(step).integers(-50, 50, (8, 3)))


def stepper(look_up: Callable[..., Any], tables: Any, optimizer: Any, strategy: Any) -> Any:
    """A tf.function of keys: a step, and its loss."""

    def in_replica(keys: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((tf.tanh(look_up(keys)) - 0.2) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables, strict=True))
        return loss

    @tf.function
    def step(keys: tf.Tensor) -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(in_replica, (keys,)), axis=None)

    return step


class Cluster:
    """A strategy, with its servers in this process."""

    def __init__(self, partitioner: Any = None, servers: int = SERVERS) -> None:
        config = json.loads(os.environ[CONFIG])
        cluster = tf.train.ClusterSpec(config["cluster"])
        jobs = [("worker", 0), *(("ps", number) for number in range(servers))]
        self._servers = [
            tf.distribute.Server(cluster, job_name=job, task_index=number) for job, number in jobs
        ]
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            cluster, task_type="chief", task_id=0, rpc_layer="grpc"
        )
        self.strategy = tf.distribute.ParameterServerStrategy(
            resolver, variable_partitioner=partitioner
        )
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)

    def begin(self, step: Any, steps: range) -> None:
        """Has the worker run steps, without waiting for it."""
        for k in steps:
            self._coordinator.schedule(step, (batch(k),))

    def end(self) -> None:
        """Waits for these steps."""
        self._coordinator.join()

    def losses(self, step: Any, steps: range) -> list[float]:
        result = []
        for k in steps:
            loss = self._coordinator.schedule(step, (batch(k),))
            self._coordinator.join()
            result.append(float(loss.fetch()))
        return result


def server_of(device: str) -> int:
    spec = tf.DeviceSpec.from_string(device)
    assert spec.job == "ps", device
    return spec.task


def check_places(model: Table, step: Any, strategy: Any) -> None:
    """What belongs to a partition is with it, also its gather; and they are on all servers."""
    for part in model.parts:
        devices = [variable.device for variable in (part.table, part.index, part.initial)]
        devices += [slot.device for slot in part.slots]
        assert len({*devices}) == 1, devices
    servers = [server_of(table.device) for table in model.tables]
    assert {*servers} == {*range(min(len(servers), SERVERS))} or len(servers) == 1
    with strategy.scope():
        nodes = step.get_concrete_function(batch(0)).graph.as_graph_def().node
    gathers = [server_of(node.device) for node in nodes if node.op == "KeyedEmbeddingGather"]
    assert sorted(gathers) == sorted(servers)
    assert not any(node.op == "ReadVariableOp" and "table" in node.name for node in nodes)


def check_table(cluster: Cluster, name: str, count: int | None) -> None:
    """The losses of a table in this process, also after a restored checkpoint."""
    capacity = 300 if "legacy" in name else None

    def start() -> tuple[Table, Any]:
        model, optimizer = Table(count, capacity), OPTIMIZERS[name]()
        if hasattr(optimizer, "build"):
            optimizer.build(model.tables)
        return model, optimizer

    model, optimizer = start()
    plain = stepper(model, model.tables, optimizer, tf.distribute.get_strategy())
    expected = [float(plain(batch(k))) for k in range(6)]
    assert len({*expected}) == 6
    with cluster.strategy.scope():
        model, optimizer = start()
    step = stepper(model, model.tables, optimizer, cluster.strategy)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    with tempfile.TemporaryDirectory() as folder:
        losses = cluster.losses(step, range(3))
        path, saved = checkpoint.write(f"{folder}/save"), model(batch(1)).numpy()
        losses += cluster.losses(step, range(3, 6))
        assert losses == expected, (name, count, losses, expected)
        check_places(model, step, cluster.strategy)
        checkpoint.read(path).assert_consumed()
        assert cluster.losses(step, range(3, 6)) == expected[3:]
        other = Table(3 if count is None else None, 300)  # of this process
        tf.train.Checkpoint(model=other).read(path)
        assert (other(batch(1)).numpy() == saved).all()


def check_saved_beside_steps(cluster: Cluster) -> None:
    """A table on two servers is saved and evicts while these run steps; neither waits forever."""
    faulthandler.dump_traceback_later(300, exit=True)
    with cluster.strategy.scope():
        table = PartitionedEmbeddingVariable("saved", DIM, 2, eviction=LeastRecent(300), seed=3)
        optimizer = rows_of_keras.Adagrad(0.3)
        optimizer.build(table.tables)
    step = stepper(table.embedding_lookup, table.tables, optimizer, cluster.strategy)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(3):
            cluster.begin(step, range(30 * number, 30 * number + 30))
            checkpoint = tf.train.Checkpoint(model=table, optimizer=optimizer)
            path = checkpoint.write(f"{folder}/{number}")
            assert table.evict().numpy() == 0
            cluster.end()
            other = EmbeddingVariable("saved", DIM, capacity=300)  # of this process
            tf.train.Checkpoint(model=other).read(path).expect_partial()
            known = embedding_key_entries(index=other.index.handle)
            rows = other.table.numpy()[known.rows.numpy()]
            assert set(known.keys.numpy()) <= set(range(-50, 50))
            assert rows.any(1).all()
    faulthandler.cancel_dump_traceback_later()


def check_layer(cluster: Cluster, package: Any, count: int | None) -> None:
    """The losses of a layer in this process."""

    def start() -> tuple[Any, list[Any], Any]:
        layer, optimizer = layer_of(package, count), package.optimizers.SGD(0.3)
        tables = layer.trainable_variables
        optimizer.build(tables)
        own = [table if isinstance(table, tf.Variable) else table.value for table in tables]
        return layer, own, optimizer

    def losses(run: Callable[..., list[float]], strategy: Any) -> list[float]:
        with strategy.scope():
            layer, tables, optimizer = start()
        assert len(tables) == (count or 1)
        step = stepper(lambda keys: layer({"keys": keys}), tables, optimizer, strategy)
        return run(step, range(5))

    here = tf.distribute.get_strategy()
    expected = losses(lambda step, steps: [float(step(batch(k))) for k in steps], here)
    assert len({*expected}) == 5
    assert losses(cluster.losses, cluster.strategy) == expected


def check_graphs() -> None:
    """Graphs of TensorFlow 1, whose variables a `replica_device_setter` puts on servers."""
    addresses = json.loads(os.environ[CONFIG])["cluster"]
    del addresses["chief"]  # a session waits for all
    cluster = tf.train.ClusterSpec(addresses)
    jobs = [("worker", 0), *(("ps", number) for number in range(SERVERS))]
    servers = [tf.distribute.Server(cluster, job_name=j, task_index=number) for j, number in jobs]
    setter = v1.train.replica_device_setter(cluster=cluster, worker_device="/job:worker/task:0")

    def losses(
        count: int | None, path: str, target: str = "", sharded: bool = False
    ) -> list[float]:
        """Those of three steps from a checkpoint on, or from none if the path ends with 0."""
        number = int(path[-1])
        with tf.Graph().as_default(), v1.device(setter if target else None):
            table = fusion.get_embedding_variable(
                "table",
                DIM,
                partitioner=count and v1.fixed_size_partitioner(count),
                ev_option=EmbeddingVariableOption(capacity=300, seed=3),
            )
            keys = v1.placeholder(tf.int64, [None, None])
            loss = tf.reduce_sum((tf.tanh(table.embedding_lookup(keys)) - 0.2) ** 2)
            train = v1.train.AdagradOptimizer(0.5).minimize(loss)
            saver = v1.train.Saver(sharded=sharded)
            with v1.Session(target) as session:
                session.run(v1.global_variables_initializer())
                if number:
                    saver.restore(session, path)
                feeds = (batches[k] for k in range(3 * number, 3 * number + 3))
                result = [float(session.run([loss, train], {keys: k})[0]) for k in feeds]
                saver.save(session, f"{path[:-1]}{number + 1}", write_meta_graph=False)
        return result

    batches = [batch(step).numpy() for step in range(6)]
    with tempfile.TemporaryDirectory() as folder:
        expected = [losses(None, f"{folder}/plain-{number}") for number in range(2)]
        assert len({*expected[0], *expected[1]}) == 6
        for first, second, sharded in ((None, 3, True), (2, 3, False), (3, 2, True)):
            path, target = f"{folder}/{first}-", servers[0].target
            assert losses(first, f"{path}0", target, sharded) == expected[0]
            assert losses(second, f"{path}1", target, sharded) == expected[1]


def main() -> None:
    """The program: what is checked, or "apart" if one server does not know the ops."""
    # Grappler makes x * rsqrt(y) of the stock ops' x / sqrt(y), which is an estimate on some
    # processors. On servers stock ops update rows; the op in this process divides.
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    (what,) = sys.argv[1:]
    if what == "graphs":
        check_graphs()
        print("done", flush=True)
        os._exit(0)
    if what == "apart":
        cluster = Cluster(servers=1)
        try:
            with cluster.strategy.scope():
                PartitionedEmbeddingVariable("table", DIM, 2, capacity=10)
        except tf.errors.NotFoundError as error:
            print(error)
        print("done", flush=True)
        os._exit(0)
    partitioner = None
    if what == "partitioner":
        partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    cluster = Cluster(partitioner)
    for name in OPTIMIZERS:
        for count in (None, 3):
            check_table(cluster, name, count)
    check_saved_beside_steps(cluster)
    for package in (keras, tf_keras):
        for count in (None, 3):
            check_layer(cluster, package, count)
    with cluster.strategy.scope():
        table = PartitionedEmbeddingVariable("other", DIM, 2, capacity=10)
    assert embedding_key_entries(index=table.part_1.index.handle).keys.shape == [0]
    print("done", flush=True)
    os._exit(0)  # servers never end by themselves


if __name__ == "__main__":
    main()
