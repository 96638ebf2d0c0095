"""Layers as configurations and back: columns of every kind, functions, initializers."""

from __future__ import annotations

import inspect
import json
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from fusion.feature_column import FusedEmbeddingColumn, embedding_column, shared_embeddings
from fusion.feature_column.config import from_configs, to_configs
from fusion.feature_column.dense_features import DenseFeatures
from tests.feature_column.dense_layers import WORDS, fc, identity, initializer
from tests.reference import assert_same_bits


@keras.saving.register_keras_serializable(package="fusion_tests")
def halved(x: Any) -> Any:
    return x / 2


def not_registered(x: Any) -> Any:
    return x


def again(layer: Any) -> Any:
    """The layer, after it has been text."""
    text = json.dumps(keras.saving.serialize_keras_object(layer))
    return keras.saving.deserialize_keras_object(json.loads(text))


def columns_again(*columns: Any) -> list[Any]:
    return list(again(DenseFeatures(columns))._columns.all)


def embedding(column: Any, **options: Any) -> Any:
    return fc.embedding_column(column, 3, initializer=initializer, **options)


words = fc.categorical_column_with_vocabulary_list("w", ["a", "b"], num_oov_buckets=2)
number = fc.numeric_column("x")
COLUMNS = {
    "numeric": number,
    "numeric with a shape": fc.numeric_column("x", (2, 3), default_value=1.5),
    "normalised": fc.numeric_column("x", normalizer_fn=halved),
    "bucketized": fc.bucketized_column(number, list(np.array([0.5, 1.5]))),
    "indicator": fc.indicator_column(words),
    "array of words": fc.indicator_column(
        fc.categorical_column_with_vocabulary_list("w", np.array(["a", "b"]))
    ),
    "bytes": fc.indicator_column(fc.categorical_column_with_vocabulary_list("w", ["a", b"b"])),
    "numbers as words": fc.indicator_column(
        fc.categorical_column_with_vocabulary_list("w", np.array([3, 4]))
    ),
    "file": fc.indicator_column(fc.categorical_column_with_vocabulary_file("w", WORDS)),
    "crossed": fc.indicator_column(
        fc.crossed_column(["w", words, fc.bucketized_column(number, [1.0])], 9, hash_key=3)
    ),
    "embedding": embedding(identity("a", 5, 2), combiner="sum", max_norm=1.5, trainable=False),
    "weighted": embedding(fc.weighted_categorical_column(words, "importance")),
    "hashed": embedding(fc.categorical_column_with_hash_bucket("w", 4, tf.int32)),
    "normalised buckets": embedding(
        fc.bucketized_column(fc.numeric_column("x", normalizer_fn=halved), [1.0])
    ),
    "unsafe": embedding(identity("a"), use_safe_embedding_lookup=False),
    "from a checkpoint": embedding(
        identity("a"), ckpt_to_load_from="somewhere", tensor_name_in_ckpt="t"
    ),
    "fused": embedding_column(identity("a"), 3, initializer=initializer, do_fusion="v2"),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_columns(kind: str) -> None:
    column = COLUMNS[kind]
    (made,) = columns_again(column)
    assert type(made) is type(column)
    if kind != "bytes":
        assert made == column
    assert hash(made)
    assert to_configs([made]) == to_configs([column])


def test_columns_of_one_config_are_one_column() -> None:
    one, two = columns_again(embedding(words), fc.indicator_column(words))
    assert one.categorical_column is two.categorical_column


def test_arguments_of_the_layer() -> None:
    columns = [embedding(identity("b")), embedding(identity("a"))]
    layer = DenseFeatures(columns, aggregation="stack", do_fusion="v2", name="f", trainable=False)
    made = again(layer)
    assert made.get_config() == layer.get_config()
    assert (made.aggregation, made.do_fusion, made.name) == ("stack", "v2", "f")
    assert not made.trainable
    assert [config["class_name"] for config in layer.get_config()["feature_columns"]] == [
        "EmbeddingColumn"
    ] * 2


def test_configs_are_those_of_tensorflow() -> None:
    """Of columns without functions: TensorFlow reads ours, and we read TensorFlow's."""
    from tensorflow.python.feature_column import serialization

    column = fc.embedding_column(words, 3)
    (config,) = to_configs([column])
    (stock,) = serialization.serialize_feature_columns([column])
    assert config == stock
    (made,) = from_configs([stock])
    assert made._replace(initializer=column.initializer) == column


def initializers() -> list[Any]:
    """Keras's, with a seed where they take one."""
    kinds: set[Any] = {
        kind
        for kind in vars(keras.initializers).values()
        if inspect.isclass(kind) and kind.__name__ not in ("Initializer", "STFT")  # needs scipy
    }
    return [
        kind(seed=3) if "seed" in inspect.signature(kind).parameters else kind()
        for kind in sorted(kinds, key=lambda kind: kind.__name__)
    ]


def test_initializers_of_keras() -> None:
    assert len(initializers()) > 10
    for initial in initializers():
        column = fc.embedding_column(identity("a", 3), 3, initializer=initial)
        (made,) = columns_again(column)
        assert type(made.initializer) is type(initial)
        assert made.initializer.get_config() == initial.get_config()
        one, two = (DenseFeatures([c])({"a": tf.constant([1])}) for c in (column, made))
        assert_same_bits(one.numpy(), two.numpy())


ALIKE = [
    tf.compat.v1.ones_initializer(),
    tf.compat.v1.constant_initializer([1.0] * 9),
    tf.ones_initializer(),
    tf.constant_initializer(1.0),
    tf.constant_initializer(np.ones([3, 3], np.float32)),
    tf.random_uniform_initializer(1.0, np.nextafter(1.0, 2.0, dtype=np.float32), seed=1),
]


@pytest.mark.parametrize("do_fusion", [None, "v2"])
@pytest.mark.parametrize("initial", ALIKE, ids=lambda initial: type(initial).__name__)
def test_initializers_of_tensorflow(initial: Any, do_fusion: str | None, tmp_path: Any) -> None:
    column = embedding_column(identity("a", 3), 3, initializer=initial, do_fusion=do_fusion)
    (made,) = columns_again(column)
    assert type(made.initializer) is type(initial)
    assert DenseFeatures([made])({"a": tf.constant([1])}).numpy().tolist() == [[1.0] * 3]
    inputs = {"a": keras.Input((1,), dtype="int64", name="a")}
    keras.Model(inputs, DenseFeatures([column])(inputs)).save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded({"a": tf.constant([[1]])}).numpy().tolist() == [[1.0] * 3]


def test_a_feature_may_have_the_name_of_a_function() -> None:
    column = fc.numeric_column("halved", normalizer_fn=halved)
    assert columns_again(column) == [column]


def test_functions_given_when_loading(tmp_path: Any) -> None:
    inputs = {"x": keras.Input((1,), name="x")}
    column = fc.numeric_column("x", normalizer_fn=not_registered)
    model = keras.Model(inputs, DenseFeatures([column])(inputs))
    model.save(tmp_path / "model.keras")
    with pytest.raises(TypeError, match="not_registered"):
        keras.models.load_model(tmp_path / "model.keras")
    loaded = keras.models.load_model(
        tmp_path / "model.keras", custom_objects={"not_registered": not_registered}
    )
    assert loaded({"x": tf.constant([[2.0]])}).numpy().tolist() == [[2.0]]


def test_lambdas_are_refused_unless_they_are_trusted() -> None:
    column = fc.numeric_column("x", normalizer_fn=lambda x: x + 1)
    with pytest.warns(UserWarning, match="lambda"):
        config = keras.saving.serialize_keras_object(DenseFeatures([column]))
    with pytest.raises(ValueError, match="lambda"):
        keras.saving.deserialize_keras_object(config)
    layer = keras.saving.deserialize_keras_object(config, safe_mode=False)
    assert layer({"x": tf.constant([1.0])}).numpy().tolist() == [[2.0]]


def test_a_column_class_of_somebody_else() -> None:
    @keras.saving.register_keras_serializable(package="fusion_tests")
    class Doubled(type(number)):  # type: ignore[misc]
        def get_dense_tensor(self, transformation_cache: Any, state_manager: Any) -> Any:
            return 2 * super().get_dense_tensor(transformation_cache, state_manager)

    column = Doubled(*number)
    (made,) = columns_again(column)
    assert type(made) is Doubled
    assert DenseFeatures([made])({"x": tf.constant([1.5])}).numpy().tolist() == [[3.0]]


@pytest.mark.parametrize("do_fusion", [None, "v2"])
def test_columns_that_share_a_table(do_fusion: str | None, tmp_path: Any) -> None:
    with tf.Graph().as_default():
        shared = shared_embeddings(
            [identity("a"), identity("b")], 3, combiner="sum", do_fusion=do_fusion
        )
    other = embedding_column(identity("c"), 3, do_fusion="v2")
    inputs = {name: keras.Input((2,), dtype="int64", name=name) for name in "abc"}
    model = keras.Model(inputs, DenseFeatures([other, *shared])(inputs))
    batch = {name: tf.constant([[1, 2], [3, -1]], tf.int64) for name in "abc"}
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_same_bits(loaded(batch).numpy(), model(batch).numpy())
    assert len(loaded.weights) == 2
    one, two, three = loaded.layers[-1]._columns.all
    assert (type(one), type(two)) == (type(shared[0]), type(shared[1]))
    assert one.shared_embedding_column_creator is two.shared_embedding_column_creator
    assert type(three) is FusedEmbeddingColumn
