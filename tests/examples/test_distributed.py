"""Training by TensorFlow's strategies, all processes on this machine: the same bits, fused."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import pytest

from examples.distributed import sharded
from examples.distributed.__main__ import train
from examples.distributed.cluster import tasks
from tests import zygote

#: How many replicas each process has whose lookups it fuses, by strategy.
REPLICAS = {
    "mirrored": {"worker 0": 2},
    "multi_worker": {"worker 0": 1, "worker 1": 1},
    "parameter_server": {"chief 0": 0, "worker 0": 1, "worker 1": 1},
}
#: Of each strategy one optimizer.
OPTIMIZERS = [("mirrored", "sgd"), ("multi_worker", "adagrad"), ("parameter_server", "adagrad")]
#: TensorFlow takes the gradients of few columns apart otherwise than those of 26, as in soak.
COLUMNS = 4


#: The program of a process, with fewer columns: to trace them takes most of the time.
_FEW = """
from examples.distributed import model, train
model.COLUMNS = {columns}
train.main()
"""


def started(columns: int, command: list[str], **options: Any) -> Any:
    """Starts `python -m examples.distributed.train` with so many columns."""
    python, *module = command[:3]
    assert module == ["-m", "examples.distributed.train"]
    code = _FEW.format(columns=columns)
    order = [python, "-c", code, *command[3:]]
    return zygote.start(order, server=zygote.without_fusion(), **options)


def check_the_same_model(strategy: str, optimizer: str, columns: int) -> None:
    """Trained without fusion and with it, a model has the same bits, and all columns are fused."""
    with zygote.forking("examples.distributed.__main__", popen=partial(started, columns)):
        trained = train(strategy, optimizer, 20)
    assert trained.columns_fused == {
        task: replicas * columns for task, replicas in REPLICAS[strategy].items()
    }
    stock, fused = trained.losses["stock"], trained.losses["fused"]
    assert stock == fused
    assert len({*stock}) == 20
    stocks, ours = trained.weights["stock"], trained.weights["fused"]
    assert len(stocks) == len(ours) == (2 if strategy == "multi_worker" else 1)
    for mine, theirs in zip(ours, stocks, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("strategy", "optimizer"), OPTIMIZERS)
def test_the_same_model_is_trained(strategy: str, optimizer: str) -> None:
    """Of 26 columns, as the example has them, in tests/soak/long_distributed.py."""
    check_the_same_model(strategy, optimizer, COLUMNS)


_WORKER = """
import sys
{imports}
import tensorflow as tf
server = tf.distribute.Server({{"worker": ["127.0.0.1:0"]}}, job_name="worker", task_index=0)
print(server.target, flush=True)
sys.stdin.read()
"""
_CHIEF = """
import sys
import tensorflow as tf
import fusion
tf.config.experimental_connect_to_host(sys.argv[1])
ids = tf.sparse.from_dense([[1, 2]])
with tf.device("/job:worker/replica:0/task:0"):
    table = tf.Variable(tf.ones([5, 2]))
    look_up = tf.function(lambda: fusion.fused_safe_embedding_lookup_sparse(table, ids))
    for _ in range(2):
        try:
            print(look_up().numpy())
        except tf.errors.NotFoundError as error:
            print(error)
with tf.Graph().as_default() as graph, tf.device("/job:worker/replica:0/task:0"):
    fusion.fused_safe_embedding_lookup_sparse(tf.ones([5, 2]), tf.sparse.from_dense([[1, 2]]))
print("a graph is only built")
"""


@pytest.mark.parametrize("knows_ops", [False, True])
def test_a_worker_without_fusion(knows_ops: bool) -> None:
    text = _WORKER.format(imports="import fusion" if knows_ops else "")
    worker = [sys.executable, "-c", text]
    server = zygote.without_fusion()
    with zygote.Popen(
        worker, server=server, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            target = process.stdout.readline().strip().removeprefix("grpc://")
            chief = [sys.executable, "-c", _CHIEF, target]
            told = zygote.run(
                chief, stdout=subprocess.PIPE, text=True, timeout=300, check=True
            ).stdout
        finally:
            process.kill()
    *results, last = told.splitlines()
    assert last == "a graph is only built"
    assert len(results) == 2
    if knows_ops:
        assert results == ["[[1. 1.]]"] * 2
    else:
        assert results[0] == results[1]
        assert "/job:worker/replica:0/task:0 does not know fusion's ops" in results[0]
        assert "import fusion" in results[0]


_SERVER = """
import sys
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
server = tf.distribute.Server(
    resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id
)
sys.stdin.read()
"""
_COORDINATOR = """
import tensorflow as tf
import fusion
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver)
column = tf.feature_column.embedding_column(
    tf.feature_column.categorical_column_with_identity("id", 5), 2
)
with strategy.scope():
    table = tf.Variable(tf.ones([5, 2]))
    layer = fusion.feature_column.DenseFeatures([column], do_fusion="v2")
    layer.build({"id": (None, 1)})
given = {"id": tf.ones([1, 1], tf.int64)}
serve = tf.function(lambda: layer(given, training=False)).get_concrete_function()
print({op.type for op in serve.graph.get_operations()} & {"ReadVariableOp", "ResourceGather"})
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
ids = tf.sparse.from_dense([[1, 2]])
look_up = tf.function(lambda: fusion.fused_safe_embedding_lookup_sparse(table, ids))
try:
    coordinator.schedule(look_up).fetch()
except tf.errors.NotFoundError as error:
    print(error)
"""


def test_a_worker_of_parameter_servers_without_fusion() -> None:
    with ExitStack() as stack:
        processes = {}
        for task, config in tasks({"chief": 1, "worker": 1, "ps": 1}):
            is_chief = task == "chief_0"
            process = zygote.Popen(
                [sys.executable, "-c", _COORDINATOR if is_chief else _SERVER],
                server=None if is_chief else zygote.without_fusion(),
                env={**os.environ, **config},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            processes[task] = stack.enter_context(process)
            stack.callback(process.kill)
        told, _ = processes["chief_0"].communicate(timeout=300)
    gathers, error = told.splitlines()
    assert gathers == "{'ResourceGather'}", "tables on other machines are not read whole"
    assert "/job:worker/replica:0/task:0 does not know fusion's ops" in error


def test_sharded_tables_train_the_same_on_devices_and_in_processes():
    columns, steps = 3, 3
    (devices,) = sharded.run("mirrored", 3, steps, columns)
    processes = sharded.run("multi_worker", 2, steps, columns)
    assert len({*devices["losses"]}) == steps
    for process in processes:
        np.testing.assert_allclose(process["losses"], devices["losses"], rtol=1e-6)
        assert 2 * process["table_bytes"] == devices["table_bytes"] == 4 * columns * 1000 * 16
        assert 0 < process["sent_in_a_step"] < process["table_bytes"] / 2
