"""Dense values that are hashed: they are hashed where they lie, and never gathered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion.passes.recognise.spec import DenseIds, SparseIds
from fusion.schema.names import GROUPED_IDS
from tests.passes import stock_graphs as stock
from tests.passes.planned_graphs import GROUP, PASS, POST, SINGLE, checked, graph_of, named, ops

v1 = tf.compat.v1
fc = tf.feature_column
WORDS = np.array([["x", "yy"], ["", "x"], ["", ""], ["zz", ""]])
NUMBERS = np.array([[7, -1], [-1, -1], [3, 3], [-5, 2**40]])


def embedding(key: str, dtype: Any = tf.string, combiner: str = "mean") -> Any:
    hashed = fc.categorical_column_with_hash_bucket(key, 5, dtype)
    values = np.random.default_rng(sum(key.encode())).normal(size=(5, 3))
    return fc.embedding_column(hashed, 3, combiner, v1.constant_initializer(values))


def layer(features: dict[str, Any], *columns: Any) -> tf.Tensor:
    return v1.feature_column.input_layer(features, columns)


def fed(key: str, values: Any) -> Any:
    return v1.placeholder(tf.as_dtype(values.dtype if values.dtype != WORDS.dtype else tf.string),
                          [None, values.shape[1]], key)  # fmt: skip


def test_words_and_numbers_are_hashed_where_they_lie() -> None:
    def build() -> Any:
        features = {"words": fed("words", WORDS), "numbers": fed("numbers", NUMBERS)}
        return layer(features, embedding("words"), embedding("numbers", tf.int64, "sum"))

    feed = {"words:0": WORDS, "numbers:0": NUMBERS}
    after = checked(graph_of(build), feed, ["grouped"] * 2)
    assert {GROUPED_IDS, "SelectV2", GROUP} <= set(ops(after))
    assert not {"GatherNd", "Where"} & set(ops(after))
    for node in after.node:
        if node.op == GROUPED_IDS:
            assert "_output_shapes" not in node.attr


def test_the_spec_tells_how_values_become_ids() -> None:
    def build() -> Any:
        return layer({"numbers": fed("numbers", NUMBERS)}, embedding("numbers", tf.int64))

    (column,) = PASS.explain(graph_of(build)).columns
    assert column.spec is not None
    assert isinstance(column.spec.ids, DenseIds)
    hashing = column.spec.ids.hashed
    assert hashing is not None
    assert [name.rpartition("/")[2] for name in hashing.by] == ["AsString", "lookup"]
    assert hashing.mask.node.endswith("NotEqual")
    assert f"hashed by {hashing.by[0]} and {hashing.by[1]} where" in str(column.spec)
    assert "the ids are the hashes of the elements of the dense" in str(column)


def test_columns_of_one_feature_share_its_hashes() -> None:
    def build() -> Any:
        words = fed("words", WORDS)
        hashed = fc.categorical_column_with_hash_bucket("words", 5)
        tables = [np.random.default_rng(seed).normal(size=(5, 3)) for seed in (1, 2)]
        return tf.concat(
            [
                layer(
                    {"words": words},
                    fc.embedding_column(hashed, 3, combiner, v1.constant_initializer(table)),
                )
                for combiner, table in zip(("mean", "sum"), tables, strict=True)
            ],
            1,
        )

    checked(graph_of(build), {"words:0": WORDS}, ["grouped"] * 2)


def test_lookups_that_are_not_in_one_piece_hash_there_too() -> None:
    def build() -> Any:
        splits = v1.fixed_size_partitioner(2)
        hashed = fc.categorical_column_with_hash_bucket("words", 5)
        values = v1.random_uniform_initializer(seed=1)
        column = fc.embedding_column(hashed, 3, initializer=values)
        words = fed("words", WORDS)
        with v1.variable_scope("partitioned", partitioner=splits):
            return layer({"words": words}, column)

    after = checked(graph_of(build), {"words:0": WORDS}, ["split"])
    assert {"PruneDenseAndFillEmptyRows", POST} <= set(ops(after))
    assert not {"GatherNd", "Where"} & set(ops(after))


def test_hashed_buckets_are_not_the_ids() -> None:
    """A Bucketize in front of the hash is no Bucketize of the ids."""

    def build() -> Any:
        values = v1.placeholder(tf.float32, [None, 2], "values")
        buckets = tf.cast(tf.raw_ops.Bucketize(input=values, boundaries=[0.0, 1.0]), tf.int64)
        return layer({"buckets": buckets}, embedding("buckets", tf.int64))

    values = np.array([[-1, 0.5], [2, np.nan]], np.float32)
    after = checked(graph_of(build), {"values:0": values}, ["single"])
    assert {"Bucketize", GROUPED_IDS, SINGLE} <= set(ops(after))


@pytest.mark.parametrize("ignored", [["", "x"], [["x"], [""], ["x"], [""]]])
def test_what_is_left_out_by_more_than_one_value_is_gathered(ignored: Any) -> None:
    def build() -> Any:
        words = fed("words", WORDS)
        indices = tf.where(tf.not_equal(words, tf.constant(ignored)))
        entries = tf.SparseTensor(
            indices, tf.gather_nd(words, indices), tf.shape(words, out_type=tf.int64)
        )
        return layer({"words": entries}, embedding("words"))

    graph_def = graph_of(build)
    (column,) = PASS.explain(graph_def).columns
    assert column.spec is not None
    assert isinstance(column.spec.ids, SparseIds)
    after = checked(graph_def, {"words:0": WORDS}, ["single"])
    assert {"GatherNd", "Where"} <= set(ops(after))


def test_hashes_that_wait_for_something_are_left_where_they_are() -> None:
    def build() -> Any:
        words = fed("words", WORDS)
        source = v1.get_variable("source", initializer=stock.table_values(tf.float32, 3, 4)[:6],
                                 use_resource=True)  # fmt: skip
        indices = tf.where(tf.not_equal(words, ""))
        values = tf.gather_nd(words, indices)
        with tf.control_dependencies([source.assign_add(tf.ones_like(source))]):
            hashed = tf.strings.to_hash_bucket_fast(values, 5)
        ids = tf.SparseTensor(indices, hashed, tf.shape(words, out_type=tf.int64))
        return tf.nn.safe_embedding_lookup_sparse(source, ids)

    graph_def = graph_of(build)
    (column,) = PASS.explain(graph_def).columns
    assert column.spec is not None
    assert isinstance(column.spec.ids, SparseIds)
    assert "GatherNd" in {node.op for node in named(PASS.apply(graph_def).graph_def).values()}
