"""One process of a training job; `TF_CONFIG` says which, as TensorFlow's strategies have it."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

import numpy as np
import tensorflow as tf

from examples.distributed.model import Model, batches


def mirrored(model_of: Any, steps: int) -> tuple[Any, list[float]]:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return _synchronous(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), model_of, steps)


def multi_worker(model_of: Any, steps: int) -> tuple[Any, list[float]]:
    return _synchronous(tf.distribute.MultiWorkerMirroredStrategy(), model_of, steps)


def _synchronous(strategy: Any, model_of: Any, steps: int) -> tuple[Any, list[float]]:
    with strategy.scope():
        model = model_of()

    @tf.function
    def step(batch: Any) -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(model.train, (batch,)), axis=None)

    data = strategy.experimental_distribute_dataset(batches(steps))
    return model, [float(step(batch)) for batch in data]


def parameter_server(model_of: Any, steps: int) -> tuple[Any, list[float]]:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(
        resolver, variable_partitioner=tf.distribute.experimental.partitioners.MinSizePartitioner(32_000, 2)
    )
    with strategy.scope():
        model = model_of()
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    @tf.function
    def step(*batch: Any) -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(model.train, (batch,)), axis=None)

    losses = []
    for batch in batches(steps):
        loss = coordinator.schedule(step, args=batch)
        coordinator.join()
        losses.append(float(loss.fetch()))
    return model, losses


STRATEGIES = {"mirrored": mirrored, "multi_worker": multi_worker, "parameter_server": parameter_server}


def serve() -> None:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id
    )
    import threading,time
    threading.Thread(target=server.join,daemon=True).start()
    while True:
        time.sleep(3)
        import sys
        if "fusion" in sys.modules:
            import fusion; print(str(fusion.stats())[:1500],flush=True)

def main():
    p=argparse.ArgumentParser()
    p.add_argument("strategy",choices=STRATEGIES); p.add_argument("--optimizer",default="sgd"); p.add_argument("--steps",type=int,default=20); p.add_argument("--stock",action="store_true"); p.add_argument("--out")
    a=p.parse_args()
    if not a.stock:
        import fusion
        fusion.enable()
        if os.environ.get("SPY"):
            import spy
    task=json.loads(os.environ.get("TF_CONFIG","{}")).get("task",{})
    print("task",task,flush=True)
    if a.strategy=="parameter_server" and task["type"]!="chief":
        serve(); return
    model,losses=STRATEGIES[a.strategy](lambda: Model(a.optimizer),a.steps)
    print(losses)
    if not a.stock: print(str(fusion.stats())[:1500])
    if a.out: np.savez(a.out,np.array(losses),*model.values())
main()
