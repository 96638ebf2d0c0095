"""SparseOperationKit's guide, on stock TensorFlow.

    python -m examples.seeds.sparse_operation_kit [--folder FOLDER] [--batch-size 64] [--units 64]

Its model is trained on one device, by MirroredStrategy, and in processes that this program starts,
by MultiWorkerMirroredStrategy; then `lookup_sparse` of its experimental part, whose tables are
trained, saved and dumped. What differs from the guide's numbers ends the program with status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import fusion
from fusion.distribute import ShardedTable, dump, load
from fusion.keras.layers import AllToAllDenseEmbedding

REPLICAS, STEPS, LEARNING_RATE = 2, 3, 0.1
#: The guide has 1024 rows on each GPU; here is what all have together.
ROWS, SLOTS, NNZ, DIM, LAYERS = 1024 * REPLICAS, 10, 5, 16, 7
V1, V2 = np.arange(17 * 3).reshape(17, 3), np.arange(7 * 5).reshape(7, 5)
NAMES = "v1_0", "v2_0"
DEVICES = [f"CPU:{k}" for k in range(REPLICAS)]
#: Of v1 and v2.
MODES = {"distributed": ("distributed",) * 2, "localized": ("localized:0", "localized:1")}

#: Two replicas have looked up row 1 of v1 twice, and SGD with rate 1 has taken 1 from it for each.
V1_TRAINED = V1 - 2 * np.bincount([1, 1, 3, 4, 5], minlength=17)[:, None]
V2_TRAINED = V2 - 2 * np.bincount([1, 2, 3], minlength=7)[:, None]
#: What the guide's comments say, by mode and GPU, and what follows from them.
EXPECTED: dict[str, Any] = {
    "losses of the functional model": True,
    "losses with MirroredStrategy": True,
    "losses with MultiWorkerMirroredStrategy": True,
    "distributed, shapes on GPU 0": [[9, 3], [4, 5]],
    "distributed, shapes on GPU 1": [[8, 3], [3, 5]],
    "distributed, shapes of gradients on GPU 0": [[1, 3], [1, 5]],
    "distributed, shapes of gradients on GPU 1": [[3, 3], [2, 5]],
    "localized, shapes on GPU 0": [[17, 3], [0, 5]],
    "localized, shapes on GPU 1": [[0, 3], [7, 5]],
    # No rows, where the guide has no gradient.
    "localized, shapes of gradients on GPU 0": [[4, 3], [0, 5]],
    "localized, shapes of gradients on GPU 1": [[0, 3], [3, 5]],
    "the same in processes": True,
    "v1 and v2 after a step": [V1_TRAINED.tolist(), V2_TRAINED.tolist()],
    "restored from a checkpoint": [V1_TRAINED.tolist(), V2_TRAINED.tolist()],
    "loaded from a dump": [V1_TRAINED.tolist(), V2_TRAINED.tolist()],
} | {
    f"{mode}, embedding{number}": numbers
    for mode in MODES
    for number, numbers in (
        (1, [[6, 8, 10], [36, 39, 42]]),
        (2, [[5, 6, 7, 8, 9], [25, 27, 29, 31, 33]]),
    )
}


class DemoModel(keras.Model):
    """The guide's model, subclassed."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.embedding_layer = embedding_layer()
        self.dense_layers = [keras.layers.Dense(units, "relu") for _ in range(LAYERS)]
        self.out_layer = keras.layers.Dense(1)

    def call(self, inputs: tf.Tensor, training: bool = True) -> tf.Tensor:
        """Logits [B, 1] of keys [B, slots, nnz]."""
        emb_vector = self.embedding_layer(inputs, training=training)  # [B, slots, nnz, D]
        hidden = tf.reshape(emb_vector, [-1, SLOTS * NNZ * DIM])
        for layer in self.dense_layers:
            hidden = layer(hidden)
        return self.out_layer(hidden)


def create_demo_model(units: int) -> keras.Model:
    """The guide's model by the functional API."""
    input_tensor = keras.Input((SLOTS, NNZ), dtype="int64")
    hidden = keras.layers.Reshape([SLOTS * NNZ * DIM])(embedding_layer()(input_tensor))
    for _ in range(LAYERS):
        hidden = keras.layers.Dense(units, "relu")(hidden)
    return keras.Model(input_tensor, keras.layers.Dense(1)(hidden))


def embedding_layer() -> keras.layers.Layer:
    """`sok.All2AllDenseEmbedding`; without a strategy its table is in one piece."""
    values = keras.initializers.RandomUniform(seed=1)
    return AllToAllDenseEmbedding(
        ROWS, DIM, SLOTS, NNZ, embeddings_initializer=values, mode="distributed"
    )


def split_embedding_variable_from_others(model: keras.Model) -> tuple[list[Any], list[Any]]:
    """The variables of tables, and all others."""
    layers = [layer for layer in model.layers if isinstance(layer, AllToAllDenseEmbedding)]
    tables = [variable for layer in layers for variable in layer.trainable_variables]
    known = {id(variable) for variable in tables}
    return tables, [v for v in model.trainable_variables if id(v) not in known]


def train(strategy: Any, create: Callable[[int], keras.Model], given: Any) -> list[float]:
    """The losses of a model that a strategy trains."""
    with strategy.scope():  # there is no sok.Init
        keras.utils.set_random_seed(1)
        model = create(given.units)
        model(keras.Input((SLOTS, NNZ), dtype="int64"))  # which builds one that is subclassed
        emb_var, other_var = split_embedding_variable_from_others(model)
        # Any optimizers: there is no OptimizerScope.
        emb_opt = fusion.optimizers.LazyAdam(LEARNING_RATE)
        dense_opt = keras.optimizers.Adam(LEARNING_RATE)
        emb_opt.build(emb_var)
        dense_opt.build(other_var)
        loss_fn = keras.losses.BinaryCrossentropy(from_logits=True, reduction="none")

    @tf.function
    def train_step(inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = model(inputs, training=True)
            losses = loss_fn(labels, logits)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=given.batch_size)
        emb_grads, grads = tape.gradient(loss, [emb_var, other_var])
        emb_opt.apply_gradients(zip(emb_grads, emb_var, strict=True))
        dense_opt.apply_gradients(zip(grads, other_var, strict=True))
        return loss

    rng = np.random.default_rng(0)
    keys = rng.integers(0, ROWS, (STEPS * given.batch_size, SLOTS, NNZ))
    labels = rng.integers(0, 2, (len(keys), 1)).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((keys, labels)).batch(given.batch_size)
    losses = []
    for batch in strategy.experimental_distribute_dataset(data):
        replica_loss = strategy.run(train_step, batch)
        losses.append(float(strategy.reduce("SUM", replica_loss, axis=None)))
    return losses


def experiment(strategy: Any, mode: str) -> tuple[dict[str, Any], list[ShardedTable]]:
    """The experimental part: results by name, of the replicas of this process; and v1 and v2."""
    indices1 = tf.SparseTensor([[0, 0], [0, 1], [1, 0], [1, 1], [1, 2]], [1, 1, 3, 4, 5], [2, 3])
    indices2 = tf.SparseTensor([[0, 0], [1, 0], [1, 1]], [1, 2, 3], [2, 2])
    with strategy.scope():
        tables = [
            ShardedTable(*values.shape, mode=own, initializer=values, name=f"{mode}_v{number}")
            for number, values, own in zip((1, 2), (V1, V2), MODES[mode], strict=True)
        ]
        optimizer = keras.optimizers.SGD(1.0)
        by_table = [table.shards for table in tables]
        shards = [shard for one in by_table for shard in one.values()]
        optimizer.build(shards)

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            embeddings = fusion.lookup_sparse(
                tables, [indices1, indices2], combiners=["sum", "sum"]
            )
            loss = tf.add_n([tf.reduce_sum(embedding) for embedding in embeddings])
        grads = tape.gradient(loss, by_table)
        optimizer.apply_gradients(zip(tf.nest.flatten(grads), shards, strict=True))
        return embeddings, grads

    embeddings, grads = tf.nest.map_structure(
        lambda one: strategy.experimental_local_results(one)[0], strategy.run(step)
    )
    found: dict[str, Any] = {}
    for number, embedding in enumerate(embeddings):
        found[f"{mode}, embedding{number + 1}"] = embedding.numpy().tolist()
    for gpu in by_table[0]:
        shapes = [own[gpu].shape.as_list() for own in by_table]
        found[f"{mode}, shapes on GPU {gpu}"] = shapes
        shapes = [own[gpu].values.shape.as_list() for own in grads]
        found[f"{mode}, shapes of gradients on GPU {gpu}"] = shapes
    return found, tables


def in_processes(given: Any) -> list[dict[str, Any]]:
    """What each of the processes of a MultiWorkerMirroredStrategy finds.

    Raises:
        RuntimeError: one failed.
    """
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(REPLICAS)]
    workers = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    program = [__file__] if __spec__ is None else ["-m", __spec__.name]
    options = ["--worker", f"--batch-size={given.batch_size}", f"--units={given.units}"]
    started = []
    for index in range(REPLICAS):  # in the place of mpiexec and horovodrun
        config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(config)}
        command = [sys.executable, *program, *options]
        started.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        )
    printed = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError("a process of MultiWorkerMirroredStrategy failed")
    return [json.loads(text.splitlines()[-1]) for text in printed]


def work(given: Any) -> dict[str, Any]:
    """What one of these processes finds."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    found = {"losses": train(strategy, DemoModel, given)}
    for mode in MODES:
        found |= experiment(strategy, mode)[0]
    return found


def values_of(tables: Sequence[ShardedTable]) -> list[Any]:
    """The rows of whole tables."""
    return [table.saved_tensors()["table"].numpy().tolist() for table in tables]


def save_and_dump(folder: Path, tables: Sequence[ShardedTable]) -> dict[str, Any]:
    """v1 and v2 in files, and read from these into tables of one device; results by name."""
    print("== Saved, restored, dumped, loaded")
    results = {}
    path = tf.train.Checkpoint(tables=tables).save(str(folder / "sok"))
    others = [ShardedTable(table.rows, table.dimension) for table in tables]
    tf.train.Checkpoint(tables=others).restore(path).assert_consumed()
    results["restored from a checkpoint"] = values_of(others)
    print("dumped:", dump(folder / "dumped", dict(zip(NAMES, tables, strict=True)), "sok"))
    for file in sorted((folder / "dumped").iterdir()):
        print(f"  {file.name}, {file.stat().st_size} bytes")
    others = [ShardedTable(table.rows, table.dimension) for table in tables]
    print("loaded:", load(folder / "dumped", dict(zip(NAMES, others, strict=True))))
    results["loaded from a dump"] = values_of(others)
    return results


def run(given: Any, folder: Path) -> dict[str, Any]:
    """All of the guide; returns results by name."""
    results: dict[str, Any] = {}
    print("== The model, on one device")
    one, mirrored = tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(DEVICES)
    losses = train(one, DemoModel, given)
    print_losses(losses)
    functional = train(one, create_demo_model, given)
    results["losses of the functional model"] = np.allclose(functional, losses)
    print("== MirroredStrategy")
    of_mirrored = train(mirrored, DemoModel, given)
    print_losses(of_mirrored)
    results["losses with MirroredStrategy"] = np.allclose(of_mirrored, losses)
    print("== MultiWorkerMirroredStrategy, also in the place of Horovod")
    of_processes = in_processes(given)
    print_losses(of_processes[0]["losses"])
    results["losses with MultiWorkerMirroredStrategy"] = all(
        np.allclose(process.pop("losses"), losses) for process in of_processes
    )
    print("== Experimental features")
    found, tables = experiment(mirrored, "distributed")
    found |= experiment(mirrored, "localized")[0]
    for name, numbers in found.items():
        print(f"{name}: {numbers}")
    results |= found
    results["the same in processes"] = all(
        found[name] == value for process in of_processes for name, value in process.items()
    )
    results["v1 and v2 after a step"] = values_of(tables)
    for table in tables:
        for shard in table.shards.values():
            print(f"{shard.name}:\n{shard.numpy()}")
    return results | save_and_dump(folder, tables)


def print_losses(losses: list[float]) -> None:
    """Prints the losses of steps."""
    for step, loss in enumerate(losses):
        print(f"Iteration: {step}, loss: {loss:.6f}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="for files; default: a temporary one")
    parser.add_argument("--batch-size", type=int, default=64, help="of all replicas; 65536 there")
    parser.add_argument("--units", type=int, default=64, help="of the dense layers; 1024 there")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    tf.get_logger().setLevel("ERROR")  # it warns of functions that are traced again
    if given.worker:
        print(json.dumps(work(given)))
        return
    (cpu,) = tf.config.list_physical_devices("CPU")
    devices = [tf.config.LogicalDeviceConfiguration()] * REPLICAS
    tf.config.set_logical_device_configuration(cpu, devices)
    with tempfile.TemporaryDirectory() as temporary:
        results = run(given, given.folder or Path(temporary))
    print("== Check")
    wrong = [name for name, value in EXPECTED.items() if results[name] != value]
    if wrong:
        sys.exit("\n".join(f"{name}: {results[name]}, not {EXPECTED[name]}" for name in wrong))
    print(f"all {len(EXPECTED)} results are those of the guide")


if __name__ == "__main__":
    main()
