"""Our `DenseFeatures` in inference: one op for all columns with do_fusion, and the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from fusion.feature_column import embedding_column
from fusion.lookup import VERSIONS
from tests.feature_column.dense_layers import (
    ROWS,
    assert_close,
    embedding,
    fc,
    identity,
    initializer,
    op_types,
    our_layer,
)
from tests.feature_column.kinds import KINDS, Batch, Column, build, of_each_combiner
from tests.feature_column.test_dense_features import CATEGORICAL, features, mixed
from tests.reference import assert_same_bits, gradient_parts

GROUPED = "GroupedEmbeddingLookup"


def inference(layer: Any, batch: dict[str, Any]) -> tuple[Any, list[str]]:
    """The layer's result in inference, and the ops that it took, the one with the result last."""
    layer(batch)
    function = tf.function(lambda given: layer(given, training=False))
    concrete = function.get_concrete_function(batch)
    assert_same_bits(function(batch).numpy(), layer(batch, training=False).numpy())
    output = concrete.outputs[0].op
    while output.type in ("Identity", "Reshape"):
        output = output.inputs[0].op
    return function(batch), [*op_types(concrete), output.type]


def assert_grouped(types: list[str]) -> None:
    """One op did all lookups, and its result is that of the layer."""
    assert types[-1] == GROUPED
    assert types[:-1].count(GROUPED) == 1
    assert "ResourceGather" not in types


def as_tensors(batch: dict[str, Any]) -> dict[str, Any]:
    """Features of `kinds.Batch` as Keras 3 takes them."""
    return {
        name: tf.SparseTensor(*value) if isinstance(value, tuple) else tf.constant(value)
        for name, value in batch.items()
    }


@pytest.mark.parity("Keras 3 DenseFeatures in inference", *VERSIONS)
@pytest.mark.parametrize("lengths", [(2, 1, 0, 3, 1), (0, 0, 0, 0, 0), ()])
@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_every_kind(kind: str, lengths: tuple[int, ...]) -> None:
    batch = as_tensors(Batch(lengths).features())
    for version in VERSIONS:
        layer = our_layer(build(of_each_combiner(kind), version))
        result, types = inference(layer, batch)
        assert_same_bits(result.numpy(), layer(batch).numpy())
        assert_grouped(types)
        assert result.shape == (len(lengths), 12)


@pytest.mark.parity("Keras 3 DenseFeatures in inference", *VERSIONS)
@pytest.mark.parametrize(
    "options", [{}, {"max_norm": 1.0}, {"combiner": "sum"}, {"trainable": False}], ids=str
)
@pytest.mark.parametrize("kind", CATEGORICAL)
def test_features_of_every_kind(kind: str, options: dict[str, Any]) -> None:
    columns = [embedding(CATEGORICAL[kind](), **options), fc.numeric_column("wide", 4)]
    layer = our_layer(columns, do_fusion="v2")
    result, types = inference(layer, features())
    # Single ids are clipped by stock ops outside of inference, which round differently.
    check = assert_close if "max_norm" in options else assert_same_bits
    check(result.numpy(), layer(features()).numpy())
    assert_grouped(types)


def test_ids_are_read_as_they_are_given() -> None:
    """Not made sparse first, where each value is an id."""
    detours = {"RaggedTensorToSparse", "NotEqual", "Where", "GatherNd", "SparseFillEmptyRows"}
    for name in ("ragged", "several", "id"):
        layer = our_layer([embedding(identity(name))], do_fusion="v2")
        function = tf.function(lambda given, layer=layer: layer(given, training=False))
        batch = {name: features()[name]}
        layer(batch)
        needed = {output.op for output in function.get_concrete_function(batch).outputs}
        while more := {tensor.op for op in needed for tensor in op.inputs} - needed:
            needed |= more
        types = {op.type for op in needed}
        assert GROUPED in types
        assert not detours & types


def test_other_columns_are_taken_over_in_their_place() -> None:
    for version in VERSIONS:
        layer = our_layer(mixed(version))
        result, types = inference(layer, features())
        assert_same_bits(result.numpy(), layer(features()).numpy())
        assert types[-1] == GROUPED
        assert types[:-1].count(GROUPED) == 1
    result, types = inference(our_layer(mixed()), features())
    assert GROUPED not in types


@pytest.mark.parity("Keras 3 DenseFeatures in inference", *VERSIONS)
def test_stacked() -> None:
    columns = [embedding(identity(name)) for name in ("sparse", "id", "several")]
    layer = our_layer([*columns, fc.numeric_column("wide", 4)], aggregation="stack", do_fusion="v2")
    result, types = inference(layer, features())
    assert result.shape == (ROWS, 4, 4)
    assert_same_bits(result.numpy(), layer(features()).numpy())
    assert_grouped(types)
    empty = {name: features()[name][:0] for name in ("id", "several", "wide")}
    layer = our_layer(columns[1:], aggregation="stack", do_fusion="v2")
    assert inference(layer, empty)[0].shape == (0, 2, 4)


def test_a_shared_table_is_read_once() -> None:
    with tf.Graph().as_default():  # TensorFlow refuses to make such columns outside of a graph
        names = ("id", "several", "sparse")
        shared = fc.shared_embeddings([identity(n) for n in names], 4, initializer=initializer)
    layer = our_layer(shared, do_fusion="v1")
    result, types = inference(layer, features())
    assert_same_bits(result.numpy(), layer(features()).numpy())
    assert_grouped(types)
    assert types.count("ReadEmbeddingTables") == 1


def test_without_safe_lookup() -> None:
    columns = [Column("hash of words", "x", "sqrtn", safe=False), Column("hash of ids", "y")]
    batch = as_tensors(Batch((2, 1, 1, 9, 12)).features())
    layer = our_layer(build(columns, "v2"))
    result, types = inference(layer, batch)
    assert_same_bits(result.numpy(), layer(batch).numpy())
    assert_grouped(types)
    # Alone it ends at the last row with an entry.
    batch = as_tensors(Batch((2, 0, 3, 0, 0)).features())
    layer = our_layer(build(columns[:1], "v2"))
    assert layer(batch, training=False).shape == layer(batch).shape == (3, 4)


@pytest.mark.parametrize("training", [None, True])
def test_whole_tables_are_read_in_inference_only(training: bool | None) -> None:
    layer = our_layer([embedding(identity("sparse"))], do_fusion="v2")
    layer(features())
    function = tf.function(lambda given: layer(given, training=training))
    types = op_types(function.get_concrete_function(features()))
    assert GROUPED not in types
    assert not {"ReadVariableOp", "ReadEmbeddingTables"}.intersection(types)
    assert "ResourceGather" in types


def test_keras_tells_inference_from_training(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    @keras.saving.register_keras_serializable(package="fusion_tests")
    class Watching(keras.layers.Layer):
        """Looks at the graph that it is put into."""

        def call(self, inputs: Any) -> Any:
            if isinstance(inputs, tf.Tensor) and not tf.executing_eagerly():
                seen.append([op.type for op in inputs.graph.get_operations()])
            return inputs

    def grouped() -> bool:
        found = [GROUPED in types for types in seen]
        seen.clear()
        assert len(set(found)) == 1
        return found[0]

    columns = [embedding(identity("id")), embedding(identity("several"), 3)]
    layer = our_layer(columns, do_fusion="v2")
    names = ("id", "several")
    batch = {name: tf.cast(features()[name], tf.int64) for name in names}
    given = {name: keras.Input(x.shape[1:], dtype="int64", name=name) for name, x in batch.items()}
    model = keras.Model(given, keras.layers.Dense(1)(Watching()(layer(given))))
    model.compile("sgd", "mse")
    labels = np.ones((ROWS, 1), np.float32)
    seen.clear()
    model.fit(batch, labels, verbose=0)
    assert not grouped()
    predicted = model.predict(batch, verbose=0)
    assert grouped()
    model.evaluate(batch, labels, verbose=0)
    assert grouped()
    assert_close(predicted, model(batch).numpy())
    model.fit(batch, labels, verbose=0)
    assert_close(model.predict(batch, verbose=0), model(batch).numpy())
    seen.clear()

    # Keras leaves it open what exported models are for, unless it is told.
    told = keras.Model(given, model(given, training=False))
    told.export(tmp_path / "model", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    assert op_types(served).count(GROUPED) == 1
    assert_same_bits(served(**batch)["output_0"].numpy(), model.predict(batch, verbose=0))
    seen.clear()

    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    seen.clear()
    assert_same_bits(loaded.predict(batch, verbose=0), model.predict(batch, verbose=0))
    assert grouped()


def test_gradients_flow_in_inference() -> None:
    columns = [
        embedding_column(identity("id"), 4, initializer=initializer, do_fusion="v2"),
        embedding_column(identity("sparse"), 3, "sum", initializer, do_fusion="v1"),
        embedding(identity("several"), 2),
    ]
    layer = our_layer(columns)
    layer(features())
    tables = [variable.value for variable in layer.trainable_weights]

    def gradients(training: bool | None) -> list[Any]:
        with tf.GradientTape() as tape:
            output = layer(features(), training=training)
            loss = tf.reduce_sum(output * tf.cos(tf.reshape(tf.range(54.0), [ROWS, 9])))
        found = tape.gradient(loss, tables)
        assert all(isinstance(gradient, tf.IndexedSlices) for gradient in found)
        return [gradient_parts(*pair)[1].numpy() for pair in zip(found, tables, strict=True)]

    for inferred, trained in zip(gradients(False), gradients(None), strict=True):
        assert_close(inferred, trained)
        assert np.any(inferred)


def test_an_id_outside_the_table() -> None:
    layer = our_layer([embedding(identity("id"))], do_fusion="v2")
    layer({"id": tf.zeros([2, 1], tf.int64)})
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"10 is not in \[0, 10\)"):
        layer({"id": tf.constant([[3], [10]], tf.int64)}, training=False)
