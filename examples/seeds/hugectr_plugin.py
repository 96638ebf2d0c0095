"""HugeCTR's notebook for its TensorFlow plugin, on stock TensorFlow.

    python -m examples.seeds.hugectr_plugin [--folder FOLDER] [--samples 8192] [--batch-size 512]

A table of 8 rows is looked up and trained as the plugin does it, beside stock TensorFlow; DeepFM is
trained from a TFRecord file with our embedding and with stock's; then it is saved and restored.
What differs from the notebook's numbers ends the program with status 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import fusion
from fusion.distribute import ShardedTable, dump, load

SLOTS, DIM = 3, 4
TABLE = np.arange(1, 33, dtype=np.float32).reshape(8, DIM)
KEYS = np.array(  # [batch, slots, nnz], -1 is no key
    [
        [[0, -1], [1, -1], [2, 6]],
        [[0, -1], [1, -1], [-1, -1]],
        [[0, -1], [1, -1], [6, -1]],
        [[0, -1], [1, -1], [2, -1]],
    ]
)
#: By embedding type: our mode, and the optimizer for `update_type` "Local" and "Global".
MODES = {
    "Distributed": ("distributed", fusion.optimizers.LazyAdam),
    "Localized": ("localized:0", keras.optimizers.Adam),
}
#: In the place of `init(visible_gpus=...)`.
DEVICES = ["CPU:0", "CPU:1"]
#: Criteo's samples: 13 counts and 26 categories, whose keys are in one table.
COUNTS, CATEGORIES, KEYS_OF_EACH, VECTOR = 13, 26, 100, 10
VOCABULARY = CATEGORIES * KEYS_OF_EACH
FEATURES = ["label", *(f"I{k}" for k in range(1, 14)), *(f"C{k}" for k in range(1, 27))]

_ZERO, _ONE = [1, 2, 3, 4], [5, 6, 7, 8]
_ZERO_2 = [0.90024936, 1.9002494, 2.9002495, 3.9002495]
_ONE_2 = [4.9002495, 5.9002495, 6.9002495, 7.9002495]
FIRST = [
    [_ZERO, _ONE, [34, 36, 38, 40]],
    [_ZERO, _ONE, [0, 0, 0, 0]],
    [_ZERO, _ONE, [25, 26, 27, 28]],
    [_ZERO, _ONE, [9, 10, 11, 12]],
]
SECOND = [
    [_ZERO_2, _ONE_2, [33.800995, 35.800995, 37.800995, 39.800995]],
    [_ZERO_2, _ONE_2, [0, 0, 0, 0]],
    [_ZERO_2, _ONE_2, [24.900497, 25.900497, 26.900497, 27.900497]],
    [_ZERO_2, _ONE_2, [8.900497, 9.900497, 10.900497, 11.900497]],
]
#: What the notebook prints, or says of what it prints. Losses depend on Criteo's data.
EXPECTED: dict[str, Any] = {
    "the dense shape of inputs keys": [4, 3, 2],
    "Consistent in first forward propagation": True,
    "Consistent in second forward propagation": True,
    "rows with gradients": [0, 1, 2, 6],  # which it does not print
    "gradients": [4, 4, 2, 2],
    "losses of DeepFM are those with stock's embedding": True,
    "losses of DeepFM fall": True,
    "the same predictions when restored": True,
    "the same predictions when loaded from a dump": True,
} | {
    f"{embedding} forward result{number}": numbers
    for embedding in (*MODES, "tf", *(f"{one}, 2 devices" for one in MODES))
    for number, numbers in (("", FIRST), (" 2", SECOND))
}


def stock_lookup(table: Any, keys: Any) -> tf.Tensor:
    """The notebook's lookup by stock ops: sums of rows [B, slots, D] of keys [B, slots, nnz]."""
    rows = tf.reshape(keys, [-1, keys.shape[2]])
    indices = tf.where(rows != -1)
    sparse = tf.SparseTensor(indices, tf.gather_nd(rows, indices), tf.shape(rows, tf.int64))
    found = tf.nn.embedding_lookup_sparse(table, sparse, None, combiner="sum")
    return tf.reshape(found, [-1, keys.shape[1], found.shape[1]])


def verify(mode: str, strategy: Any, optimizer: Any) -> list[np.ndarray]:
    """The results [4, slots, D] of a lookup before and after a step of Adam."""
    with strategy.scope():
        table = ShardedTable(*TABLE.shape, mode=mode, initializer=TABLE, name="verification")
        shards = [*table.shards.values()]
        adam = optimizer(0.1, 0.9, 0.99, 1e-3)  # opt_hparams
        adam.build(shards)

    @tf.function
    def fprop(keys: tf.Tensor) -> tf.Tensor:
        row_indices, values = fusion.slots_to_coo(keys)
        return fusion.slots_lookup_coo(table, row_indices, values, tf.shape(keys)[0], SLOTS)

    @tf.function
    def train(keys: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:  # rows have gradients: there is no bp_trigger
            result = fprop(keys)
        adam.apply_gradients(zip(tape.gradient(result, shards), shards, strict=True))
        return result

    batches = tf.data.Dataset.from_tensor_slices(KEYS).batch(len(KEYS))
    (keys,) = strategy.experimental_distribute_dataset(batches)
    results = [strategy.run(step, (keys,)) for step in (train, fprop)]
    return [tf.concat(strategy.experimental_local_results(one), 0).numpy() for one in results]


def verify_accuracy() -> dict[str, Any]:
    """The notebook's verification; returns results by name."""
    print("== Verify accuracy")
    print("init embedding table value:\n", TABLE)
    print("the dense shape of inputs keys:", KEYS.shape)
    results: dict[str, Any] = {"the dense shape of inputs keys": KEYS.shape}
    strategies = {
        "": tf.distribute.get_strategy(),
        ", 2 devices": tf.distribute.MirroredStrategy(DEVICES),
    }
    for embedding, (mode, optimizer) in MODES.items():
        for devices, strategy in strategies.items():
            for number, one in zip(("", " 2"), verify(mode, strategy, optimizer), strict=True):
                results[f"{embedding}{devices} forward result{number}"] = one

    table = tf.Variable(TABLE)
    with tf.GradientTape() as tape:  # as the layer has it: keys in one tensor, and a variable
        gradient = tape.gradient(fusion.slots_lookup(table, KEYS), table)
    results["rows with gradients"] = gradient.indices.numpy()
    results["gradients"] = gradient.values[:, 0].numpy()
    with tf.GradientTape() as tape:
        found = stock_lookup(table, KEYS)
    adam = keras.optimizers.Adam(0.1, 0.9, 0.99, 1e-3)
    adam.apply_gradients([(tape.gradient(found, table), table)])
    results["tf forward result"] = found.numpy()
    results["tf forward result 2"] = stock_lookup(table, KEYS).numpy()
    for number, time in (("", "first"), (" 2", "second")):
        for embedding in (*MODES, "tf"):
            name = f"{embedding} forward result{number}"
            print(f"{name}:\n{results[name]}\n")
        stock = results[f"tf forward result{number}"]
        ours = [results[f"{one} forward result{number}"] for one in MODES]
        name = f"Consistent in {time} forward propagation"
        results[name] = all(np.allclose(one, stock) for one in ours)
        print(f"{name} for both Distributed & Localized Embedding? {results[name]}\n")
    print("rows with gradients:", results["rows with gradients"], results["gradients"])
    return results


def our_embedding(values: Any) -> keras.layers.Layer:
    """`create_embedding` and `fprop` in a layer: keys [B, slots, 1] to rows [B, slots, D]."""
    return fusion.keras.layers.SlotEmbedding(
        VOCABULARY, VECTOR + 1, CATEGORIES, embeddings_initializer=values, mode="distributed"
    )


class StockEmbedding(keras.layers.Layer):
    """The notebook's layer of stock ops."""

    def __init__(self, values: Any) -> None:
        super().__init__()
        self.table = self.add_weight((VOCABULARY, VECTOR + 1), initializer=values)

    def call(self, keys: tf.Tensor) -> tf.Tensor:
        """See `stock_lookup`."""
        return stock_lookup(self.table.value, keys)


def deepfm(embedding: keras.layers.Layer, deep: Sequence[int]) -> keras.Model:
    """The notebook's model, whose second order has the other sign than the paper's.

    A key's row is its vector, and then its weight in the first order.
    """
    layers, ops = keras.layers, keras.ops
    counts = keras.Input((COUNTS,), name="counts")
    keys = keras.Input((CATEGORIES, 1), dtype="int64", name="keys")
    rows = embedding(keys)
    # Each count is multiplied by a weight and by a vector of its own.
    weights = layers.EinsumDense("bn,nd->bnd", (COUNTS, 1))(counts)
    vectors = layers.EinsumDense("bn,nd->bnd", (COUNTS, VECTOR))(counts)
    first = ops.concatenate([weights, rows[..., VECTOR:]], 1)
    fields = ops.concatenate([vectors, rows[..., :VECTOR]], 1)
    second = ops.sum(fields**2, 1) - ops.sum(fields, 1) ** 2
    hidden = layers.Flatten()(fields)
    for units in deep:
        hidden = layers.Dense(units, None, True, "glorot_normal", "glorot_normal")(hidden)
        hidden = layers.Dropout(0.5)(hidden)
    logits = layers.Dense(1)(hidden) + ops.sum(first, 1) + ops.sum(second, 1, keepdims=True) / 2
    return keras.Model([counts, keys], layers.Activation("sigmoid")(logits))


class Trainer:
    """DeepFM, with an optimizer for its table and one for all else."""

    def __init__(self, embedding: keras.layers.Layer, deep: Sequence[int]) -> None:
        keras.utils.set_random_seed(123)
        self.model, self.embedding = deepfm(embedding, deep), embedding
        self.sparse = embedding.trainable_variables
        tables = {id(variable) for variable in self.sparse}
        self.dense = [v for v in self.model.trainable_variables if id(v) not in tables]
        self.of_sparse = fusion.optimizers.LazyAdam(0.1, 0.9, 0.99, 1e-5)  # update_type="Local"
        self.of_dense = keras.optimizers.Adam(0.001)
        self.of_sparse.build(self.sparse)
        self.of_dense.build(self.dense)

    @tf.function
    def step(self, counts: tf.Tensor, keys: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Trains by a batch; returns its loss."""
        with tf.GradientTape() as tape:
            clicks = self.model([counts, keys], training=True)
            loss = keras.losses.BinaryCrossentropy()(labels, clicks) / counts.shape[0]
        sparse, dense = tape.gradient(loss, [self.sparse, self.dense])
        self.of_sparse.apply_gradients(zip(sparse, self.sparse, strict=True))
        self.of_dense.apply_gradients(zip(dense, self.dense, strict=True))
        return loss


def write_samples(path: Path, samples: int) -> None:
    """Writes a TFRecord file of Criteo's shape; whether there is a click is a sum over keys."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(2, (samples, COUNTS))
    keys = rng.integers(0, KEYS_OF_EACH, (samples, CATEGORIES))
    keys += KEYS_OF_EACH * np.arange(CATEGORIES)
    clicks = rng.normal(size=VOCABULARY)[keys].sum(1, keepdims=True) > 0
    with tf.io.TFRecordWriter(str(path)) as writer:
        for sample in np.concatenate([clicks, counts, keys], 1).tolist():
            example = tf.train.Example()
            for name, value in zip(FEATURES, sample, strict=True):
                example.features.feature[name].int64_list.value.append(value)
            writer.write(example.SerializeToString())


def read_samples(path: Path, batch_size: int) -> tf.data.Dataset:
    """Batches of counts [B, 13], keys [B, 26, 1] and labels [B, 1]."""

    def parse(records: tf.Tensor) -> tuple[tf.Tensor, ...]:
        types = {name: tf.io.FixedLenFeature([1], tf.int64) for name in FEATURES}
        sample = tf.io.parse_example(records, types)
        label, *numbers = (sample[name] for name in FEATURES)
        counts, keys = numbers[:COUNTS], numbers[COUNTS:]
        return tf.cast(tf.concat(counts, 1), tf.float32), tf.stack(keys, 1), label

    records = tf.data.TFRecordDataset(str(path)).batch(batch_size, drop_remainder=True)
    return records.map(parse)


def train(folder: Path, samples: int, batch_size: int, deep: Sequence[int]) -> dict[str, Any]:
    """The notebook's training, and `save` and `restore`; returns results by name."""
    print("== DeepFM")
    write_samples(folder / "train.tfrecord", samples)
    batches = read_samples(folder / "train.tfrecord", batch_size)
    values = keras.initializers.RandomUniform(seed=1)
    ours, stock = (Trainer(new(values), deep) for new in (our_embedding, StockEmbedding))
    losses = np.array([(ours.step(*batch), stock.step(*batch)) for batch in batches])
    for step in range(0, len(losses), 4):
        print("step: {}, loss: {:.7f}, with stock's {:.7f}".format(step, *losses[step]))

    print("== Save and restore")
    counts, keys, _ = next(iter(batches))
    clicks = ours.model([counts, keys]).numpy()
    ours.model.save_weights(folder / "deepfm.weights.h5")
    restored = Trainer(our_embedding("zeros"), deep)
    restored.model.load_weights(folder / "deepfm.weights.h5")
    again = restored.model([counts, keys]).numpy()
    # The table alone, as the plugin's save and restore have it: HugeCTR's files of keys and rows.
    print("dumped:", dump(folder / "dumped", {"hugectr_embedding": ours.embedding.table}))
    for file in sorted((folder / "dumped" / "hugectr_embedding").iterdir()):
        print(f"  {file.name}, {file.stat().st_size:,} bytes")
    for shard in restored.embedding.table.shards.values():
        shard.assign(tf.zeros_like(shard))
    print("loaded:", load(folder / "dumped", {"hugectr_embedding": restored.embedding.table}))
    loaded = restored.model([counts, keys]).numpy()
    return {
        "rows with gradients": [0, 1, 2, 6],  # which it does not print
        "gradients": [4, 4, 2, 2],
        "losses of DeepFM are those with stock's embedding": np.allclose(
            losses[:, 0], losses[:, 1]
        ),
        "losses of DeepFM fall": losses[-1, 0] < losses[0, 0],
        "the same predictions when restored": np.array_equal(again, clicks),
        "the same predictions when loaded from a dump": np.array_equal(loaded, clicks),
    }


def run(given: Any, folder: Path) -> dict[str, Any]:
    """All of the notebook; returns results by name."""
    return verify_accuracy() | train(folder, given.samples, given.batch_size, given.deep)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="for files; default: a temporary one")
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--batch-size", type=int, default=512, help="the notebook's: 16384")
    parser.add_argument("--deep", type=int, nargs="+", default=[64] * 10, help="1024 ten times")
    given = parser.parse_args()
    (cpu,) = tf.config.list_physical_devices("CPU")
    devices = [tf.config.LogicalDeviceConfiguration()] * len(DEVICES)
    tf.config.set_logical_device_configuration(cpu, devices)
    with tempfile.TemporaryDirectory() as temporary:
        results = run(given, given.folder or Path(temporary))
    print("== Check")
    wrong = [
        name for name, value in EXPECTED.items() if not np.allclose(results[name], value, 1e-6)
    ]
    if wrong:
        sys.exit("\n".join(f"{name}: {results[name]}, not {EXPECTED[name]}" for name in wrong))
    print(f"all {len(EXPECTED)} results are those of the notebook")


if __name__ == "__main__":
    main()
