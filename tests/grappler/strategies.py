"""Programs: models of two tables that a strategy trains without fusion and with it, alike."""

from __future__ import annotations

import itertools
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
from examples.distributed.cluster import CONFIG
from tests.grappler.fitted import BATCH, TABLES, Modifier, dataset, model

KERAS = {"keras": keras, "tf_keras": tf_keras}
OPTIMIZERS = ("sgd", "adam")

#: Losses, and all variables.
Run = tuple[list[float], list[np.ndarray]]


def check(train: Callable[[], Run], expected: list[set[str | None]]) -> None:
    """Trains without fusion and with it: the same bits, and these reasons in the report."""
    losses, values = train()
    assert len({*losses}) == len(losses)
    before = fusion.stats().last_report
    with fusion.fused():
        ours, our_values = train()
    report = fusion.stats().last_report
    assert report is not None
    assert report is not before
    reasons = [update.reason for update in report.updates]
    assert len(reasons) == len(expected), reasons
    for reason, possible in zip(reasons, expected, strict=True):
        assert any(reason == one or (one and one in (reason or "")) for one in possible), reasons
    assert losses == ours
    for mine, theirs in zip(our_values, values, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def values_of(built: Any) -> list[np.ndarray]:
    """All variables of a model and of its optimizer."""
    variables = built.optimizer.variables
    several = variables() if callable(variables) else variables
    return [tf.convert_to_tensor(variable).numpy() for variable in (*built.weights, *several)]


def stepper(strategy: Any, built: Any) -> Any:
    """A tf.function (ids, labels) -> the loss, of a step in all replicas."""

    @tf.function
    def step(*batch: Any) -> tf.Tensor:
        def in_replica(ids: Any, labels: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                errors = (built([*ids], training=True) - labels) ** 2
                loss = tf.reduce_sum(errors) / BATCH
            variables = built.trainable_variables
            gradients = tape.gradient(loss, variables)
            built.optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return loss

        return strategy.reduce("SUM", strategy.run(in_replica, batch), axis=None)

    return step


def made(k: Any, optimizer: str, strategy: Any) -> Any:
    """A compiled model whose optimizer has its variables."""
    with strategy.scope():
        built = model(k, optimizer, Modifier())
        built.optimizer.build(built.trainable_variables)
    return built


def mirrored() -> None:
    """Two replicas, by `fit` and by a loop: updates stay, for the report's reason."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

    def fit(k: Any, optimizer: str) -> Run:
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            built = model(k, optimizer, Modifier())
        history = built.fit(dataset(1), epochs=3, verbose=0, shuffle=False)
        return history.history["loss"], values_of(built)

    def loop(k: Any, optimizer: str) -> Run:
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        built = made(k, optimizer, strategy)
        step = stepper(strategy, built)
        batches = strategy.experimental_distribute_dataset(dataset(3))
        return [float(step(*batch)) for batch in batches], values_of(built)

    reasons: set[str | None] = {
        "it is not known whether updates are a row for each id",
        "entries are summed up for another number of rows",
        None,
    }
    # Each of them with each other once.
    check(lambda: fit(keras, "adam"), [reasons] * 2 * TABLES)
    check(lambda: loop(keras, "sgd"), [reasons] * 2 * TABLES)
    check(lambda: fit(tf_keras, "sgd"), [reasons] * 2 * TABLES)
    check(lambda: loop(tf_keras, "adam"), [reasons] * 2 * TABLES)


def parameter_server(where: str) -> None:
    """Tables on a parameter server that is this process, or that may be without fusion."""
    config = json.loads(os.environ[CONFIG])
    cluster = tf.train.ClusterSpec(config["cluster"])
    jobs = {"here": ("worker", "ps"), "apart": ("worker",)}[where]
    servers = [tf.distribute.Server(cluster, job_name=job, task_index=0) for job in jobs]
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    def train(k: Any, optimizer: str) -> Run:
        built = made(k, optimizer, strategy)
        assert "/job:ps" in tf.convert_to_tensor(built.weights[0]).device
        step, losses = stepper(strategy, built), []
        for batch in dataset(3):
            loss = coordinator.schedule(step, batch)
            coordinator.join()
            losses.append(float(loss.fetch()))
        return losses, values_of(built)

    reason = {"here": None, "apart": "which may not know the fused ops"}[where]
    for name, optimizer in itertools.product(KERAS, OPTIMIZERS):
        check(lambda: train(KERAS[name], optimizer), [{reason}] * TABLES)  # noqa: B023
    del servers


def main() -> None:
    """The program: a strategy, and of `ParameterServerStrategy` where its servers are."""
    strategy, *where = sys.argv[1:]
    if strategy == "mirrored":
        mirrored()
    else:
        parameter_server(*where)
    print("done", flush=True)
    os._exit(0)  # servers never end by themselves


if __name__ == "__main__":
    main()
