"""`lookup_sparse`: many tables in one call, against stock lookups of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusion
from tests.embedding_variables.plain import keyed

DTYPES = ("float32", "float64", "float16", "bfloat16")


def seed_tables() -> tuple[list[tf.Variable], list[tf.SparseTensor]]:
    """Those of the experimental part of SparseOperationKit's introduction."""
    tables = [
        tf.Variable(np.arange(17 * 3).reshape(17, 3), dtype=tf.float32),
        tf.Variable(np.arange(7 * 5).reshape(7, 5), dtype=tf.float32),
    ]
    first = tf.SparseTensor([[0, 0], [0, 1], [1, 0], [1, 1], [1, 2]], [1, 1, 3, 4, 5], [2, 3])
    second = tf.SparseTensor([[0, 0], [1, 0], [1, 1]], [1, 2, 3], [2, 2])
    return tables, [first, second]


def test_the_seeds_numbers():
    tables, ids = seed_tables()
    with tf.GradientTape() as tape:
        first, second = fusion.lookup_sparse(tables, ids, combiners=["sum", "sum"])
        loss = tf.reduce_sum(first) + tf.reduce_sum(second)
    np.testing.assert_array_equal(first, [[6, 8, 10], [36, 39, 42]])
    np.testing.assert_array_equal(second, [[5, 6, 7, 8, 9], [25, 27, 29, 31, 33]])
    gradients = tape.gradient(loss, tables)
    assert [g.values.shape for g in gradients] == [[4, 3], [3, 5]]
    assert [sorted(g.indices.numpy().tolist()) for g in gradients] == [[1, 3, 4, 5], [1, 2, 3]]


class Column:
    """A table, ids in it, and weights or none."""

    def __init__(self, rng: np.random.Generator, dtype: str, kind: str, rows: int = 6) -> None:
        self.dim = int(rng.integers(1, 20))
        self.initial = rng.standard_normal((30, self.dim))
        self.dtype = tf.as_dtype(dtype)
        self.table: Any = tf.Variable(tf.cast(self.initial, self.dtype))
        lengths = rng.integers(0, 4, rows)
        lengths[-1] = 2  # stock's result ends with the last row that has an entry
        count = int(lengths.sum())
        key = tf.int32 if rng.integers(2) else tf.int64
        ids = tf.RaggedTensor.from_row_lengths(
            tf.constant(rng.integers(0, 30, count), key), lengths
        )
        weights = ids.with_values(tf.cast(rng.random(count) + 0.1, self.dtype))
        self.sparse = ids.to_sparse()
        self.ids = self.sparse if "sparse" in kind else ids
        self.weights: Any = None
        self.sparse_weights: Any = None
        if "weighted" in kind:
            self.sparse_weights = weights.to_sparse()
            self.weights = self.sparse_weights if "sparse" in kind else weights

    def stock(self, combiner: str | None) -> tf.Tensor:
        return tf.nn.embedding_lookup_sparse(
            self.table, self.sparse, self.sparse_weights, combiner=combiner
        )


KINDS = ("sparse", "ragged", "sparse weighted", "ragged weighted")


@pytest.mark.parametrize("way", ["eager", "function", "function of a signature"])
@pytest.mark.parametrize("seed", range(3))
def test_it_is_as_a_stock_lookup_of_each(way, seed):
    rng = np.random.default_rng(seed)
    columns = [
        Column(rng, dtype, kind) for dtype in ("float32", "float64", "float32") for kind in KINDS
    ]
    combiners = rng.choice(["sum", "mean", "sqrtn"], len(columns)).tolist()
    tables = [column.table for column in columns]

    def look_up(ids: Any, weights: Any) -> Any:
        return fusion.lookup_sparse(tables, ids, weights, combiners)

    def train(ids: Any, weights: Any) -> Any:
        with tf.GradientTape() as tape:
            results = look_up(ids, weights)
            loss = tf.add_n([tf.reduce_sum(tf.cast(r, tf.float64) ** 2) for r in results])
        return results, tape.gradient(loss, tables)

    given = [column.ids for column in columns], [column.weights for column in columns]
    if way == "function":
        look_up, train = tf.function(look_up), tf.function(train)
    elif way == "function of a signature":
        specs = tf.nest.map_structure(tf.type_spec_from_value, given)
        look_up = tf.function(look_up, input_signature=specs)
        train = tf.function(train, input_signature=specs)
    with tf.GradientTape() as tape:
        expected = [c.stock(combiner) for c, combiner in zip(columns, combiners, strict=True)]
        loss = tf.add_n([tf.reduce_sum(tf.cast(r, tf.float64) ** 2) for r in expected])
    results, gradients = train(*given)
    for ours, again, stock in zip(look_up(*given), results, expected, strict=True):
        assert ours.dtype == stock.dtype
        np.testing.assert_allclose(ours, stock, 1e-6, 1e-6)
        np.testing.assert_array_equal(ours, again)
    for column, ours, stock in zip(columns, gradients, tape.gradient(loss, tables), strict=True):
        assert isinstance(ours, tf.IndexedSlices)
        assert len(set(ours.indices.numpy().tolist())) == ours.indices.shape[0]
        np.testing.assert_allclose(dense(ours, column), dense(stock, column), 1e-5, 1e-6)


def dense(gradient: tf.IndexedSlices, column: Column) -> Any:
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, 30)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype):
    rng = np.random.default_rng(7)
    columns = [Column(rng, dtype, kind) for kind in KINDS]
    results = fusion.lookup_sparse(
        [c.table for c in columns], [c.ids for c in columns], [c.weights for c in columns]
    )
    for column, result in zip(columns, results, strict=True):
        single = fusion.fused_embedding_lookup_sparse_v2(column.table, column.ids, column.weights)
        np.testing.assert_array_equal(result, single)


def test_one_table():
    column = Column(np.random.default_rng(1), "float32", "sparse weighted")
    result = fusion.lookup_sparse(column.table, column.ids, column.weights, "sum")
    np.testing.assert_allclose(result, column.stock("sum"), 1e-6)
    np.testing.assert_allclose(
        fusion.lookup_sparse(column.table, column.ids),
        tf.nn.embedding_lookup_sparse(column.table, column.sparse, None),
        1e-6,
    )


def test_any_mix_of_tables():
    rng = np.random.default_rng(2)
    columns = [Column(rng, "float32", "sparse") for _ in range(5)]
    shards, whole, tensor, keys, other = columns
    parts = np.array_split(shards.initial, 3)
    shards.table = [tf.Variable(part, dtype=tf.float32) for part in parts]
    tensor.table = tf.constant(tensor.initial, tf.float32)
    keys.table = keyed(4, 100)
    keys.table.embedding_lookup(keys.sparse.values)
    other.table = tf.Variable(other.initial, dtype=tf.float32)
    deeper = tf.sparse.reshape(other.sparse, [2, 3, -1])
    ids = [c.ids for c in columns[:-1]] + [deeper]
    with tf.GradientTape() as tape:
        results = fusion.lookup_sparse([c.table for c in columns], ids)
        loss = tf.add_n([tf.reduce_sum(r) for r in results])
    for column, given, result in zip(columns, ids, results, strict=True):
        single = fusion.fused_embedding_lookup_sparse_v2(column.table, given)
        np.testing.assert_array_equal(result, single)
    assert results[-1].shape == [2, 3, other.dim]
    trained = [*shards.table, whole.table, keys.table.table, other.table]
    assert all(isinstance(g, tf.IndexedSlices) for g in tape.gradient(loss, trained))


def test_tables_of_one_dtype_share_ops():
    rng = np.random.default_rng(3)
    columns = [Column(rng, dtype, "sparse") for dtype in ("float32", "float64", "float32")]
    tables = [c.table for c in columns]

    @tf.function
    def infer(ids: Any) -> Any:
        return fusion.lookup_sparse(tables, ids)

    @tf.function
    def train(ids: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(tf.cast(r, tf.float64)) for r in infer(ids)])
        return tape.gradient(loss, tables)

    def ops_of(function: Any) -> list[str]:
        graph = function.get_concrete_function([c.ids for c in columns]).graph
        return [op.type for op in graph.get_operations() if op.type.startswith("Grouped")]

    assert ops_of(infer) == ["GroupedEmbeddingLookup"] * 2
    assert all(isinstance(g, tf.IndexedSlices) for g in train([c.ids for c in columns]))


def test_tables_without_elements():
    tables = [tf.Variable(tf.ones([9, dim])) for dim in (0, 4, 0)]
    ids = tf.ragged.constant([[1, 2], [8]])
    with tf.GradientTape() as tape:
        results = fusion.lookup_sparse(tables, [ids] * 3)
    assert [r.shape.as_list() for r in results] == [[2, 0], [2, 4], [2, 0]]
    assert [g.values.shape[1] for g in tape.gradient(results, tables)] == [0, 4, 0]


def test_ids_of_other_numbers_of_rows():
    rng = np.random.default_rng(4)
    columns = [Column(rng, "float32", "sparse", rows) for rows in (6, 9, 6)]
    results = fusion.lookup_sparse([c.table for c in columns], [c.ids for c in columns])
    assert [r.shape[0] for r in results] == [6, 9, 6]

    @tf.function(input_signature=[[tf.SparseTensorSpec([None, None], tf.int64)] * 3])
    def look_up(ids: Any) -> Any:
        return fusion.lookup_sparse([c.table for c in columns], ids)

    same = [tf.cast(columns[0].ids, tf.int64)] * 3
    assert [r.shape[0] for r in look_up(same)] == [6, 6, 6]
    with pytest.raises(tf.errors.InvalidArgumentError, match="rows"):
        look_up([tf.cast(c.ids, tf.int64) for c in columns])


def test_bad_arguments():
    tables, ids = seed_tables()
    with pytest.raises(ValueError, match="params must be 2, one for each of sp_ids, got 1"):
        fusion.lookup_sparse(tables[:1], ids)
    with pytest.raises(ValueError, match="sp_weights must be 2"):
        fusion.lookup_sparse(tables, ids, [None])
    with pytest.raises(ValueError, match="combiners must be 2"):
        fusion.lookup_sparse(tables, ids, combiners=["sum"])
    with pytest.raises(ValueError, match=r"combiner must be one of .* got 'max'"):
        fusion.lookup_sparse(tables, ids, combiners="max")
    with pytest.raises(ValueError, match="sp_ids must not be empty"):
        fusion.lookup_sparse([], [])
    with pytest.raises(TypeError, match="params must be a list"):
        fusion.lookup_sparse(tables[0], ids)
    with pytest.raises(TypeError, match=r"sp_ids\[1\] must be a SparseTensor or a RaggedTensor"):
        fusion.lookup_sparse(tables, [ids[0], tf.constant([[1]])])
    with pytest.raises(TypeError, match=r"sp_ids\[0\] must be int32 or int64, got float32"):
        fusion.lookup_sparse(tables, [tf.cast(ids[0], tf.float32), ids[1]])
    far = tf.SparseTensor([[0, 0]], [99], [2, 1])
    with pytest.raises(tf.errors.InvalidArgumentError, match="99"):
        fusion.lookup_sparse(tables, [ids[0], far])


def test_in_graphs_of_tensorflow_1():
    column = Column(np.random.default_rng(5), "float32", "sparse")
    sparse = column.sparse
    numbers = [part.numpy() for part in (sparse.indices, sparse.values, sparse.dense_shape)]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        table = tf.compat.v1.get_variable("t", initializer=column.initial, use_resource=True)
        ids = tf.SparseTensor(*numbers)
        results = fusion.lookup_sparse([table, table], [ids, ids])
        expected = tf.nn.embedding_lookup_sparse(table, ids, None)
        (gradient,) = tf.gradients(tf.add_n(results), table)
        assert isinstance(gradient, tf.IndexedSlices)
        session.run(tf.compat.v1.global_variables_initializer())
        first, second, stock = session.run([*results, expected])
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, stock, 1e-6)
