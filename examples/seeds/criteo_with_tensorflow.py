"""NVTabular's notebook "Scaling Criteo: Training with TensorFlow", on stock TensorFlow.

python -m examples.seeds.criteo_with_tensorflow [--cap 10000] [--batches 16] [--batch-size 16384]

Without Criteo's files it makes some of the same shape, of random values.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

import fusion
from fusion.data import KerasSequenceValidater, ParquetLoader

CONTINUOUS_COLUMNS = ["I" + str(x) for x in range(1, 14)]
CATEGORICAL_COLUMNS = ["C" + str(x) for x in range(1, 27)]
LABEL_COLUMNS = ["label"]

#: What the notebook prints: the rows of each column's table, from C1 to C26. Their dimension is 16.
ROWS = (
    *(10000000, 29612, 15050, 7190, 19547, 4, 6492, 1317, 63, 10000000, 707291, 218510, 11),
    *(2209, 9798, 72, 4, 954, 15, 10000000, 4553157, 10000000, 291641, 10904, 91, 35),
)
CARDINALITIES = dict(zip(CATEGORICAL_COLUMNS, ROWS, strict=True))
EXPECTED: dict[str, Any] = {
    "embedding tables": {name: (rows, 16) for name, rows in CARDINALITIES.items()},
    "shape of the dense features": (None, 416),
    "rows left out": 0,
    "the loss falls": True,
    "columns fused in the SavedModel": 26,
    "predictions of the SavedModel are the model's": True,
}


def write_workflow(folder: Path) -> None:
    """What NVTabular's workflow says of its categories, as its ETL notebook leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in CARDINALITIES.items():
        counts = {"kind": ["pad", "null", "oov", "unique"], "num_indices": [1, 1, 1, rows - 3]}
        pq.write_table(pa.table({name: [0]}), folder / f"unique.{name}.parquet")
        pq.write_table(pa.table(counts), folder / f"meta.{name}.parquet")


def write_rows(path: Path, tables: dict[str, tuple[int, int]], rows: int, seed: int) -> None:
    """A file of ETL's output: labels that depend on C6, ids, normalized numbers."""
    path.parent.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {
        name: (tables[name][0] * rng.random(rows, np.float32) ** 3).astype(np.int64)
        for name in CATEGORICAL_COLUMNS
    }
    columns |= {name: rng.random(rows, np.float32) for name in CONTINUOUS_COLUMNS}
    columns["label"] = (rng.random(rows) < 0.1 + 0.3 * (columns["C6"] % 2)).astype(np.int64)
    pq.write_table(pa.table(columns), path, row_group_size=1 << 16)


def new_model(tables: dict[str, tuple[int, int]], found: dict[str, Any]) -> tf.keras.Model:
    """The notebook's model: vectors of ids alone under three layers, as it is there."""
    inputs = {}
    emb_layers = []
    for col in CATEGORICAL_COLUMNS:
        inputs[col] = tf.keras.Input(name=col, dtype=tf.int32, shape=(1,))
    for col in CONTINUOUS_COLUMNS:
        inputs[col] = tf.keras.Input(name=col, dtype=tf.float32, shape=(1,))
    for col in CATEGORICAL_COLUMNS:
        emb_layers.append(
            tf.feature_column.embedding_column(
                tf.feature_column.categorical_column_with_identity(col, tables[col][0]),
                tables[col][1],
            )
        )
    emb_layer = fusion.feature_column.DenseFeatures(emb_layers)
    x_emb_output = emb_layer(inputs)
    print(x_emb_output)
    found["shape of the dense features"] = tuple(x_emb_output.shape)
    x = tf.keras.layers.Dense(128, activation="relu")(x_emb_output)
    x = tf.keras.layers.Dense(128, activation="relu")(x)
    x = tf.keras.layers.Dense(128, activation="relu")(x)
    x = tf.keras.layers.Dense(1, activation="sigmoid", name="output")(x)
    model = tf.keras.Model(inputs=inputs, outputs=x)
    model.compile("sgd", "binary_crossentropy")
    return model


def embedding_tables(folder: Path, cap: int, found: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Reads and prints (rows, dimension) of each table; returns them with fewer rows."""
    write_workflow(folder / "workflow" / "categories")
    shapes = fusion.feature_column.embedding_sizes(folder / "workflow", maximum=16)
    for name, shape in shapes.items():
        print(f"{name}: {shape}")
    found["embedding tables"] = shapes
    tables = {name: (min(rows, cap), size) for name, (rows, size) in shapes.items()}
    total = sum(rows for rows, _ in tables.values())
    print(f"trained with {cap:,} rows each at most (--cap), {total:,} in all")
    return tables


def loader(path: Path, batch_size: int, shuffle: bool) -> ParquetLoader:
    """Batches of the files in a folder."""
    return ParquetLoader(
        str(path / "*.parquet"),
        batch_size=batch_size,
        label_names=LABEL_COLUMNS,
        cat_names=CATEGORICAL_COLUMNS,
        cont_names=CONTINUOUS_COLUMNS,
        shuffle=shuffle,
        seed=1,
        parts_per_chunk=1,
        buffer_size=1 << 16,
        dtypes=dict.fromkeys(CATEGORICAL_COLUMNS, tf.int32),
    )


def train(
    model: tf.keras.Model, rows: ParquetLoader, valid: ParquetLoader, found: dict[str, Any]
) -> None:
    """Trains an epoch as the notebook does, then one that traces nothing any more."""
    validation_callback = KerasSequenceValidater(valid)
    start = time.time()
    first = model.fit(rows, callbacks=[validation_callback], epochs=1, verbose=2)
    end = time.time() - start
    total_rows = rows.num_rows_processed + valid.num_rows_processed
    print(f"run_time: {end}  - rows:  {total_rows} - epochs: 1 - dl_thru: {total_rows / end}")
    found["rows left out"] = rows.num_rows + valid.num_rows - total_rows

    print("== What fusion did, and whether an epoch waits for its data")
    stats = fusion.stats()
    print(f"{stats.columns_fused} columns of the steps that train and validate fused, 26 each")
    if stats.timeouts:
        print(f"but {stats.timeouts} graphs left as they were: the machine was too busy")
    start = time.time()
    second = model.fit(rows, epochs=1, verbose=2)
    end = time.time() - start
    print(
        f"waited for data {rows.seconds_waited:.2f} of {end:.2f} s, {rows.seconds_waited / end:.1%}"
    )
    found["the loss falls"] = second.history["loss"][0] < first.history["loss"][0]


def save(model: tf.keras.Model, path: Path, valid: ParquetLoader, found: dict[str, Any]) -> None:
    """Writes a SavedModel, and a fused one, whose predictions are compared."""
    model.export(path, verbose=False)
    report = fusion.fuse_saved_model(path, f"{path}.fused", verify=False)
    print(f"{report.fused_count} columns of the SavedModel fused")
    found["columns fused in the SavedModel"] = report.fused_count
    serve = tf.saved_model.load(f"{path}.fused").signatures["serving_default"]
    features, _ = valid.peek()
    (served,) = serve(**features).values()
    close = bool(np.isclose(served, model.predict_on_batch(features), rtol=1e-5).all())
    print(f"{len(served):,} predictions of it {'are' if close else 'are not'} the model's")
    found["predictions of the SavedModel are the model's"] = close


def run(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Goes through the notebook; returns the numbers that are compared."""
    found: dict[str, Any] = {}
    tf.keras.utils.set_random_seed(1)
    fusion.enable()
    print("== Embedding tables, of the workflow")
    tables = embedding_tables(folder, options.cap, found)
    print("== Data loaders")
    rows = options.batches * options.batch_size
    write_rows(folder / "train/0.parquet", tables, rows, seed=1)
    write_rows(folder / "valid/0.parquet", tables, rows // 8, seed=2)
    train_dataset_tf = loader(folder / "train", options.batch_size, shuffle=True)
    valid_dataset_tf = loader(folder / "valid", options.batch_size, shuffle=False)
    print(f"{len(train_dataset_tf)} batches to train, {len(valid_dataset_tf)} to validate")
    print("== The model's embeddings")
    model = new_model(tables, found)
    print("== Training")
    train(model, train_dataset_tf, valid_dataset_tf, found)
    print("== The model, saved")
    save(model, folder / "model.savedmodel", valid_dataset_tf, found)
    return found


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
    parser.add_argument("--folder", type=Path, help="for files and models; a temporary one")
    parser.add_argument("--cap", type=int, default=10_000, help="rows of a table at most")
    parser.add_argument("--batches", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=16384, help="65536 in the notebook")
    options = parser.parse_args()
    tf.get_logger().setLevel("ERROR")
    with tempfile.TemporaryDirectory() as temporary:
        found = run(options.folder or Path(temporary), options)
    check(found)


if __name__ == "__main__":
    main()
