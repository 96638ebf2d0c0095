"""`DenseFeatures` across processes: models saved here and used elsewhere, and the other Keras."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import fusion
from fusion.feature_column import DenseFeatures, embedding_column
from tests import zygote
from tests.feature_column.dense_layers import WORDS, fc, identity
from tests.reference import assert_same_bits

ROOT = Path(__file__).parents[2]

LOAD = """
import sys, numpy as np, tensorflow as tf

def keras_modules():
    return {name for name in sys.modules if name.split(".")[0] in ("keras", "tf_keras")}

def features(model):
    of_ours = fusion.feature_column.DenseFeatures
    return next(layer for layer in model.layers if isinstance(layer, of_ours))

before = keras_modules()
import fusion
print(sorted(keras_modules() - before))  # TensorFlow has imported Keras itself
import keras

for name in ("nvtabular", "fused"):
    batch = {key: tf.constant(value) for key, value in np.load(f"{name}.npz").items()}
    model = keras.models.load_model(f"{name}.keras")
    np.save(f"{name}.features.npy", keras.Model(model.inputs, features(model).output)(batch))
    np.save(f"{name}.keras.npy", model.predict(batch, verbose=0))
    served = tf.saved_model.load(name).signatures["serving_default"]
    np.save(f"{name}.served.npy", served(**batch)["output_0"])
"""

WITHOUT_FUSION = """
import numpy as np, tensorflow as tf
batch = {key: tf.constant(value) for key, value in np.load("nvtabular.npz").items()}
served = tf.saved_model.load("nvtabular").signatures["serving_default"]
np.save("nvtabular.stock.npy", served(**batch)["output_0"])
try:
    tf.saved_model.load("fused")
except RuntimeError as error:
    print("PruneInvalidAndFillEmptyRows" in str(error))
"""


def run(code: str, path: Path, **environment: str) -> str:
    """What a process prints that has imported TensorFlow alone."""
    done = zygote.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        cwd=path,
        check=False,
        server=zygote.without_fusion(),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


def nvtabular_model(cardinalities: dict[str, tuple[int, int]]) -> Any:
    """A model of NVTabular's notebook, line by line, with our layer in place of theirs."""
    inputs: dict[str, Any] = {}
    emb_layers = []
    for col in cardinalities:
        inputs[col] = tf.keras.Input(name=col, dtype=tf.int32, shape=(1,))
    for col in cardinalities:
        emb_layers.append(
            tf.feature_column.embedding_column(
                tf.feature_column.categorical_column_with_identity(col, cardinalities[col][0]),
                cardinalities[col][1],
            )
        )
    emb_layer = fusion.feature_column.DenseFeatures(emb_layers)
    x_emb_output = emb_layer(inputs)
    assert x_emb_output.shape == (None, 416)
    x = tf.keras.layers.Dense(128, activation="relu")(x_emb_output)
    x = tf.keras.layers.Dense(128, activation="relu")(x)
    x = tf.keras.layers.Dense(128, activation="relu")(x)
    x = tf.keras.layers.Dense(1, activation="sigmoid", name="output")(x)
    model = tf.keras.Model(inputs=inputs, outputs=x)
    model.compile("sgd", "binary_crossentropy")
    return model


def fused_model() -> Any:
    """A small model with fused columns."""
    words = fc.categorical_column_with_hash_bucket("word", 7)
    columns = [
        embedding_column(words, 4, do_fusion="v2"),
        embedding_column(identity("ids"), 4, "sum", do_fusion="v2"),
        fc.numeric_column("number", 2),
    ]
    inputs = {
        "word": keras.Input((1,), dtype="string", name="word"),
        "ids": keras.Input((3,), dtype="int64", name="ids"),
        "number": keras.Input((2,), name="number"),
    }
    output = keras.layers.Dense(1)(fusion.feature_column.DenseFeatures(columns)(inputs))
    model = keras.Model(inputs, output)
    model.compile("adam", "mse")
    return model


def test_models_are_used_in_other_processes(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    keras.utils.set_random_seed(5)
    sizes = [500, 300, 200, 100, 11, 200, 100, 72, 4, 95, 15, 300, 50]
    cardinalities = {f"C{k}": (sizes[k % len(sizes)], 16) for k in range(1, 27)}
    models = {"nvtabular": nvtabular_model(cardinalities), "fused": fused_model()}
    batches: dict[str, dict[str, Any]] = {
        "nvtabular": {
            name: rng.integers(0, rows, (64, 1)).astype(np.int32)
            for name, (rows, _) in cardinalities.items()
        },
        "fused": {
            "word": rng.choice(["a", "b", ""], (64, 1)),
            "ids": rng.integers(-1, 10, (64, 3)),
            "number": rng.normal(size=(64, 2)).astype(np.float32),
        },
    }
    features: dict[str, Any] = {}
    expected: dict[str, Any] = {}
    for name, model in models.items():
        batch = {key: tf.constant(value) for key, value in batches[name].items()}
        labels = rng.integers(0, 2, (64, 1)).astype(np.float32)
        history = model.fit(batch, labels, epochs=4, batch_size=16, verbose=0).history["loss"]
        assert history[-1] < history[0]
        layer = next(one for one in model.layers if isinstance(one, DenseFeatures))
        features[name] = keras.Model(model.inputs, layer.output)(batch).numpy()
        expected[name] = model.predict(batch, verbose=0)
        np.savez(tmp_path / f"{name}.npz", **batches[name])
        model.save(tmp_path / f"{name}.keras")
        model.export(tmp_path / name, verbose=False)

    assert run(LOAD, tmp_path).splitlines()[0] == "[]"
    for name in models:
        assert_same_bits(np.load(tmp_path / f"{name}.features.npy"), features[name])
        for how in ("keras", "served"):
            assert_same(np.load(tmp_path / f"{name}.{how}.npy"), expected[name])
    # Only fused ops need this package: one-hot stock columns are served by TensorFlow alone.
    assert run(WITHOUT_FUSION, tmp_path).splitlines()[-1] == "True"
    assert_same(np.load(tmp_path / "nvtabular.stock.npy"), expected["nvtabular"])


def assert_same(actual: Any, expected: Any) -> None:
    """The same but for what stock dense layers round otherwise in batches of another size."""
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_with_tf_keras_it_is_tf_kerass_layer(tmp_path: Path) -> None:
    code = f"""
import sys
import fusion, fusion.feature_column
print("keras" in sys.modules)
import tensorflow as tf, tf_keras
layer = fusion.feature_column.DenseFeatures
print(layer is tf_keras.layers.DenseFeatures)
words = tf.feature_column.categorical_column_with_vocabulary_file("word", {WORDS!r})
column = fusion.feature_column.embedding_column(words, 4, do_fusion="v2")
print(layer([column])({{"word": tf.constant(["a", "z"])}}).shape)
"""
    assert run(code, tmp_path, TF_USE_LEGACY_KERAS="1").splitlines() == ["False", "True", "(2, 4)"]
