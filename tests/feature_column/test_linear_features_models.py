"""Models of either Keras with `LinearFeatures`: trained, saved, loaded and exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from fusion.feature_column import categorical_column_with_embedding
from fusion.lookup import VERSIONS
from tests.feature_column.dense_layers import fc
from tests.feature_column.linear_layers import LAYERS
from tests.keras.releases import EXPORTS_TABLES
from tests.reference import assert_same_bits

KERAS = {"keras": keras, "tf_keras": tf_keras}
PACKAGE = pytest.mark.parametrize("package", LAYERS)
MODE = pytest.mark.parametrize("do_fusion", [None, *VERSIONS])

ROWS = 24
LABELS = np.random.default_rng(2).integers(0, 2, (ROWS, 1)).astype(np.float32)


def columns() -> list[Any]:
    item = fc.categorical_column_with_identity("item", 8)
    word = fc.categorical_column_with_vocabulary_list("word", ["a", "b", "c"], num_oov_buckets=1)
    return [item, word, fc.crossed_column([item, "word"], 20), fc.numeric_column("price")]


def inputs(package: str) -> dict[str, Any]:
    layers = KERAS[package]
    return {
        "item": layers.Input((1,), dtype="int64", name="item"),
        "word": layers.Input((2,), dtype="string", name="word"),
        "price": layers.Input((1,), name="price"),
    }


def batch() -> dict[str, tf.Tensor]:
    rng = np.random.default_rng(1)
    return {
        "item": tf.constant(rng.integers(-1, 8, (ROWS, 1))),
        "word": tf.constant(rng.choice(np.array(["a", "c", "", "zebra"], object), (ROWS, 2))),
        "price": tf.constant(rng.normal(size=(ROWS, 1)).astype(np.float32)),
    }


def model(package: str, do_fusion: str | None, style: str = "functional") -> Any:
    layer = LAYERS[package](columns(), units=2, do_fusion=do_fusion, name="wide")
    last = KERAS[package].layers.Dense(1, "sigmoid", kernel_initializer="ones")
    if style == "sequential":
        return KERAS[package].Sequential([layer, last])
    given = inputs(package)
    return KERAS[package].Model(given, last(layer(given)))


def fitted(package: str, do_fusion: str | None, style: str = "functional") -> Any:
    made = model(package, do_fusion, style)
    made.compile("adagrad", "binary_crossentropy")
    made.fit(batch(), LABELS, epochs=2, batch_size=8, shuffle=False, verbose=0)
    return made


@PACKAGE
@pytest.mark.parametrize("style", ["functional", "sequential"])
@pytest.mark.parametrize("do_fusion", VERSIONS)
def test_training_gives_the_weights_of_stock_lookups(
    package: str, style: str, do_fusion: str
) -> None:
    fused, stock = fitted(package, do_fusion, style), fitted(package, None, style)
    for ours, theirs in zip(fused.get_weights(), stock.get_weights(), strict=True):
        assert theirs.any()
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        fused.predict(batch(), verbose=0), stock.predict(batch(), verbose=0), rtol=1e-5
    )


# tf_keras loads sequential models as if all inputs were float32, with its DenseFeatures too.
@pytest.mark.parametrize(
    ("package", "style"),
    [("keras", "functional"), ("keras", "sequential"), ("tf_keras", "functional")],
)
@MODE
def test_saved_and_loaded(package: str, do_fusion: str | None, style: str, tmp_path: Path) -> None:
    made = fitted(package, do_fusion, style)
    expected = made.predict(batch(), verbose=0)
    made.save(tmp_path / "model.keras")
    loaded = KERAS[package].models.load_model(tmp_path / "model.keras")
    assert_same_bits(loaded.predict(batch(), verbose=0), expected)
    assert loaded.get_layer("wide").get_config() == made.get_layer("wide").get_config()
    made.save_weights(tmp_path / "model.weights.h5")
    fresh = model(package, do_fusion, style)
    fresh(batch())
    fresh.load_weights(tmp_path / "model.weights.h5")
    assert_same_bits(fresh.predict(batch(), verbose=0), expected)


@PACKAGE
@MODE
def test_exported(package: str, do_fusion: str | None, tmp_path: Path) -> None:
    made = fitted(package, do_fusion)
    made = KERAS[package].Model(made.inputs, made.get_layer("wide").output)
    if package == "keras" and not EXPORTS_TABLES:
        with pytest.raises(AssertionError, match="untracked"):
            made.export(tmp_path / "model")
        return
    made.export(tmp_path / "model", **({"verbose": False} if package == "keras" else {}))
    served = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    (result,) = served(**batch()).values()
    assert_same_bits(result.numpy(), made.predict(batch(), verbose=0))
    graph = served.graph.as_graph_def()
    ops = [node.op for function in graph.library.function for node in function.node_def]
    assert ops.count("GroupedEmbeddingLookup") == (do_fusion is not None)


def test_a_saved_model_of_tf_keras(tmp_path: Path) -> None:
    made = fitted("tf_keras", "v2")
    expected = made.predict(batch(), verbose=0)
    made.save(tmp_path / "model", save_format="tf")
    loaded = tf_keras.models.load_model(tmp_path / "model")
    assert_same_bits(loaded.predict(batch(), verbose=0), expected)


@PACKAGE
@MODE
def test_configurations(package: str, do_fusion: str | None) -> None:
    layer = LAYERS[package](
        columns(),
        units=3,
        sparse_combiner="mean",
        do_fusion=do_fusion,
        name="wide",
        trainable=False,
    )
    again = LAYERS[package].from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert (again.name, again.trainable) == ("wide", False)
    assert again(batch()).shape == (ROWS, 3)
    assert not again.trainable_weights
    assert len(again.weights) == 5
    with pytest.raises((TypeError, ValueError), match=r"'no'"):
        LAYERS[package].from_config(layer.get_config() | {"no": 1})


@PACKAGE
def test_ids_without_a_bound_are_saved(package: str, tmp_path: Path) -> None:
    given = {"key": KERAS[package].Input((1,), dtype="int64", name="key")}
    layer = LAYERS[package]([categorical_column_with_embedding("key", tf.int64)], do_fusion="v2")
    made = KERAS[package].Model(given, layer(given))
    made.compile("sgd", "mse")
    keys = {"key": tf.constant([[1], [1 << 40], [1]], tf.int64)}
    made.fit(keys, np.array([[1.0], [5.0], [1.0]]), verbose=0)
    expected = made.predict(keys, verbose=0)
    assert expected[0] != expected[1]
    made.save(tmp_path / "model.keras")
    loaded = KERAS[package].models.load_model(tmp_path / "model.keras")
    assert_same_bits(loaded.predict(keys, verbose=0), expected)


@PACKAGE
@pytest.mark.parametrize("do_fusion", VERSIONS)
def test_shapes_of_symbolic_inputs(package: str, do_fusion: str) -> None:
    made = model(package, do_fusion)
    layer = made.get_layer("wide")
    assert tuple(layer.output.shape) == (None, 2)
    shapes = {name: each.shape for name, each in batch().items()}
    assert tuple(layer.compute_output_shape(shapes)) == (ROWS, 2)
