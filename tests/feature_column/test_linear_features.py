"""`LinearFeatures` of both Kerases against compat.v1's `linear_model`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.feature_column import categorical_column_with_embedding, embedding_column
from fusion.lookup import VERSIONS
from tests.feature_column.dense_layers import op_types
from tests.feature_column.hosts import as_tensors, recorded
from tests.feature_column.kinds import KEYS, KINDS, Batch, fc
from tests.feature_column.linear_layers import (
    LAYERS,
    Outcome,
    built,
    initial,
    linear_model,
    names,
    run,
)
from tests.reference import assert_same_bits

MODES = (None, *VERSIONS)
LAYER = pytest.mark.parametrize("package", LAYERS)
MODE = pytest.mark.parametrize("do_fusion", MODES)
#: The ops around the gathers of all columns, in training.
TRAINED = (
    *("GroupedEmbeddingPreLookUp", "GroupedEmbeddingPostLookUp"),
    "GroupedEmbeddingPostLookUpGrad",
)


def assert_same(ours: Outcome, stock: Outcome) -> None:
    """The same variables, output and gradients, those of ids of distinct rows.

    Stock adds columns in an order that depends on which buffers it may write to.
    """
    np.testing.assert_allclose(ours.output, stock.output, rtol=1e-6, atol=1e-6)
    assert ours.gradients.keys() == stock.gradients.keys()
    for name, (ids, gradient) in ours.gradients.items():
        assert len(set(ids)) == len(ids)
        np.testing.assert_allclose(gradient, stock.gradients[name][1], rtol=1e-6, atol=1e-6)


@pytest.mark.parity("Keras 3 LinearFeatures", *VERSIONS)
@pytest.mark.parity("tf_keras LinearFeatures", *VERSIONS)
@LAYER
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("units", [1, 3])
@MODE
def test_every_kind_of_categorical_column(
    package: str, kind: str, combiner: str, units: int, do_fusion: str | None
) -> None:
    features = Batch().features()
    options: dict[str, Any] = {"units": units, "sparse_combiner": combiner}
    layer = LAYERS[package](KINDS[kind]("x"), do_fusion=do_fusion, **options)
    ours = run(built(layer, as_tensors(features)), as_tensors(features))
    stock = linear_model(lambda: [KINDS[kind]("x")], features, **options)
    assert_same(ours, stock)
    if not kind.startswith("weighted"):
        assert_same_bits(ours.output, stock.output)


def simple() -> list[Any]:
    """Three categorical columns and a numeric one."""
    return [*(KINDS["identity"](key) for key in KEYS), fc.numeric_column("x_numbers", 2)]


def mixed() -> list[Any]:
    """Columns of all sorts, dense ones too."""
    return [
        KINDS["identity"]("x"),
        KINDS["hash of words"]("y"),
        KINDS["crossed"]("z"),
        KINDS["bucketized"]("x"),
        fc.numeric_column("y_numbers", 2),
        fc.indicator_column(KINDS["vocabulary list"]("z")),
        fc.embedding_column(KINDS["identity"]("z"), 3),
        embedding_column(KINDS["hash of ids"]("x"), 2, do_fusion="v2"),
    ]


@LAYER
@MODE
@pytest.mark.parametrize("lengths", [(2, 1, 0, 3, 1), (0, 0, 0)])
def test_columns_of_all_sorts(package: str, do_fusion: str | None, lengths: Any) -> None:
    features = Batch(lengths).features()
    given = as_tensors(features)
    layer = built(LAYERS[package](mixed(), name="linear_model", do_fusion=do_fusion), given)
    eager = run(layer, given, compiled=False)
    assert_same(eager, linear_model(mixed, features))
    trained = run(layer, given)
    assert_same(trained, eager)
    for output in (trained.output, layer(given).numpy()):
        assert_same_bits(output, eager.output)


@LAYER
@MODE
def test_no_rows(package: str, do_fusion: str | None) -> None:
    given = as_tensors(Batch(()).features())
    columns = [*mixed()[:2], fc.numeric_column("y_numbers", 2)]  # stock's others refuse them
    found = run(built(LAYERS[package](columns, units=2, do_fusion=do_fusion), given), given)
    assert found.output.shape == (0, 2)
    assert not any(gradient.any() for _, gradient in found.gradients.values())


@LAYER
@pytest.mark.parametrize("do_fusion", VERSIONS)
def test_categorical_columns_share_an_op(package: str, do_fusion: str) -> None:
    columns = [KINDS[kind](key) for key, kind in zip(KEYS, ("identity", "crossed"), strict=False)]
    columns += [KINDS["bucketized"]("z"), fc.numeric_column("x_numbers", 2)]
    features = as_tensors(Batch().features())
    layer = built(LAYERS[package](columns, do_fusion=do_fusion), features)

    def infer(given: Any) -> Any:
        return layer(given)

    def train(given: Any) -> Any:
        with tf.GradientTape() as tape:
            output = tf.reduce_sum(layer(given))
        weights = [w if isinstance(w, tf.Variable) else w.value for w in layer.trainable_weights]
        return output, tape.gradient(output, weights)

    function = tf.function(infer, autograph=False).get_concrete_function(features)
    types = op_types(function)
    assert types.count("GroupedEmbeddingLookup") == 1
    assert not [op for op in types if "SegmentSum" in op or op == "ResourceGather"]
    with recorded() as ran:
        result = function(*tf.nest.flatten(features, True))
    assert "GroupedEmbeddingLookup" in ran
    assert_same_bits(result.numpy(), layer(features).numpy())

    function = tf.function(train, autograph=False).get_concrete_function(features)
    assert [op_types(function).count(op) for op in TRAINED] == [1, 1, 1]
    with recorded() as ran:
        function(*tf.nest.flatten(features, True))
    assert ran.issuperset(TRAINED)
    gradients = function.structured_outputs[1]
    sparse = [isinstance(gradient, tf.IndexedSlices) for gradient in gradients]
    assert sparse == [
        name not in ("x_numbers/weights", "bias_weights") for name in names(layer.trainable_weights)
    ]


@LAYER
def test_without_fusion_all_ops_are_stocks(package: str) -> None:
    columns = [KINDS["identity"]("x"), fc.numeric_column("x_numbers", 2)]
    features = as_tensors(Batch().features())
    layer = built(LAYERS[package](columns), features)
    types = op_types(tf.function(layer, autograph=False).get_concrete_function(features))
    assert not [op for op in types if "Embedding" in op]


@LAYER
@MODE
def test_lists(package: str, do_fusion: str | None) -> None:
    column = fc.categorical_column_with_identity("tags", 6)
    number = fc.numeric_column("price")
    ragged = tf.ragged.constant([[1, 5], [], [2], [2, 2, 0]], dtype=tf.int64)
    price = tf.constant([[1.0], [2.0], [0.5], [3.0]])
    pairs = {"tags__values": ragged.values, "tags__offsets": ragged.row_splits}
    starts = {"tags__values": ragged.values, "tags__offsets": ragged.row_starts()[:, None]}
    sparse = v1_sparse(ragged)
    stock = linear_model(lambda: [column, number], {"tags": sparse, "price": price.numpy()})
    for given in ({"tags": ragged}, pairs, starts, {"tags": ragged.to_sparse()}):
        layer = LAYERS[package]([column, number], do_fusion=do_fusion)
        features = {"price": price, **given}
        assert_same(run(built(layer, features), features), stock)
    with pytest.raises(ValueError, match="feature 'tags' has 'tags__values' but no 'tags__off"):
        LAYERS[package]([column])({"tags__values": ragged.values})
    broken = {"price": price, **pairs, "tags__offsets": ragged.row_splits[::-1]}
    with pytest.raises(tf.errors.InvalidArgumentError, match="tags__offsets must rise"):
        layer(broken)


def v1_sparse(ragged: tf.RaggedTensor) -> Any:
    sparse = ragged.to_sparse()
    parts = (sparse.indices.numpy(), sparse.values.numpy(), sparse.dense_shape.numpy())
    return tf.compat.v1.SparseTensorValue(*parts)


@LAYER
@MODE
def test_dense_features_of_a_higher_rank(package: str, do_fusion: str | None) -> None:
    features = {"ids": np.arange(12).reshape(2, 3, 2) % 5, "one": np.array([1, 3])}
    columns = [fc.categorical_column_with_identity(name, 5) for name in features]
    layer = built(LAYERS[package](columns, do_fusion=do_fusion), as_tensors(features))
    assert_same(run(layer, as_tensors(features)), linear_model(lambda: columns, features))


@LAYER
@MODE
def test_ids_without_a_bound(package: str, do_fusion: str | None) -> None:
    columns = [categorical_column_with_embedding("key", tf.int64), fc.numeric_column("x")]
    layer = LAYERS[package](columns, do_fusion=do_fusion, units=2)
    features = {
        "key": tf.constant([[7, 1 << 40], [7, -1], [-1, -1]], tf.int64),
        "x": tf.zeros([3, 1]),
    }
    layer(features)
    with tf.GradientTape() as tape:
        output = layer(features)
    table = layer.trainable_weights[0]
    table = table if isinstance(table, tf.Variable) else table.value
    gradient = tape.gradient(output, table)
    assert isinstance(gradient, tf.IndexedSlices)
    tf.compat.v1.scatter_sub(table, gradient.indices, gradient.values)
    assert layer(features).numpy().tolist() == [[-3.0, -3.0], [-2.0, -2.0], [0.0, 0.0]]


@LAYER
def test_begins_as_zeros_with_linear_models_names(package: str) -> None:
    features = as_tensors(Batch().features())
    layer = LAYERS[package](simple(), units=2, name="linear_model")
    assert layer(features).numpy().tolist() == [[0.0, 0.0]] * 5
    shapes = dict(zip(names(layer.weights), [tuple(w.shape) for w in layer.weights], strict=True))
    assert shapes == {
        "x_ids/weights": (10, 2),
        "x_numbers/weights": (2, 2),
        "y_ids/weights": (10, 2),
        "z_ids/weights": (10, 2),
        "bias_weights": (2,),
    }


@LAYER
def test_one_kerass_checkpoint_is_the_others(package: str, tmp_path: Any) -> None:
    (other,) = LAYERS.keys() - {package}
    features = as_tensors(Batch().features())
    layer = built(LAYERS[package](simple()), features)
    path = tf.train.Checkpoint(model=layer).save(tmp_path / "c")
    restored = LAYERS[other](simple())
    restored(features)
    tf.train.Checkpoint(model=restored).restore(path).assert_existing_objects_matched()
    assert_same_bits(restored(features).numpy(), layer(features).numpy())


@LAYER
@pytest.mark.parametrize(
    ("columns", "options", "error", "message"),
    [
        ([], {}, ValueError, "feature_columns must not be empty"),
        (["x"], {}, ValueError, "FeatureColumn"),
        ([fc.numeric_column("x")] * 2, {}, ValueError, "Duplicate feature column name"),
        (None, {"units": 0}, ValueError, "units must be at least 1, got 0"),
        (None, {"units": 1.5}, TypeError, "units must be an integer, got 1.5"),
        (None, {"sparse_combiner": "max"}, ValueError, "combiner must be one of"),
        (None, {"do_fusion": "v3"}, ValueError, r"do_fusion must be None or one of .* got 'v3'"),
    ],
)
def test_wrong_arguments(
    package: str, columns: Any, options: Any, error: Any, message: str
) -> None:
    given = [fc.numeric_column("x")] if columns is None else columns
    with pytest.raises(error, match=message):
        LAYERS[package](given, **options)


@LAYER
@MODE
def test_wrong_features(package: str, do_fusion: str | None) -> None:
    layer = LAYERS[package]([fc.categorical_column_with_identity("a", 3)], do_fusion=do_fusion)
    with pytest.raises(ValueError, match="feature 'a' is missing, given: \\['b'\\]"):
        layer({"b": tf.constant([[1]])})
    features = {"a": tf.constant([[1], [2]], tf.int64)}
    layer(features)
    with pytest.raises(tf.errors.InvalidArgumentError):
        layer({"a": tf.constant([[1], [3]], tf.int64)})
    compiled = tf.function(layer, jit_compile=True, autograph=False)
    with pytest.raises(ValueError, match="cannot be compiled by XLA"):
        compiled(features)


@LAYER
def test_one_id_per_row_takes_no_sparse_tensor(package: str) -> None:
    columns = [fc.categorical_column_with_identity(name, 9) for name in "ab"]
    features = {name: tf.constant([[1], [8], [-1]], tf.int64) for name in "ab"}
    layer = built(LAYERS[package](columns, do_fusion="v2"), features)
    types = op_types(tf.function(layer, autograph=False).get_concrete_function(features))
    assert not [op for op in types if op in ("Where", "SparseReshape", "SparseFillEmptyRows")]
    rows = initial((9, 1))
    expected = [2 * rows[1] + initial((1,)), 2 * rows[8] + initial((1,)), initial((1,))]
    np.testing.assert_allclose(layer(features).numpy(), expected, rtol=1e-6)


def test_the_name_in_the_package() -> None:
    assert fusion.feature_column.LinearFeatures is LAYERS["keras"]
    assert "LinearFeatures" in dir(fusion.feature_column)
