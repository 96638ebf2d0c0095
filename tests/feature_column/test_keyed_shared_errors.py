"""Columns whose ids have no bound and that cannot share a table, or cannot be made."""

from __future__ import annotations

import pytest
import tensorflow as tf

from fusion.feature_column import shared_embedding_columns
from tests.feature_column.test_keyed import DIM, FUSION, ROWS
from tests.feature_column.test_keyed_shared import SHARING, keyed, plain

v1 = tf.compat.v1
fc = tf.feature_column


@FUSION
def test_columns_of_two_calls_share_by_the_name(do_fusion):
    with tf.Graph().as_default():
        columns = [
            shared_embedding_columns(
                [keyed(name)], DIM, shared_embedding_collection_name="one", do_fusion=version
            )[0]
            for name, version in (("a", do_fusion), ("b", None))
        ]
        given = {name: tf.constant([[1]], tf.int64) for name in "ab"}
        v1.feature_column.input_layer(given, columns)
        assert len(v1.trainable_variables()) == 1
        for other, message in (
            (keyed("c", 2), "'a' and 'c' share a table.* partition_num, got None and 2"),
            (plain("c"), r"(?s)ollection.*shape"),
        ):
            for version in (None, do_fusion):
                (column,) = shared_embedding_columns(
                    [other], DIM, shared_embedding_collection_name="one", do_fusion=version
                )
                with pytest.raises(ValueError, match=message):
                    v1.feature_column.input_layer({"c": given["a"]}, [column])
        (column,) = shared_embedding_columns(
            [keyed("c")], DIM + 1, shared_embedding_collection_name="one"
        )
        with pytest.raises(ValueError, match=f"dimension {DIM + 1}, got "):
            v1.feature_column.input_layer({"c": given["a"]}, [column])


@FUSION
def test_a_collection_of_another_kind_of_table(do_fusion):
    with tf.Graph().as_default():
        v1.add_to_collection("taken", v1.get_variable("table", [ROWS, DIM]))
        columns = shared_embedding_columns(
            [keyed("a")], DIM, shared_embedding_collection_name="taken", do_fusion=do_fusion
        )
        with pytest.raises(ValueError, match="'taken' must name a collection of an embedding var"):
            v1.feature_column.input_layer({"a": tf.constant([[1]], tf.int64)}, columns)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: keyed("b", dtype=tf.int32), "same dtype, got tf.int64 and tf.int32"),
        (lambda: keyed("b", 2), "same partition_num, got None and 2"),
        (lambda: keyed("b", capacity=9), "same ev_option, got .*capacity=30.* and .*capacity=9"),
    ],
)
@SHARING
@FUSION
def test_columns_with_other_tables(do_fusion, sharing, other, message):
    for wrapped in (other(), fc.weighted_categorical_column(other(), "weights")):
        with (
            tf.Graph().as_default(),
            pytest.raises(ValueError, match=f"'a' and 'b' share a table.* {message}"),
        ):
            sharing([keyed("a"), wrapped], DIM, do_fusion=do_fusion)


@SHARING
@FUSION
def test_ordinary_columns_beside_them(do_fusion, sharing):
    for columns in ([keyed("a"), plain("b")], [plain("b"), keyed("a")]):
        with (
            tf.Graph().as_default(),
            pytest.raises(ValueError, match=r"either all or none .*: 'a' is, and 'b' is not"),
        ):
            sharing(columns, DIM, do_fusion=do_fusion)


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        ({"dimension": 0}, ValueError, "Invalid dimension 0"),
        ({"initializer": 3}, ValueError, "initializer must be callable"),
        ({"do_fusion": "v3"}, ValueError, "do_fusion must be .* got 'v3'"),
        (
            {"ckpt_to_load_from": "path", "tensor_name_in_ckpt": "name"},
            NotImplementedError,
            "ckpt_to_load_from is not supported .* got 'path'",
        ),
    ],
)
@SHARING
def test_bad_arguments(sharing, bad, error, message):
    with tf.Graph().as_default(), pytest.raises(error, match=message):
        sharing([keyed("a"), keyed("b")], **({"dimension": DIM} | bad))


@SHARING
def test_eagerly_they_raise_as_in_stock(sharing):
    with pytest.raises(RuntimeError, match="not supported when eager"):
        sharing([keyed("a"), keyed("b")], DIM)


@pytest.mark.parametrize("make", [fc.shared_embeddings, v1.feature_column.shared_embedding_columns])
def test_stock_functions_say_what_to_use(make):
    with tf.Graph().as_default(), pytest.raises(ValueError, match=r"use fusion\.feature_column"):
        make([keyed("a"), keyed("b")], DIM)
