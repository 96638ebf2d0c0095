"""The training notebook of the Hierarchical Parameter Server (HPS), on stock TensorFlow.

python -m examples.seeds.hierarchical_parameter_server

Its model is trained as it is there, then exported and split: `fusion split` does what the notebook
does by hand. docs/hierarchical.md goes on with databases, a gRPC server and Triton.
"""

from __future__ import annotations

import argparse
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

import fusion
from fusion.tables import TableStore

BATCH = 65536
SLOTS, DIMENSION, ROWS = 3, 16, 30000
RANGES = [[0, 10000], [10000, 20000], [20000, 30000]]

#: What the notebook prints. Losses follow from labels, which are random. All logits of step 0 are
#: the same, so that its loss tells that 32,632 of the 65,536 labels were 0: as many are here.
EXPECTED: dict[str, Any] = {
    "logit at step 0": 1572864.0,
    "loss at step 0": 783168.0,
    "steps whose loss is not within 2 % of the notebook's": [],
    "weights of the dense model": 45569,
    "output of the dense model for 96 numbers": (2, 1),
    "files equal to those of the notebook, byte for byte": ["key", "emb_vector"],
    "served answers equal to the bit": 512,
}
ZEROS = 32632
LOSSES = [
    *(783168.0, 518110.40625, 327503.125, 199153.59375, 115212.203125),
    *(64676.38671875, 34635.75390625, 17304.05859375, 8057.4736328125, 3385.7255859375),
]


class DenseModel(tf_keras.Model):
    """The notebook's, in the Keras of its time."""

    def __init__(self) -> None:
        super().__init__()
        self.params = tf.Variable(tf.ones([ROWS, DIMENSION]), name="params")
        self.fc_1 = tf_keras.layers.Dense(256, kernel_initializer="ones", name="fc_1")
        self.fc_2 = tf_keras.layers.Dense(128, kernel_initializer="ones", name="fc_2")
        self.fc_3 = tf_keras.layers.Dense(1, kernel_initializer="ones", name="fc_3")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """The logits [B, 1] of keys [B, SLOTS]."""
        embedding_vector = tf.nn.embedding_lookup(params=self.params, ids=inputs)
        embedding_vector = tf.reshape(embedding_vector, shape=[-1, SLOTS * DIMENSION])
        return self.fc_3(self.fc_2(self.fc_1(embedding_vector)))


def generate_random_samples(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The keys [BATCH, SLOTS] and labels [BATCH, 1] of a step."""
    keys = [rng.integers(low, high, (BATCH, 1)) for low, high in RANGES]
    return np.concatenate(keys, axis=1), rng.integers(0, 2, (BATCH, 1))


def train(steps: int, found: dict[str, Any]) -> DenseModel:
    """Trains the model; fused lookups need no change to it."""
    model = DenseModel()
    optimizer = tf_keras.optimizers.Adam(learning_rate=0.1)
    loss_fn = tf_keras.losses.BinaryCrossentropy(from_logits=True)

    @tf.function
    def train_step(inputs: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            logit = model(inputs)
            loss = loss_fn(labels, logit)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        return logit, loss

    rng, losses = np.random.default_rng(0), []
    for step in range(steps):
        keys, labels = generate_random_samples(rng)
        if step == 0:
            labels = rng.permutation(np.arange(BATCH) >= ZEROS).astype(np.int64)[:, None]
        logit, loss = train_step(tf.constant(keys), tf.constant(labels))
        losses.append(float(loss))
        print(f"step {step}, loss {losses[-1]:10.2f}, in the notebook {LOSSES[step]:10.2f}")
        if step == 0:
            (found["logit at step 0"],) = np.unique(logit).tolist()
            found["loss at step 0"] = losses[0]
    found["steps whose loss is not within 2 % of the notebook's"] = [
        step for step, loss in enumerate(losses) if not np.isclose(loss, LOSSES[step], rtol=0.02)
    ]
    return model


def export(model: DenseModel, path: Path) -> None:
    """Writes a SavedModel."""
    serve = tf.function(lambda keys: {"logit": model(keys)})
    signature = serve.get_concrete_function(tf.TensorSpec([None, SLOTS], tf.int64, name="keys"))
    tf.saved_model.save(model, str(path), signature)


def convert_to_sparse_model(embeddings_weights: np.ndarray, folder: Path) -> None:
    """The notebook's function, a row at a time; only to compare its files."""
    folder.mkdir()
    with open(folder / "key", "wb") as key_file, open(folder / "emb_vector", "wb") as vec_file:
        for key in range(embeddings_weights.shape[0]):
            key_file.write(struct.pack("q", key))
            vec_file.write(struct.pack(f"{DIMENSION}f", *embeddings_weights[key]))


def run(folder: Path, steps: int) -> dict[str, Any]:
    """Goes through the notebook; returns the numbers that are compared."""
    found: dict[str, Any] = {}
    print("== Train the native TensorFlow model")
    fusion.enable()
    model = train(steps, found)
    print(f"lookups that are fused: {fusion.stats().columns_fused}")

    print("== Save the dense model, and the lookup model's table")
    export(model, folder / "naive_dnn")
    split = fusion.split_saved_model(folder / "naive_dnn", folder / "split")
    for cut, kept in zip(split.cuts, split.tables, strict=True):
        print(f"{cut.name} {list(cut.shape)} from a table of {kept.rows:,} rows of {kept.width}")
    table, wanted = folder / "split/tables/params", folder / "naive_dnn_sparse.model"
    convert_to_sparse_model(model.params.numpy(), wanted)
    found["files equal to those of the notebook, byte for byte"] = [
        name
        for name in ("key", "emb_vector")
        if (table / name).read_bytes() == (wanted / name).read_bytes()
    ]

    print("== Reconstruct the dense model: its input is flat")
    dense = tf.saved_model.load(folder / "split/dense")
    weights = sum(int(np.prod(one.shape)) for one in dense.variables)
    found["weights of the dense model"] = weights
    numbers = tf.constant(np.random.random(96), tf.float32)
    output = dense.signatures["flat"](embeddings=numbers)["logit"]
    found["output of the dense model for 96 numbers"] = tuple(output.shape)
    print(f"{weights:,} weights, input {numbers.shape}, output {output.shape}")

    print("== Serve: a gRPC server, and a store of tables that HPS's JSON configures")
    config = {
        "supportlonglong": True,
        "models": [
            {
                "sparse_files": [str(table)],
                "embedding_table_names": ["params"],
                "embedding_vecsize_per_table": [DIMENSION],
                "default_value_for_each_table": [0.0],
                "gpucacheper": 0.1,
                "hit_rate_threshold": 1.0,
            }
        ],
    }
    keys, _ = generate_random_samples(np.random.default_rng(1))
    whole = tf.saved_model.load(folder / "naive_dnn").signatures["serving_default"]
    answer = served(folder / "split", TableStore.from_hps_json(config), keys[:512])
    found["served answers equal to the bit"] = int(
        np.sum(answer == whole(keys=tf.constant(keys[:512]))["logit"])
    )
    return found


def served(split: Path, store: TableStore, keys: np.ndarray) -> np.ndarray:
    """What `python -m examples.serving` answers, here in this process."""
    from examples.serving.client import Client
    from examples.serving.model import SplitModel
    from examples.serving.server import Server

    model = SplitModel(split, store)
    server = Server(model, "127.0.0.1:0")
    with Client(f"127.0.0.1:{server.port}") as client:
        logit = client.predict({"keys": keys})["logit"]
    counters = store.counters().tables["params"]
    print(f"{len(logit)} answers; hits {counters.hits}, misses {counters.misses}", end=", ")
    print(f"rows that no tier has {counters.unknown}")
    server.stop(grace=10)
    model.close()
    return logit


def check(found: dict[str, Any]) -> None:
    """Ends the process with an error if a number is not that of the document."""
    print("== Check")
    wrong = [name for name, value in EXPECTED.items() if found[name] != value]
    if wrong:
        sys.exit("\n".join(f"{name}: {found[name]}, not {EXPECTED[name]}" for name in wrong))
    print("as expected:", "; ".join(EXPECTED))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="for models and tables; a temporary one")
    parser.add_argument("--steps", type=int, default=10, choices=range(1, 11), metavar="1-10")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        found = run(options.folder or Path(temporary), options.steps)
    check(found)


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[2]))  # examples.serving, where this file is run
    main()
