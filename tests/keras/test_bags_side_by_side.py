"""Under `fusion.enable` EmbeddingBags that a concatenation joins become one op in inference."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.ops import fused_embedding_lookup
from tests.grappler.executed import executed

ROWS, BATCH, LENGTH = 30, 7, 5
RNG = np.random.default_rng(4)
IDS = RNG.integers(0, ROWS, (BATCH, LENGTH))
IDS[2] = 0
WEIGHTS = RNG.normal(size=IDS.shape).astype(np.float32)
SINGLE, GROUPED = "FusedEmbeddingLookup", "GroupedEmbeddingLookup"

CASES: list[dict[str, Any]] = [
    {"combiner": "sum"},
    {"combiner": "mean", "padding": 0},
    {"combiner": "sqrtn", "mask_zero": True},
    {"combiner": "sum", "padding": -1},
]


def given(kind: str) -> Any:
    dense = tf.constant(IDS)
    if kind == "dense":
        return dense
    ragged = tf.RaggedTensor.from_tensor(dense, [5, 0, 3, 5, 1, 2, 5])
    return ragged if kind == "ragged" else ragged.to_sparse()


def bags() -> list[Any]:
    keras.utils.set_random_seed(1)
    made = [fusion.keras.layers.EmbeddingBag(ROWS, 3 + n, **case) for n, case in enumerate(CASES)]
    for bag in made:
        bag.build((None, LENGTH))
    return made


@pytest.mark.parametrize("kind", ["dense", "ragged", "sparse"])
def test_they_are_one_op(kind: str) -> None:
    layers, ids = bags(), given(kind)

    def looked_up() -> tf.Tensor:
        return tf.concat([layer(ids, training=False) for layer in layers], 1)

    stock = tf.function(looked_up)()
    with fusion.fused():
        run = tf.function(looked_up)
        run()
        with executed() as ran:
            ours = run()
        report = fusion.stats().last_report
    assert report is not None
    assert (ran[GROUPED], ran[SINGLE]) == (1, 0)
    assert [column.fused for column in report.columns] == [True] * len(CASES)
    np.testing.assert_array_equal(ours, stock)


def test_weighted_ones_are_too() -> None:
    layers = bags()

    def looked_up() -> tf.Tensor:
        ids, weights = tf.constant(IDS), tf.constant(WEIGHTS)
        return tf.concat([layer(ids, weights, training=False) for layer in layers], 1)

    stock = tf.function(looked_up)()
    with fusion.fused(), executed() as ran:
        ours = tf.function(looked_up)()
    assert (ran[GROUPED], ran[SINGLE]) == (1, 0)
    np.testing.assert_array_equal(ours, stock)


def test_a_functional_model() -> None:
    layers = bags()
    inputs = [keras.Input((LENGTH,), dtype="int64") for _ in layers]
    joined = keras.layers.Concatenate()([bag(one) for bag, one in zip(layers, inputs, strict=True)])
    model = keras.Model(inputs, joined)
    ids = [IDS] * len(layers)
    stock = model.predict(ids, verbose=0)
    model.make_predict_function(force=True)
    with fusion.fused(), executed() as ran:
        ours = model.predict(ids, verbose=0)
    assert (ran[GROUPED], ran[SINGLE]) == (1, 0)
    np.testing.assert_array_equal(ours, stock)


def test_those_that_nothing_joins_stay() -> None:
    layers = bags()

    def looked_up() -> list[tf.Tensor]:
        return [layer(tf.constant(IDS), training=False) * 2 for layer in layers]

    with fusion.fused(), executed() as ran:
        tf.function(looked_up)()
    assert (ran[GROUPED], ran[SINGLE]) == (0, len(CASES))


@pytest.mark.parametrize("boundaries", [(), (5.0, 15.0, 25.0)])
def test_values_that_boundaries_make_ids_of_stay(boundaries: tuple[float, ...]) -> None:
    tables = [tf.constant(RNG.normal(size=(ROWS, 3))) for _ in range(2)]
    number, weights = tf.zeros([1], tf.int64), tf.zeros([1], tf.float64)
    options = {"form": "dense", "boundaries": boundaries, "dim": 3}

    def looked_up() -> tf.Tensor:
        inputs = tf.constant(IDS), number, number, weights
        return tf.concat([fused_embedding_lookup(t, *inputs, **options) for t in tables], 1)

    stock = tf.function(looked_up)()
    with fusion.fused(), executed() as ran:
        ours = tf.function(looked_up)()
    assert (ran[GROUPED], ran[SINGLE]) == ((0, 2) if boundaries else (1, 0))
    np.testing.assert_array_equal(ours, stock)
