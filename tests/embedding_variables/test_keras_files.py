from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.tables import EmbeddingVariableOption
from tests import zygote
from tests.embedding_variables.plain import loss_of_step

v1 = tf.compat.v1

RNG = np.random.default_rng(0)
KEYS = [RNG.integers(0, 60, (16, 3)) * 10**9 for _ in range(6)]
LABELS = [RNG.random((16, 1)).astype(np.float32) for _ in range(6)]


def layer(capacity: int | None):
    option = EmbeddingVariableOption(capacity=capacity, seed=4)
    return fusion.keras.layers.DynamicEmbedding(4, ev_option=option)


def model(optimizer: str, capacity: int | None = None) -> keras.Model:
    keras.utils.set_random_seed(1)
    inputs = keras.Input([3], dtype="int64")
    rows = keras.layers.Flatten()(layer(capacity)(inputs))
    made = keras.Model(inputs, keras.layers.Dense(1)(rows))
    made.compile(getattr(fusion.optimizers, optimizer)(0.01), "mse")
    return made


def losses(made: keras.Model, batches: range) -> list[float]:
    return [loss_of_step(made, KEYS[k], LABELS[k]) for k in batches]


@pytest.mark.parametrize("optimizer", ["LazyAdam", "Adagrad", "LazyFtrl"])
def test_a_restored_checkpoint_goes_on_as_it_would_have(tmp_path: Path, optimizer):
    first, second = model(optimizer), model(optimizer, capacity=300)
    losses(first, range(3))
    path = tf.train.Checkpoint(model=first, optimizer=first.optimizer).write(f"{tmp_path}/save")
    second.optimizer.build(second.trainable_variables)
    losses(second, range(5, 6))  # of other keys, which are gone then
    tf.train.Checkpoint(model=second, optimizer=second.optimizer).read(path)
    assert losses(first, range(3, 6)) == losses(second, range(3, 6))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 300_000


@pytest.mark.parametrize("optimizer", ["LazyAdam", "Adagrad"])
def test_a_loaded_model_goes_on_as_it_would_have(tmp_path: Path, optimizer):
    first = model(optimizer)
    losses(first, range(3))
    first.save(tmp_path / "model.keras")
    assert (tmp_path / "model.keras").stat().st_size < 300_000
    second = keras.models.load_model(tmp_path / "model.keras")
    assert (first.predict(KEYS[0]) == second.predict(KEYS[0])).all()
    assert losses(first, range(3, 6)) == losses(second, range(3, 6))


def test_weights_go_into_another_capacity(tmp_path: Path):
    first, second = model("LazyAdam"), model("LazyAdam", capacity=300)
    losses(first, range(2))
    losses(second, range(5, 6))
    first.save_weights(tmp_path / "some.weights.h5")
    second.load_weights(tmp_path / "some.weights.h5")
    for keys in KEYS:
        assert (first.predict(keys) == second.predict(keys)).all()


def test_weights_of_another_layer_are_an_error(tmp_path: Path):
    plain = keras.Sequential([keras.Input([3], dtype="int64"), keras.layers.Embedding(5, 4)])
    keyed = keras.Sequential([keras.Input([3], dtype="int64"), layer(10)])
    plain.save_weights(tmp_path / "plain.weights.h5")
    keyed.save_weights(tmp_path / "keyed.weights.h5")
    for other, name in ((keyed, "plain"), (plain, "keyed")):
        with pytest.raises((ValueError, KeyError)):
            other.load_weights(tmp_path / f"{name}.weights.h5")


def of_columns(count: int | None, optimizer: Any = None) -> keras.Model:
    """A model of a column whose table has so many partitions."""
    keras.utils.set_random_seed(1)
    option = EmbeddingVariableOption(seed=4)  # new keys begin alike in all models
    column = fusion.feature_column.categorical_column_with_embedding("a", tf.int64, count, option)
    embedding = fusion.feature_column.embedding_column(column, 4, do_fusion="v2")
    inputs = {"a": keras.Input([3], dtype="int64", name="a")}
    outputs = fusion.feature_column.DenseFeatures([embedding])(inputs)
    result = keras.Model(inputs, keras.layers.Dense(1)(outputs))
    result.compile(optimizer or fusion.optimizers.LazyAdam(0.01), "mse")
    return result


def steps(made: keras.Model, batches: range) -> list[float]:
    return [loss_of_step(made, {"a": KEYS[k]}, LABELS[k]) for k in batches]


COUNTS = [(None, None), (2, 2), (3, 2), (2, 5), (None, 2), (2, None)]


@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_columns_are_saved_by_keys(tmp_path: Path, counts):
    """In some number of partitions, and restored into another, by who does not train."""
    first, second = (of_columns(count) for count in counts)
    steps(first, range(2))
    first.save_weights(tmp_path / "some.weights.h5")
    second.load_weights(tmp_path / "some.weights.h5")
    assert (tmp_path / "some.weights.h5").stat().st_size < 300_000
    assert (first.predict({"a": KEYS[0]}) == second.predict({"a": KEYS[0]})).all()


@pytest.mark.parametrize("optimizer", [fusion.optimizers.LazyAdam, fusion.optimizers.LazyFtrl])
@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_slots_are_restored_into_any_partitions(tmp_path: Path, counts, optimizer):
    first, second = (of_columns(count, optimizer(0.01)) for count in counts)
    steps(first, range(3))
    steps(second, range(5, 6))
    first.save_weights(tmp_path / "some.weights.h5")
    second.load_weights(tmp_path / "some.weights.h5")
    assert steps(second, range(3, 6)) == steps(first, range(3, 6))


def test_a_loaded_model_of_partitions_goes_on_as_it_would_have(tmp_path: Path):
    first = of_columns(3)
    steps(first, range(3))
    first.save(tmp_path / "model.keras")
    with keras.saving.custom_object_scope({"TruncatedNormal": v1.truncated_normal_initializer}):
        second = keras.models.load_model(tmp_path / "model.keras")
    assert steps(first, range(3, 6)) == steps(second, range(3, 6))


#: Prints what models say to keys, in a process that has not made them.
_SERVE = """
import sys
import numpy as np
import tensorflow as tf
import fusion

keys = np.load(sys.argv[1])
for path in sys.argv[2:]:
    model = tf.saved_model.load(path)
    found = model.signatures["serving_default"](tf.constant(keys))["output_0"].numpy()
    np.save(path + ".npy", found)
    assert (model.serve(tf.constant(keys)).numpy() == found).all()
"""


def by_session(path: str, keys: Any) -> Any:
    """What an exported model says to keys, to a reader of its graph, as TensorFlow Serving is."""
    with tf.Graph().as_default(), v1.Session() as session:
        loaded = v1.saved_model.load(session, ["serve"], path)
        signature = loaded.signature_def["serving_default"]
        (given,), (output,) = signature.inputs.values(), signature.outputs.values()
        return session.run(output.name, {given.name: keys})


def test_exported_models_have_their_keys(tmp_path: Path):
    trained = model("LazyAdam")
    inputs = keras.Input([3], dtype="int64")
    column = fusion.feature_column.categorical_column_with_embedding("a", tf.int64, 2)
    embedding = fusion.feature_column.embedding_column(column, 4, do_fusion="v2")
    outputs = fusion.feature_column.DenseFeatures([embedding])({"a": inputs})
    partitioned = keras.Model(inputs, keras.layers.Dense(1)(outputs))
    partitioned.compile(fusion.optimizers.LazyAdam(0.1), "mse")
    keys = np.concatenate([KEYS[0], KEYS[0] + 1])  # of which half are not known
    np.save(tmp_path / "keys.npy", keys)
    paths = [str(tmp_path / name) for name in ("trained", "partitioned")]
    for made, path in zip((trained, partitioned), paths, strict=True):
        losses(made, range(3))
        made.export(path, verbose=False)
    arguments = [sys.executable, "-c", _SERVE, str(tmp_path / "keys.npy"), *paths]
    zygote.run(arguments, check=True, timeout=300)
    for made, path in zip((trained, partitioned), paths, strict=True):
        expected = made(keys).numpy()
        assert (np.load(f"{path}.npy") == expected).all()
        np.testing.assert_allclose(by_session(path, keys), expected, rtol=1e-6)
        assert len(np.unique(expected[len(KEYS[0]) :])) == 1 < len(np.unique(expected))
