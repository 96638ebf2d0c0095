"""tf_keras `DenseFeatures` and `SequenceFeatures`: called, trained, saved and loaded."""

from __future__ import annotations

import json
import os
import re
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from fusion.feature_column import embedding_column
from fusion.lookup import VERSIONS
from tests import zygote
from tests.feature_column.compare import (
    FUSED,
    assert_fused,
    assert_same,
    both,
    compare,
    stock_ops,
)
from tests.feature_column.hosts import as_tensors, dense_features, input_layer, recorded
from tests.feature_column.keras_models import DATA, STYLES, fit, functional
from tests.feature_column.kinds import KINDS, SOME, WORDS, Batch, Column, build, initializer

fc = tf.feature_column
ROOT = Path(__file__).parents[2]
FEATURES = Batch().features()
FUSION = pytest.mark.parametrize("do_fusion", VERSIONS)


@pytest.mark.parity("tf_keras DenseFeatures, tf.function")
@FUSION
def test_in_a_function(do_fusion):
    compare(SOME, FEATURES, do_fusion, dense_features)


@pytest.mark.parametrize("training", [False, True])
@FUSION
def test_the_training_flag(do_fusion, training):
    eager = partial(dense_features, compiled=False)
    compare(SOME, FEATURES, do_fusion, eager, training=training)


@FUSION
def test_in_a_session(do_fusion):
    def layer(features: Any, columns: Any) -> Any:
        return tf_keras.layers.DenseFeatures(columns)(features)

    compare(SOME, FEATURES, do_fusion, partial(input_layer, layer=layer))


@FUSION
def test_beside_stock_columns(do_fusion):
    def columns(version: str | None) -> list[Any]:
        return [
            *build(SOME[:2], version),
            *build([Column("hash of ids", "z", "sqrtn")], None),
            fc.numeric_column("x_numbers", 2),
            fc.indicator_column(KINDS["vocabulary list"]("x")),
        ]

    mixed, stock = both(columns, FEATURES, do_fusion, dense_features, compiled=False)
    assert FUSED[do_fusion] in mixed.ran
    assert stock_ops(mixed.ran)
    assert_same(mixed, stock)


@cache
def trained(style: str, do_fusion: str | None) -> tuple[Any, set[str]]:
    """A trained model of a style, and the types of the ops that ran."""
    model = STYLES[style](do_fusion)
    return model, fit(model)


@pytest.mark.parity("tf_keras DenseFeatures in a {style} model")
@pytest.mark.parametrize("style", STYLES)
@FUSION
def test_fit_and_predict(do_fusion, style):
    (fused, ran), (stock, stock_ran) = trained(style, do_fusion), trained(style, None)
    assert_fused(ran, do_fusion)
    assert stock_ops(stock_ran)
    for ours, theirs in zip(fused.weights, stock.weights, strict=True):
        assert _without_number(ours.name) == _without_number(theirs.name)
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    with recorded() as ran:
        predicted = fused.predict(DATA, verbose=0)
    assert_fused(ran, do_fusion)
    np.testing.assert_array_equal(predicted, stock.predict(DATA, verbose=0))


def _without_number(name: str) -> str:
    """A variable's name without the numbers that tf_keras gives to models and layers."""
    return re.sub(r"_\d+/", "/", name)


#: What stock columns can be saved in: style, and the ending of the path.
FORMATS = [
    ("sequential", ""),
    ("subclassed", ""),
    ("functional", ""),
    ("functional", ".keras"),
    ("functional", ".h5"),
]
#: Loads them. What follows the features may run by other kernels there, so not bit for bit.
LOAD = """
import sys
from pathlib import Path
import numpy as np
import tensorflow as tf
import tf_keras
import fusion.feature_column
from tests.feature_column.compare import assert_fused
from tests.feature_column.hosts import as_tensors
from tests.feature_column.keras_models import DATA, fit

for path in sorted(Path(sys.argv[1]).glob("model*")):
    expected = np.load(path.parent / f"expected-{path.name}.npy")
    model = tf_keras.models.load_model(path)
    np.testing.assert_allclose(model.predict(DATA, verbose=0), expected, rtol=1e-6)
    if path.suffix == ".keras":
        assert_fused(fit(model), path.stem[-2:])
        assert not np.allclose(model.predict(DATA, verbose=0), expected, rtol=1e-3)
    if path.is_dir():
        serve = tf.saved_model.load(path).signatures["serving_default"]
        (scores,) = serve(**as_tensors(DATA)).values()
        np.testing.assert_allclose(scores, expected, rtol=1e-6)
    print(path.name)
"""


def run_python(*arguments: str, **environment: str) -> str:
    """What a new process prints."""
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
    done = zygote.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parity("tf_keras models saved and loaded", *VERSIONS)
def test_saved_models_are_loaded_in_another_process(tmp_path):
    names = []
    for do_fusion in VERSIONS:
        for style, ending in FORMATS:
            model, _ = trained(style, do_fusion)
            name = f"model-{style}-{do_fusion}{ending}"
            model.save(tmp_path / name, **({} if ending else {"save_format": "tf"}))
            np.save(tmp_path / f"expected-{name}.npy", model.predict(DATA, verbose=0))
            names.append(name)
    assert run_python("-c", LOAD, str(tmp_path)).split() == sorted(names)


@pytest.mark.parametrize("style", ["sequential", "subclassed"])
@FUSION
def test_what_stock_cannot_load_is_refused_alike(do_fusion, style, tmp_path):
    path = tmp_path / "model.keras"
    errors = []
    for version in (None, do_fusion):
        trained(style, version)[0].save(path)
        with pytest.raises((ValueError, TypeError)) as caught:
            tf_keras.models.load_model(path)
        errors.append(caught.type)
    assert errors[0] is errors[1]


@FUSION
def test_weights_go_both_ways(do_fusion, tmp_path):
    for source, target in ((do_fusion, None), (None, do_fusion)):
        model, _ = trained("functional", source)
        for path in (tmp_path / "checkpoint", tmp_path / "weights.h5"):
            model.save_weights(path)
            other = functional(target)
            assert not np.array_equal(other.get_weights()[0], model.get_weights()[0])
            other.load_weights(path)
            for ours, theirs in zip(other.get_weights(), model.get_weights(), strict=True):
                np.testing.assert_array_equal(ours, theirs)


def test_legacy_keras_in_its_own_process():
    module = "tests.feature_column.legacy_keras"
    results = json.loads(run_python("-m", module, TF_USE_LEGACY_KERAS="1"))
    assert "tf_keras" in results.pop("keras")
    assert results.keys() == {"mirrored", "partitioned"}
    for name, ((expected, stock_ran), *fused) in results.items():
        assert stock_ran, name
        assert fused == [[expected, []]] * len(VERSIONS), name


def sequence_features(categorical: Any, do_fusion: str | None, **options: Any) -> Any:
    """[batch, steps, D] and its lengths, and the types of the ops that ran."""
    column = embedding_column(categorical, 4, "sum", initializer, do_fusion=do_fusion, **options)
    layer = tf_keras.experimental.SequenceFeatures(column)
    with recorded() as ran:
        output, lengths = layer(as_tensors(FEATURES))
    return output.numpy(), lengths.numpy(), ran


#: Sequence columns.
SEQUENCES = {
    "identity": partial(fc.sequence_categorical_column_with_identity, "x_ids", 10),
    "hash": partial(fc.sequence_categorical_column_with_hash_bucket, "x_words", 6),
    "list": partial(fc.sequence_categorical_column_with_vocabulary_list, "x_words", ["a", "c"]),
    "file": partial(fc.sequence_categorical_column_with_vocabulary_file, "x_words", WORDS, 3),
}


@pytest.mark.parity("tf_keras SequenceFeatures")
@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("kind", SEQUENCES)
@FUSION
def test_sequence_columns_in_sequence_features(do_fusion, kind, safe):
    column = SEQUENCES[kind]()
    options = {"use_safe_embedding_lookup": safe}
    fused, stock = (sequence_features(column, v, **options) for v in (do_fusion, None))
    assert_fused(fused[2], do_fusion)
    np.testing.assert_array_equal(fused[0], stock[0])
    np.testing.assert_array_equal(fused[1], stock[1])
    assert fused[0].shape == (5, 3, 4)


@FUSION
def test_sequence_columns_are_refused_as_in_stock(do_fusion):
    sequence = fc.sequence_categorical_column_with_identity("x_ids", 10)
    for version in (None, do_fusion):
        column = embedding_column(sequence, 4, do_fusion=version)
        with pytest.raises(ValueError, match="must not be of type SequenceCategoricalColumn"):
            tf_keras.layers.DenseFeatures([column])(as_tensors(FEATURES))
        plain = embedding_column(KINDS["identity"]("x"), 4, do_fusion=version)
        with pytest.raises(ValueError, match="must be of type SequenceCategoricalColumn"):
            tf_keras.experimental.SequenceFeatures([plain])(as_tensors(FEATURES))
