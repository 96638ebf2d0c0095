"""One process of a training job. The variable `TF_CONFIG` says which, as TensorFlow has it.

Each process that computes lookups switches fusion on: all of them but parameter servers, which
need not even have it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from examples.distributed.model import Model, batches

MakeModel = Callable[[], Model]
Trained = tuple[Model, list[float]]


def mirrored(make_model: MakeModel, steps: int) -> Trained:
    """Trains on two devices of this process."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return _train_together(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), make_model, steps)


def multi_worker(make_model: MakeModel, steps: int) -> Trained:
    """Trains one replica in each of several processes."""
    return _train_together(tf.distribute.MultiWorkerMirroredStrategy(), make_model, steps)


def _train_together(strategy: Any, make_model: MakeModel, steps: int) -> Trained:
    with strategy.scope():
        model = make_model()

    @tf.function
    def step(batch: Any) -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(model.train, batch), axis=None)

    data = strategy.experimental_distribute_dataset(batches(steps))
    return model, [float(step(batch)) for batch in data]


def parameter_server(make_model: MakeModel, steps: int) -> Trained:
    """Lets workers train tables that parameter servers share, row by row."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    servers = len(resolver.cluster_spec().job_tasks("ps"))
    shared = tf.distribute.experimental.partitioners.MinSizePartitioner(32_000, servers)
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=shared)
    with strategy.scope():
        model = make_model()
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    @tf.function
    def step(*batch: tf.Tensor) -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(model.train, batch), axis=None)

    losses = []
    for batch in batches(steps):
        loss = coordinator.schedule(step, batch)
        # One step after the other, for the same numbers in each run.
        coordinator.join()
        losses.append(float(loss.fetch()))
    return model, losses


STRATEGIES: dict[str, Callable[[MakeModel, int], Trained]] = {
    "mirrored": mirrored,
    "multi_worker": multi_worker,
    "parameter_server": parameter_server,
}


def serve() -> None:
    """Does what the chief says until standard input is closed."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id
    )
    sys.stdin.read()
    del server


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m examples.distributed.train")
    parser.add_argument("strategy", choices=STRATEGIES)
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--stock", action="store_true", help="without fusion")
    parser.add_argument("--weights", help="a file for the weights")
    arguments = parser.parse_args()
    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {"type": "worker", "index": 0})
    told: dict[str, Any] = {"task": f"{task['type']} {task['index']}"}
    if not arguments.stock and task["type"] != "ps":
        import fusion

        fusion.enable()
    serves = arguments.strategy == "parameter_server" and task["type"] != "chief"
    if serves:
        serve()
    else:
        train = STRATEGIES[arguments.strategy]
        model, told["losses"] = train(lambda: Model(arguments.optimizer), arguments.steps)
        if arguments.weights:
            np.savez(arguments.weights, *model.values())
    if "fusion" in sys.modules:
        told["columns_fused"] = fusion.stats().columns_fused
    print(json.dumps(told), flush=True)
    if serves:
        os._exit(0)  # a server never ends by itself


if __name__ == "__main__":
    main()
