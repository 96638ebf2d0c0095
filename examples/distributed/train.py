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
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from examples.distributed.cluster import start_server
from examples.distributed.model import Model, batches

MakeModel = Callable[[], Model]
#: (what makes a model, steps) -> the model after so many, and the loss of each.
Train = Callable[[MakeModel, int], tuple[Model, list[float]]]


def mirrored() -> Train:
    """Trains on two devices of this process."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return partial(_train_together, tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))


def multi_worker() -> Train:
    """Trains one replica in each of several processes."""
    return partial(_train_together, tf.distribute.MultiWorkerMirroredStrategy())


def _train_together(strategy: Any, make_model: MakeModel, steps: int) -> tuple[Model, list[float]]:
    with strategy.scope():
        model = make_model()

    @tf.function
    def step(batch: Any) -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(model.train, batch), axis=None)

    data = strategy.experimental_distribute_dataset(batches(steps))
    # All of them first: an iterator may wait in the end for its tuner, as long as it has lived.
    return model, [float(step(batch)) for batch in [*data]]


def parameter_server() -> Train:
    """Lets workers train tables that parameter servers share, row by row."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    servers = len(resolver.cluster_spec().job_tasks("ps"))
    shared = tf.distribute.experimental.partitioners.MinSizePartitioner(32_000, servers)
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=shared)
    return partial(_train_by_workers, strategy)


def _train_by_workers(
    strategy: Any, make_model: MakeModel, steps: int
) -> tuple[Model, list[float]]:
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


STRATEGIES: dict[str, Callable[[], Train]] = {
    "mirrored": mirrored,
    "multi_worker": multi_worker,
    "parameter_server": parameter_server,
}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m examples.distributed.train")
    parser.add_argument("strategy", choices=STRATEGIES)
    parser.add_argument("runs", nargs="+", choices=("stock", "fused"), help="one after the other")
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--weights", help="the beginning of the names of files for weights")
    arguments = parser.parse_args()
    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {"type": "worker", "index": 0})
    told: dict[str, Any] = {"task": f"{task['type']} {task['index']}"}
    serves = arguments.strategy == "parameter_server" and task["type"] != "chief"
    train = None if serves else STRATEGIES[arguments.strategy]()
    for run in arguments.runs:
        if run == "fused" and task["type"] != "ps":
            import fusion

            fusion.enable()
        if train is None:
            server = start_server()
            sys.stdin.read()
            del server
            continue
        model, told[run] = train(lambda: Model(arguments.optimizer), arguments.steps)
        if arguments.weights:
            np.savez(f"{arguments.weights}_{run}.npz", *model.values())
    if "fusion" in sys.modules:
        told["columns_fused"] = fusion.stats().columns_fused
    print(json.dumps(told), flush=True)
    if serves:
        os._exit(0)  # a server never ends by itself


if __name__ == "__main__":
    main()
