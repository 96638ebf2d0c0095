"""What keys of embedding variables may be, besides tensors of their dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion import EmbeddingVariable
from fusion.tables import FrozenEmbedding, PartitionedEmbeddingVariable
from tests.embedding_variables.test_checkpoints import train

OPTIONS: dict[str, Any] = {"capacity": 50, "seed": 1}


def plain(key_dtype: str) -> EmbeddingVariable:
    table = EmbeddingVariable("items", 2, key_dtype=key_dtype, **OPTIONS)
    train(table, 1, 2, 3)
    return table


def partitioned(key_dtype: str) -> PartitionedEmbeddingVariable:
    return PartitionedEmbeddingVariable("items", 2, 2, key_dtype=key_dtype, **OPTIONS)


def sharded(key_dtype: str) -> Any:
    return fusion.distribute.ShardedEmbeddingVariable("items", 2, key_dtype=key_dtype, **OPTIONS)


def frozen(key_dtype: str) -> FrozenEmbedding:
    return plain(key_dtype).freeze()


KINDS: list[Callable[[str], Any]] = [plain, partitioned, sharded, frozen]

#: Keys that are none of int64, and of int32.
NO_KEYS = [
    ([1.0], TypeError, "got float64: .*1.0"),
    (np.array([1.2, 1.7]), TypeError, "got float64: .*1.2"),
    (np.array(2.0, np.float16), TypeError, "got float16: .*2.0"),
    (np.array([[True]]), TypeError, "got bool: .*True"),
    ([False], TypeError, "got bool: .*False"),
    (np.array([1, 2**63 + 5], np.uint64), ValueError, f"got {2**63 + 5}"),
    ([2**63], ValueError, f"got {2**63}"),
    (["1"], TypeError, "got str"),
    (np.array([1 + 0j]), TypeError, "got complex128"),
    (tf.constant([1.0]), TypeError, "got float32"),
    ([tf.constant(1.0)], TypeError, "got float32"),
    (tf.constant([True]), TypeError, "got bool"),
    (tf.constant([1], tf.uint64), TypeError, "got uint64"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_key(kind):
    table = kind("int64")
    for keys, error, message in NO_KEYS:
        with pytest.raises(error, match=f"keys of .* must be int64, {message}"):
            table.embedding_lookup(keys)
    with tf.GradientTape(), pytest.raises(TypeError, match="float64"):
        table.embedding_lookup(np.array([1.2]))


@pytest.mark.parametrize("kind", KINDS)
def test_keys_do_not_wrap_around(kind):
    table = kind("int32")
    for key in (2**31, -(2**31) - 1):
        for keys in ([key], np.array([key])):
            with pytest.raises(ValueError, match=f"keys of .* must be int32, got {key}"):
                table.embedding_lookup(keys)


def test_keys_of_any_integers():
    table = plain("int64")
    expected = table.embedding_lookup(tf.constant([1, 2, 9], tf.int64)).numpy()
    assert (expected[0] != expected[1]).all()
    some: list[Any] = [[1, 2, 9], (1, 2, 9), [np.int32(1), 2, 9], [tf.constant(1), 2, 9]]
    dtypes = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", ">i8")
    for keys in [*some, *(np.array([1, 2, 9], dtype) for dtype in dtypes)]:
        np.testing.assert_array_equal(table.embedding_lookup(keys), expected)
    np.testing.assert_array_equal(table.embedding_lookup(1), expected[0])
    np.testing.assert_array_equal(table.embedding_lookup(np.array([[1, 2]])), [expected[:2]])
    empty: list[Any] = [[], np.array([]), np.zeros([0], np.uint64)]
    for none in empty:
        assert table.embedding_lookup(none).shape == [0, 2]


def test_keys_of_strings():
    table = EmbeddingVariable("words", 2, key_dtype="string", **OPTIONS)
    some: list[Any] = [["a", "b"], [b"a", b"b"]]
    for keys in [*some, np.array(some[0]), np.array(some[1], object)]:
        assert table.embedding_lookup(keys).shape == [2, 2]
    bad: list[Any] = [[1], np.array([1]), np.array([1.0]), np.array([True])]
    for keys in bad:
        with pytest.raises(TypeError, match="string"):
            table.embedding_lookup(keys)


def test_layers_of_keys():
    layer = fusion.keras.layers.DynamicEmbedding(
        2, ev_option=fusion.tables.EmbeddingVariableOption(capacity=50)
    )
    assert layer(np.array([[1, 2]])).shape == [1, 2, 2]
    for keys, dtype in (([1.2], "float"), ([True], "bool"), (np.array([5], np.uint64), "uint64")):
        with pytest.raises(TypeError, match=f"must be int64, got {dtype}"):
            layer(np.asarray(keys))


def test_columns_of_keys():
    column = fusion.feature_column.categorical_column_with_embedding("key", tf.int64)
    ids = tf.SparseTensor([[0, 0]], tf.constant([2**63 + 5], tf.uint64), [1, 1])
    with pytest.raises(ValueError, match="feature 'key' must be of int64, got uint64"):
        column._transformed(ids)
