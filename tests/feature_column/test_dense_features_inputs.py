"""What our `DenseFeatures` takes: names, lists as values and offsets, Keras tensors, bad input."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from fusion.lookup import VERSIONS
from tests.feature_column.dense_layers import (
    assert_close,
    assert_same,
    embedding,
    fc,
    identity,
    our_layer,
    run,
    stock_layer,
)
from tests.keras.releases import HAS_RAGGED_INPUTS
from tests.reference import assert_same_bits

VALUES = [3, 1, 3, -1, 9, 0]
LISTS = [[3, 1, 3], [], [-1], [9, 0], []]
STARTS = [0, 3, 3, 4, 6]
NUMBER = tf.constant([1.0, 2, 3, 4, 5])


def pair(values: Any, offsets: Any, name: str = "list") -> dict[str, tf.Tensor]:
    return {
        f"{name}__values": tf.constant(values),
        f"{name}__offsets": tf.constant(offsets),
    }


def as_sparse(lists: Any, dtype: Any = tf.int64) -> tf.SparseTensor:
    return tf.ragged.constant(lists, dtype).to_sparse()


def columns(**options: Any) -> list[Any]:
    return [embedding(identity("list"), **options), fc.numeric_column("number")]


#: Values and offsets that mean `LISTS` beside a feature of five rows.
PAIRS = {
    "vectors": (VALUES, STARTS),
    "columns": ([[v] for v in VALUES], [[s] for s in STARTS]),
    "a column of values": ([[v] for v in VALUES], STARTS),
    "a column of starts": (VALUES, [[s] for s in STARTS]),
    "with the total": (VALUES, [*STARTS, 6]),
    "int64": (np.array(VALUES, np.int64), np.array(STARTS, np.int64)),
}


@pytest.mark.parity("Keras 3 DenseFeatures of values and offsets", *VERSIONS)
@pytest.mark.parametrize(
    ("combiner", "do_fusion"), [("sum", None), ("mean", "v1"), ("sqrtn", "v2")]
)
def test_lists_as_values_and_offsets(combiner: str, do_fusion: str | None) -> None:
    made = columns(combiner=combiner)
    given = {"list": as_sparse(LISTS), "number": NUMBER}
    stock = run(stock_layer(made), given, compiled=True)
    layer = our_layer(made, do_fusion=do_fusion)
    for form in PAIRS.values():
        for compiled in (False, True):
            assert_same(run(layer, {**pair(*form), "number": NUMBER}, compiled), stock)


@pytest.mark.parity("Keras 3 DenseFeatures of values and offsets", *VERSIONS)
@pytest.mark.parametrize("do_fusion", [None, *VERSIONS])
def test_lists_of_words_and_their_weights(do_fusion: str | None) -> None:
    words = fc.categorical_column_with_vocabulary_list("word", ["a", "b"], num_oov_buckets=1)
    column = embedding(fc.weighted_categorical_column(words, "weight"))
    text, weights = ["a", "c", "b", "a"], [1.0, 0.5, 2.0, -1.0]
    given = pair(text, [0, 2, 2], "word") | pair(weights, [0, 2, 2], "weight")
    ours = our_layer([column], do_fusion=do_fusion)(given)
    rows = [[0, 0], [0, 1], [2, 0], [2, 1]]
    expected = stock_layer([column])(
        {
            "word": tf.SparseTensor(rows, text, [3, 2]),
            "weight": tf.SparseTensor(rows, weights, [3, 2]),
        }
    )
    assert_close(ours.numpy(), expected.numpy())


def test_without_other_features_offsets_are_a_start_per_row() -> None:
    layer = our_layer([embedding(identity("list"))])
    assert layer(pair(VALUES, STARTS)).shape == (5, 4)
    total = layer(pair(VALUES, [*STARTS, 6]))  # as if a sixth row were empty
    assert total.shape == (6, 4)
    assert not total[5].numpy().any()


def test_a_column_of_offsets_tells_the_rows_of_other_lists() -> None:
    layer = our_layer([embedding(identity("list")), embedding(identity("other"))])
    starts = [[s] for s in STARTS]
    result = layer(pair(VALUES, [*STARTS, 6]) | pair(VALUES, starts, "other"))
    assert_same_bits(result[:, :4].numpy(), result[:, 4:].numpy())


@pytest.mark.parametrize(
    ("values", "offsets", "number"), [([], [], []), ([], [0, 0], [1.0, 2.0]), ([], [0], [])]
)
def test_lists_without_values(values: Any, offsets: Any, number: Any) -> None:
    given = pair(np.array(values, np.int64), np.array(offsets, np.int64))
    result = our_layer(columns())({**given, "number": tf.constant(number, tf.float32)})
    assert_same_bits(result[:, :4].numpy(), np.zeros((len(number), 4), np.float32))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 3, 3, 4], "must have a start per row, or one more"),
        ([0, 3, 3, 4, 6, 6, 6], "must have a start per row, or one more"),
        ([[0], [3], [3], [4]], "must have a start per row, or one more"),
        ([1, 3, 3, 4, 6], "must rise from 0"),
        ([0, 3, 2, 4, 6], "must rise from 0"),
        ([0, 3, 3, 4, 7], "must rise from 0"),
        ([0, 3, 3, 4, -1], "must rise from 0"),
        ([0, 3, 3, 4, 6, 5], "must rise from 0"),
        ([0, 3, 3, 4, 6, 7], "must rise from 0"),
    ],
)
def test_offsets_that_are_no_row_starts(offsets: Any, message: str, compiled: bool) -> None:
    layer = our_layer(columns())
    call = tf.function(layer) if compiled else layer
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"list: list__offsets {message}"):
        call({**pair(VALUES, offsets), "number": NUMBER})


def test_values_without_rows() -> None:
    layer = our_layer(columns())
    nothing = tf.zeros([0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="list__offsets"):
        layer({**pair(VALUES, np.zeros([0], np.int64)), "number": nothing})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (pair([[1, 2], [3, 4]], [0, 1]), r"'list__values' must have shape .*\(2, 2\)"),
        (pair(3, [0, 1]), r"'list__values' must have shape"),
        (pair([1, 2], [[0, 1]]), r"'list__offsets' must have shape .*\(1, 2\)"),
        (pair([1, 2], 3), r"'list__offsets' must have shape \[B\], \[B, 1\] or \[B \+ 1\], got"),
        (
            pair([1, 2], [0, 1]) | {"list__offsets": as_sparse([[0], [1]])},
            "'list__offsets' must be a Tensor, got SparseTensor",
        ),
        (
            pair([1, 2], [0, 1]) | {"list__offsets": tf.ragged.constant([[0], [1]])},
            "'list__offsets' must be a Tensor, got RaggedTensor",
        ),
        (pair([1, 2], [0.0, 1.0]), "'list__offsets' must be integers, got float32"),
        (pair([1, 2], [0, 1]) | {"list__values": as_sparse([[1], [2]])}, "list__values.*Sparse"),
    ],
)
def test_pairs_that_cannot_be(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        our_layer([embedding(identity("list"))])(given)


@pytest.mark.parametrize("given", [{}, pair([1, 2], [0, 1])])
def test_a_feature_without_rows(given: dict[str, Any]) -> None:
    columns = [embedding(identity("id")), *([embedding(identity("list"))] if given else [])]
    with pytest.raises(ValueError, match=r"id.* (rank 0|a scalar)"):
        our_layer(columns)({"id": tf.constant(2), **given})


#: What is given, and what the error says.
INCOMPLETE: list[tuple[Any, str]] = [
    ({"number": NUMBER}, r"feature 'list' is missing, given: \['number'\]"),
    ({}, r"feature 'list' is missing, given: \[\]"),
    ({"list": NUMBER, "other": NUMBER}, r"'number' is missing, given: \['list', 'other'\]"),
    ({"number": NUMBER, "list__values": NUMBER}, "'list' has 'list__values' but no 'list__offs"),
    ({"number": NUMBER, "list__offsets": NUMBER}, "'list' has 'list__offsets' but no 'list__val"),
    ({"number": NUMBER, "list": NUMBER, **pair(VALUES, STARTS)}, "'list' is given twice"),
    (NUMBER, "features must be a dict of tensors by name, got EagerTensor"),
    ([NUMBER, NUMBER], "features must be a dict of tensors by name, got list"),
]


@pytest.mark.parametrize(("given", "message"), INCOMPLETE)
def test_features_that_are_not_given(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        our_layer(columns())(given)


def test_features_that_are_not_given_when_a_model_is_put_together() -> None:
    given = {"number": keras.Input((1,), name="number")}
    with pytest.raises(ValueError, match=r"feature 'list' is missing, given: \['number'\]"):
        our_layer(columns())(given)


def test_other_features_are_ignored() -> None:
    given = {"id": tf.constant([1, 2]), "more": tf.constant([[1, 2]]), "even": tf.constant("x")}
    assert our_layer([embedding(identity("id"))])(given).shape == (2, 4)


def test_arrays_will_do() -> None:
    layer = our_layer([embedding(identity("id")), fc.numeric_column("number")])
    arrays = {"id": np.array([[1], [2]]), "number": np.array([0.5, 0.25])}
    tensors = {name: tf.constant(array) for name, array in arrays.items()}
    assert_same_bits(layer(arrays).numpy(), layer(tensors).numpy())


def test_features_of_unequal_batch_size() -> None:
    layer = our_layer([embedding(identity("id")), fc.numeric_column("number")])
    with pytest.raises(ValueError, match=r"id_embedding.*number"):
        layer({"id": tf.constant([1, 2]), "number": tf.constant([1.0])})
    call = tf.function(layer, input_signature=[
        {"id": tf.TensorSpec([None], tf.int64), "number": tf.TensorSpec([None], tf.float32)}
    ])  # fmt: skip
    with pytest.raises(tf.errors.InvalidArgumentError):
        call({"id": tf.constant([1, 2], tf.int64), "number": tf.constant([1.0])})


def test_features_of_unknown_rank() -> None:
    layer = our_layer([embedding(identity("id")), fc.numeric_column("number")])
    known = {"id": tf.constant([[1], [-1]]), "number": tf.constant([[1.0], [2.0]])}
    expected = layer(known)

    @tf.function(
        input_signature=[{name: tf.TensorSpec(None, x.dtype) for name, x in known.items()}]
    )
    def call(features: dict[str, Any]) -> tf.Tensor:
        return layer.call(features)

    assert_same_bits(call(known).numpy(), expected.numpy())


def ragged() -> Any:
    """A ragged input, where Keras has such."""
    return keras.Input((None,), dtype="int64", ragged=True, name="x")


#: Symbolic inputs, what the result's shape is, and what is fed.
SYMBOLIC: dict[str, tuple[Any, Any, tuple[int | None, ...]]] = {
    "columns": (lambda: keras.Input((1,), dtype="int32", name="x"), [[1], [2]], (None, 4)),
    "vectors": (lambda: keras.Input((), dtype="int64", name="x"), [1, 2], (None, 4)),
    "several": (lambda: keras.Input((3,), dtype="int32", name="x"), [[1, 2, 3]], (None, 4)),
    "a batch size": (
        lambda: keras.Input((1,), batch_size=2, dtype="int32", name="x"), [[1], [2]], (2, 4)
    ),
    "sparse": (
        lambda: keras.Input((None,), dtype="int64", sparse=True, name="x"),
        tf.SparseTensor([[0, 0], [2, 1]], tf.constant([1, 2], tf.int64), [3, 2]),
        (None, 4),
    ),
    **({
        "ragged": (ragged, tf.ragged.constant([[1, 2], [], [3]], tf.int64), (None, 4))
    } if HAS_RAGGED_INPUTS else {}),
}  # fmt: skip


@pytest.mark.parametrize("kind", SYMBOLIC)
def test_symbolic_features(kind: str) -> None:
    make, fed, shape = SYMBOLIC[kind]
    layer = our_layer([embedding(identity("x"))])
    symbol = make()
    output = layer({"x": symbol})
    assert (output.shape, output.dtype) == (shape, "float32")
    model = keras.Model({"x": symbol}, output)
    fed = tf.constant(fed) if isinstance(fed, list) else fed
    assert_same_bits(model({"x": fed}).numpy(), layer({"x": fed}).numpy())


def test_symbolic_words() -> None:
    column = fc.indicator_column(fc.categorical_column_with_vocabulary_list("x", ["a", "b"]))
    symbol = keras.Input((1,), dtype="string", name="x")
    model = keras.Model({"x": symbol}, our_layer([column])({"x": symbol}))
    assert model.output_shape == (None, 2)
    result = model({"x": tf.constant([["b"], [""]])})
    assert_same_bits(result.numpy(), np.array([[0, 1], [0, 0]], np.float32))


@pytest.mark.parametrize(("shape", "rows"), [((1,), None), ((), None)])
def test_symbolic_lists(shape: tuple[int, ...], rows: int | None) -> None:
    inputs = {
        name: keras.Input(shape, dtype="int64", name=name)
        for name in ("list__values", "list__offsets")
    }
    layer = our_layer([embedding(identity("list"))])
    output = layer(inputs)
    assert output.shape == (rows, 4)
    given = pair(np.array(VALUES), np.array(STARTS))
    model = keras.Model(inputs, output)
    assert_same_bits(model(given).numpy(), layer(given).numpy())


def test_shapes_are_told_without_tensors() -> None:
    layer = our_layer(columns())
    assert layer.compute_output_shape({"list": (8, 1), "number": (8,)}) == (8, 5)
    assert layer.compute_output_shape({"list": (None, 1), "number": (None,)}) == (None, 5)
    pairs = {"list__values": (9, 1), "list__offsets": (4, 1)}
    alone = our_layer([embedding(identity("list"))])
    assert alone.compute_output_shape(pairs) == (4, 4)
    assert alone.compute_output_shape({**pairs, "list__offsets": (5,)}) == (None, 4)
    stacked = our_layer([embedding(identity(n)) for n in "ab"], aggregation="stack")
    assert stacked.compute_output_shape({"a": (3,), "b": (3,)}) == (3, 2, 4)
    with pytest.raises(ValueError, match="'number' is missing"):
        layer.compute_output_shape({"list": (8, 1)})
