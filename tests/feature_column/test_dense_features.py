"""The numbers of our `DenseFeatures` for Keras 3: those of tf_keras's with stock columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion.feature_column import embedding_column
from fusion.lookup import VERSIONS
from fusion.schema.names import OP_NAMES
from tests.feature_column.dense_layers import (
    ROWS,
    WORDS,
    assert_close,
    assert_same,
    embedding,
    fc,
    for_stock,
    identity,
    initializer,
    op_types,
    our_layer,
    run,
    sparse,
    stock_layer,
)
from tests.reference import assert_same_bits

Array = Any


def features() -> dict[str, Any]:
    """One batch, of every kind of tensor."""
    words = ["a", "zebra", "", "b", "a", "c"]
    return {
        "number": tf.constant([1.5, 2.0, -3.0, 0.0, 7.0, 1e6]),
        "wide": tf.constant(np.arange(ROWS * 4).reshape(ROWS, 4) / 7, tf.float64),
        "whole": tf.constant([[3], [1], [2], [-5], [0], [9]]),
        "id": tf.constant([3, -1, 0, 9, 3, 3], tf.int64),
        "id32": tf.constant([[3], [-1], [0], [9], [-7], [3]], tf.int32),
        "any": tf.constant([[3], [-1], [0], [99], [-7], [3]], tf.int64),
        "several": tf.constant([[3, 3], [-1, 2], [0, -1], [-1, -1], [-7, 1], [3, 0]], tf.int32),
        "word": tf.constant(words),
        "words": tf.constant([[w] for w in words]),
        "sparse": sparse(np.array([1, 4, 0, 4, -1, 9])),
        "sparse_any": sparse(np.array([1, -4, 70, 4, -1, 9], np.int32)),
        "sparse_words": sparse(words),
        "importance": sparse(np.array([0.5, 2, 1, -1, 3, 0.25], np.float32)),
        "ragged": tf.RaggedTensor.from_row_lengths([1, 4, 0, 4, -1, 9], [2, 1, 0, 2, 0, 1]),
        "ragged_words": tf.RaggedTensor.from_row_lengths(words, [2, 1, 0, 2, 0, 1]),
    }


def vocabulary(name: str, **options: Any) -> Any:
    return fc.categorical_column_with_vocabulary_list(name, ["a", "b", "c"], **options)


def hashed(name: str, dtype: Any = tf.string) -> Any:
    return fc.categorical_column_with_hash_bucket(name, 7, dtype)


def from_file(name: str, **options: Any) -> Any:
    return fc.categorical_column_with_vocabulary_file(name, WORDS, **options)


def weighted(column: Any) -> Any:
    return fc.weighted_categorical_column(column, "importance")


def buckets(name: str = "number") -> Any:
    return fc.bucketized_column(fc.numeric_column(name), [-1.0, 1.5, 2.0])


#: Categorical columns by what they and their features are.
CATEGORICAL = {
    "identity": lambda: identity("id"),
    "identity of int32": lambda: identity("id32"),
    "identity with default": lambda: identity("any", default=6),
    "identity of several": lambda: identity("several"),
    "identity of sparse": lambda: identity("sparse"),
    "identity with default of sparse": lambda: identity("sparse_any", default=6),
    "identity of ragged": lambda: identity("ragged"),
    "hash of words": lambda: hashed("word"),
    "hash of words [B, 1]": lambda: hashed("words"),
    "hash of integers": lambda: hashed("any", tf.int64),
    "hash of sparse words": lambda: hashed("sparse_words"),
    "hash of ragged words": lambda: hashed("ragged_words"),
    "vocabulary": lambda: vocabulary("word"),
    "vocabulary with default": lambda: vocabulary("words", default_value=1),
    "vocabulary with buckets": lambda: vocabulary("word", num_oov_buckets=2),
    "vocabulary of sparse words": lambda: vocabulary("sparse_words"),
    "vocabulary of integers": lambda: fc.categorical_column_with_vocabulary_list("id", [9, 3, 5]),
    "vocabulary file": lambda: from_file("word"),
    "vocabulary file with buckets": lambda: from_file("words", num_oov_buckets=3),
    "vocabulary file of sparse words": lambda: from_file("sparse_words", vocabulary_size=2),
    "crossed": lambda: fc.crossed_column(["word", identity("several"), buckets()], 11),
    "bucketized": buckets,
    "bucketized wide": lambda: fc.bucketized_column(fc.numeric_column("wide", 4), [1.0, 2.5]),
    "weighted": lambda: weighted(identity("sparse")),
    "weighted words": lambda: weighted(vocabulary("sparse_words")),
}

#: Dense columns that are no embeddings.
DENSE = {
    "numeric": lambda: fc.numeric_column("number"),
    "numeric of integers": lambda: fc.numeric_column("whole"),
    "numeric with a shape": lambda: fc.numeric_column("wide", shape=(2, 2)),
    "normalised": lambda: fc.numeric_column("wide", 4, normalizer_fn=tf.sqrt),
    "bucketized": buckets,
}


def compare(columns: Any) -> None:
    """Our layer with `columns`, against tf_keras's layer with the same."""
    ours = run(our_layer(columns), features(), compiled=True)
    assert_same(ours, run(stock_layer(columns), for_stock(features()), compiled=True))


@pytest.mark.parametrize("kind", DENSE)
def test_dense_columns(kind: str) -> None:
    compare([DENSE[kind]()])


@pytest.mark.parity("Keras 3 DenseFeatures", *VERSIONS)
@pytest.mark.parametrize("kind", CATEGORICAL)
def test_categorical_columns(kind: str) -> None:
    column = CATEGORICAL[kind]()
    columns = [embedding(column), fc.indicator_column(column)]
    check = assert_close if kind.startswith("weighted") else assert_same_bits
    stock = run(stock_layer(columns), for_stock(features()), compiled=True)
    for do_fusion, compiled in ((None, True), ("v1", False), ("v2", True)):
        layer = our_layer(columns, do_fusion=do_fusion)
        assert_same(run(layer, features(), compiled), stock, check)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("identity", {"combiner": "sum"}),
        ("identity of several", {"combiner": "sqrtn"}),
        ("identity of sparse", {"combiner": "sum"}),
        ("identity of ragged", {"combiner": "sqrtn", "max_norm": 1.0}),
        ("identity with default", {"max_norm": 1.0}),
        ("vocabulary", {"max_norm": 0.0}),
        ("identity", {"trainable": False}),
        ("identity of sparse", {"trainable": False}),
        ("hash of words", {"use_safe_embedding_lookup": False}),
    ],
)
def test_options_of_embedding_columns(kind: str, options: dict[str, Any]) -> None:
    columns = [embedding(CATEGORICAL[kind](), **options)]
    check = assert_close if "max_norm" in options else assert_same_bits
    stock = run(stock_layer(columns), for_stock(features()), compiled=True)
    for do_fusion, compiled in ((None, True), ("v1", False), ("v2", True)):
        layer = our_layer(columns, do_fusion=do_fusion)
        assert_same(run(layer, features(), compiled), stock, check)


@pytest.mark.parametrize("max_norm", [0.0, 1.0])
def test_single_ids_are_clipped_to_the_bit(max_norm: float) -> None:
    compare([embedding(identity("any", default=6), max_norm=max_norm)])


def mixed(do_fusion: str | None = None) -> list[Any]:
    """Columns in an order that is not that of their names."""
    return [
        fc.numeric_column("wide", 4),
        embedding(vocabulary("word"), 3),
        embedding_column(identity("sparse"), 4, initializer=initializer, do_fusion=do_fusion),
        fc.indicator_column(vocabulary("sparse_words")),
        embedding_column(identity("id"), 5, "sum", initializer, do_fusion=do_fusion),
        fc.numeric_column("number"),
        embedding(fc.crossed_column(["word", "id"], 9), 2),
    ]


def test_columns_stand_side_by_side_in_the_order_of_their_names() -> None:
    stock = run(stock_layer(mixed()), for_stock(features()), compiled=True)
    assert_same(run(our_layer(mixed()), features(), compiled=True), stock)
    assert_same(run(our_layer(list(reversed(mixed()))), features(), compiled=False), stock)
    for do_fusion in VERSIONS:
        assert_same(run(our_layer(mixed(do_fusion)), features(), compiled=True), stock)


def test_two_vocabularies_of_one_feature_keep_apart() -> None:
    other = fc.categorical_column_with_vocabulary_list("word", ["c", "a"])
    compare([embedding(vocabulary("word")), fc.indicator_column(other)])


def function_of(layer: Any, *names: str) -> Any:
    """The layer's concrete function of features."""
    batch = {name: features()[name] for name in names}
    layer(batch)
    return tf.function(layer).get_concrete_function(batch)


@pytest.mark.parity("Keras 3 DenseFeatures of single ids, without a sparse detour", *VERSIONS)
@pytest.mark.parametrize("do_fusion", [None, *VERSIONS])
@pytest.mark.parametrize("kind", ["identity", "identity with default", "hash of words"])
def test_single_ids_take_no_sparse_detour(kind: str, do_fusion: str | None) -> None:
    columns = [embedding(CATEGORICAL[kind]())]
    name = CATEGORICAL[kind]().key
    types = op_types(function_of(our_layer(columns, do_fusion=do_fusion), name))
    assert "ResourceGather" in types
    assert ("UniqueWithCountsV3" in types) == (do_fusion is not None)
    detour = {"NotEqual", "Where", "GatherNd", "SparseFillEmptyRows", "SparseReshape"}
    assert not detour & set(types)
    stock = op_types(function_of(stock_layer(columns), name))
    assert detour <= set(stock)
    assert len(types) < len(stock) * 0.75


def test_do_fusion_is_for_stock_columns() -> None:
    def types(columns: Any, **options: Any) -> set[str]:
        return set(op_types(function_of(our_layer(columns, **options), "sparse")))

    columns = [embedding(identity("sparse"))]
    assert not set(OP_NAMES) & types(columns)
    for version, op in (("v1", "FusedEmbeddingSparsePostLookUp"), ("v2", "UniqueWithCountsV3")):
        assert op in types(columns, do_fusion=version)
    fused = [embedding_column(identity("sparse"), 4, do_fusion="v2")]
    assert types(fused, do_fusion="v1") == types(fused) == types(columns, do_fusion="v2")


@pytest.mark.parametrize(("rows", "compiled"), [(0, False), (0, True), (1, True)])
def test_small_batches(rows: int, compiled: bool) -> None:
    columns = [embedding(identity("id")), fc.numeric_column("number"), embedding(hashed("word"))]
    batch = {name: features()[name][:rows] for name in ("id", "number", "word")}
    ours, stock = (run(make(columns), batch, compiled) for make in (our_layer, stock_layer))
    assert ours.output.shape == (rows, 9)
    assert_same(ours, stock)


@pytest.mark.parametrize(("dimension", "default"), [(1, None), (8, 2), (29, None)])
def test_many_single_ids(dimension: int, default: int | None) -> None:
    rng = np.random.default_rng(dimension)
    batch = {"id": tf.constant(rng.integers(-2, 50, (1000, 1)))}
    columns = [embedding(identity("id", 50, default), dimension)]
    stock = run(stock_layer(columns), batch, compiled=True)
    for do_fusion in (None, *VERSIONS):
        assert_same(run(our_layer(columns, do_fusion=do_fusion), batch, compiled=True), stock)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 2)])
@pytest.mark.parametrize("make", [our_layer, stock_layer])
def test_an_id_outside_the_table(make: Any, shape: tuple[int, ...], compiled: bool) -> None:
    layer = make([embedding(identity("id"))])
    layer({"id": tf.zeros(shape, tf.int64)})
    call = tf.function(layer) if compiled else layer
    with pytest.raises(tf.errors.InvalidArgumentError, match="10"):
        call({"id": tf.fill(shape, tf.constant(10, tf.int64))})


@pytest.mark.parametrize("make", [our_layer, stock_layer])
@pytest.mark.parametrize(
    ("column", "feature"),
    [
        (identity("x"), [1.5]),
        (hashed("x"), [1]),
        (vocabulary("x"), [1]),
        (from_file("x"), [1]),
    ],
)
def test_a_feature_of_the_wrong_dtype(make: Any, column: Any, feature: Any) -> None:
    with pytest.raises(ValueError, match="x"):
        make([embedding(column)])({"x": tf.constant(feature)})


@pytest.mark.parity("shared_embeddings", *VERSIONS)
@pytest.mark.parametrize("do_fusion", [None, *VERSIONS])
def test_tables_that_are_shared(do_fusion: str | None) -> None:
    with tf.Graph().as_default():  # TensorFlow refuses to make such columns outside of a graph
        shared = fc.shared_embeddings(
            [identity("id"), identity("several"), identity("sparse")], 4, initializer=initializer
        )
    layer = our_layer(shared, do_fusion=do_fusion)
    ours = run(layer, features(), compiled=True)
    alone = [embedding(identity(name)) for name in ("id", "several", "sparse")]
    separate = run(stock_layer(alone), features(), compiled=True)
    assert ours.names == ["id_several_sparse_shared_embedding"]
    ops = set(op_types(function_of(layer, *features())))
    assert bool(set(OP_NAMES) & ops) == (do_fusion is not None)
    assert_same_bits(ours.output, separate.output)
    ((ids, gradient),) = ours.gradients.values()
    expected = sum(dense for _, dense in separate.gradients.values())
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)
    assert set(ids) == {i for ids, _ in separate.gradients.values() for i in ids}


@pytest.mark.parity("Keras 3 DenseFeatures, stacked", *VERSIONS)
@pytest.mark.parametrize("do_fusion", [None, *VERSIONS])
def test_stacked(do_fusion: str | None) -> None:
    columns = [embedding(identity(name)) for name in ("sparse", "id", "several")]
    stacked = our_layer(columns, aggregation="stack", do_fusion=do_fusion)(features())
    assert stacked.shape == (ROWS, 3, 4)
    side_by_side = stock_layer(columns)(features())
    assert_same_bits(stacked.numpy(), side_by_side.numpy().reshape(ROWS, 3, 4))


def test_columns_of_different_sizes_cannot_be_stacked() -> None:
    columns = [embedding(identity("id"), 4), fc.numeric_column("number")]
    with pytest.raises(ValueError, match=r"'stack' .*'id_embedding': 4, 'number': 1"):
        our_layer(columns, aggregation="stack")


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ([], {}, "must not be empty"),
        ({"a": 1}, {}, "found dict"),
        ([3], {}, "FeatureColumn"),
        ([identity("a")], {}, "dense columns.*'a'"),
        ([embedding(identity("a")), embedding(identity("a"), 5)], {}, "Duplicate"),
        ([embedding(identity("a"))], {"aggregation": "sum"}, "aggregation .*'sum'"),
        ([embedding(identity("a"))], {"do_fusion": "v3"}, "do_fusion .*'v3'"),
    ],
)
def test_bad_arguments(columns: Any, options: dict[str, Any], message: str) -> None:
    from fusion.feature_column.dense_features import DenseFeatures

    with pytest.raises(ValueError, match=message):
        DenseFeatures(columns, **options)


def test_one_column_and_iterators_will_do() -> None:
    one = our_layer([embedding(identity("id"))])(features())
    from fusion.feature_column.dense_features import DenseFeatures

    for columns in (embedding(identity("id")), iter([embedding(identity("id"))])):
        assert_same_bits(DenseFeatures(columns)(features()).numpy(), one.numpy())


def test_variables_are_named_as_in_stock() -> None:
    columns = [embedding(identity("id")), embedding(fc.crossed_column(["id", "several"], 5))]
    layer = our_layer(columns)
    layer(features())
    paths = [variable.path for variable in layer.weights]
    names = [variable.value.name for variable in layer.weights]
    assert paths == [
        "inputs/id_X_several_embedding/embedding_weights",
        "inputs/id_embedding/embedding_weights",
    ]
    assert names == [f"{path}:0" for path in paths]


def test_variables_are_trained_or_not() -> None:
    columns = [embedding(identity("id"), trainable=False), embedding(identity("several"))]
    layer = our_layer(columns)
    layer(features())
    assert [v.path.split("/")[1] for v in layer.trainable_weights] == ["several_embedding"]
    layer.trainable = False
    assert layer.trainable_weights == []
    layer.trainable = True
    assert len(layer.trainable_weights) == 1
    frozen = our_layer(columns, trainable=False)
    frozen(features())
    assert frozen.trainable_weights == []
    assert [v.trainable for v in frozen.weights] == [False, False]
