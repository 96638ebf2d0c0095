"""The lookups' arguments one by one: what they mean, and what bad ones raise in each mode."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable

import fusion
from fusion import fused_embedding_lookup_sparse as plain_v1
from fusion import fused_embedding_lookup_sparse_v2 as plain_v2
from fusion import fused_safe_embedding_lookup_sparse
from fusion.lookup import VERSIONS, LookupOptions, functions, lookup
from tests import reference, tables
from tests.reference import MODES

TABLE = np.arange(1, 21, dtype=np.float32).reshape(10, 2)
RUN_TIME = tf.errors.InvalidArgumentError


def plain_v1_with_prune(params, sp_ids, sparse_weights=None, prune=False, **kw):
    return plain_v1(params, sp_ids, sparse_weights, prune_invalid_ids=prune, **kw)


SAFE: dict[str, Any] = {
    version: functools.partial(fused_safe_embedding_lookup_sparse, fusion_version=version)
    for version in VERSIONS
}
PLAIN: dict[str, Any] = {"v1": plain_v1_with_prune, "v2": plain_v2}
FUNCTIONS: dict[str, Any] = {
    f"{name} {version}": functions[version]
    for name, functions in (("safe", SAFE), ("plain", PLAIN))
    for version in VERSIONS
}
every_function = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
every_version = pytest.mark.parametrize("version", VERSIONS)


def ids(values=(1, 2, 3), rows=(0, 0, 2), batch=4, dtype=np.int64):
    return {
        "indices": np.array([(row, 0) for row in rows], np.int64).reshape(-1, 2),
        "values": np.array(values, dtype),
        "dense_shape": np.array([batch, 1], np.int64),
    }


def run(mode, function, arrays, table=TABLE, weights=None, **kw):
    """The result of a lookup in `mode`; weights are a Tensor."""
    feeds = arrays if weights is None else arrays | {"weights": np.array(weights, np.float32)}

    def build(made, indices, values, dense_shape, weights=None):
        return function(made, tf.SparseTensor(indices, values, dense_shape), weights, **kw)

    make = table if callable(table) else lambda: tf.Variable(table)
    return reference.run(mode, build, feeds, make)


#: The parameters of the contract, in order.
SAFE_NAMES = """embedding_weights sparse_ids sparse_weights combiner default_id name
    partition_strategy max_norm prune blocknums fusion_version"""
PLAIN_V2_NAMES = """params sp_ids sparse_weights partition_strategy name combiner max_norm
    default_id prune fill_empty_row blocknums"""
PLAIN_V1_NAMES = PLAIN_V2_NAMES.replace("prune", "prune_invalid_ids")


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (fused_safe_embedding_lookup_sparse, SAFE_NAMES),
        (plain_v1, PLAIN_V1_NAMES),
        (plain_v2, PLAIN_V2_NAMES),
    ],
)
def test_signatures_are_those_of_the_contract(function, names):
    assert list(inspect.signature(function).parameters) == names.split()


def test_combiner_none_is_mean_and_strategy_none_is_div():
    shards = [tf.Variable(shard) for shard in tables.split(TABLE, 3)]
    explicit = {"combiner": "mean", "partition_strategy": "div"}
    expected = run("eager", SAFE["v2"], ids(), lambda: shards, **explicit)
    for function in FUNCTIONS.values():
        actual = run(
            "eager", function, ids(), lambda: shards, combiner=None, partition_strategy=None
        )
        np.testing.assert_array_equal(actual, expected)


@every_version
@pytest.mark.parametrize("mode", MODES)
def test_prune(version, mode):
    arrays = ids(values=(1, -2, 3))
    np.testing.assert_array_equal(run(mode, PLAIN[version], arrays, prune=True)[0], TABLE[1])
    np.testing.assert_array_equal(run(mode, SAFE[version], arrays)[0], TABLE[1])
    for function in (SAFE[version], PLAIN[version]):
        with pytest.raises(RUN_TIME, match=r"-2 is not in \[0, 10\)"):
            run(mode, function, arrays, prune=False)


@every_version
def test_without_pruning_weights_count_as_they_are(version):
    weighted = {"weights": [2.0, -1.0, 5.0], "combiner": "mean"}
    kept = run("eager", PLAIN[version], ids(), prune=False, **weighted)
    np.testing.assert_allclose(kept[0], 2 * TABLE[1] - TABLE[2])
    pruned = run("eager", PLAIN[version], ids(), prune=True, **weighted)
    np.testing.assert_allclose(pruned[0], TABLE[1])


@every_version
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 3.0], [0.0, 0.0, 3.0]])
def test_the_plain_lookup_without_prune_or_fill_is_stock(version, combiner, weights):
    arrays = ids(values=(1, 2, 3), rows=(0, 0, 3), batch=4)
    options = {"prune": False, "fill_empty_row": False, "combiner": combiner}
    ours = run("eager", PLAIN[version], arrays, weights=weights, **options)
    sparse_ids = tf.SparseTensor(arrays["indices"], arrays["values"], arrays["dense_shape"])
    if weights is not None:
        weights = tf.SparseTensor(sparse_ids.indices, weights, sparse_ids.dense_shape)
    stock = tf.nn.embedding_lookup_sparse(TABLE, sparse_ids, weights, combiner)
    np.testing.assert_allclose(ours, stock, rtol=1e-6)


@every_version
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_rows_without_entries_are_zeros_with_and_without_fill(version, combiner):
    for fill in (False, True):
        out = run("eager", PLAIN[version], ids(), fill_empty_row=fill, combiner=combiner)
        assert out.shape == (4, 2)
        np.testing.assert_array_equal(out[[1, 3]], 0)


@every_version
def test_default_id_counts_only_with_fill(version):
    filled = run("eager", PLAIN[version], ids(), default_id=7)
    np.testing.assert_array_equal(filled[[1, 3]], TABLE[[7, 7]])
    unfilled = run("eager", PLAIN[version], ids(), default_id=7, fill_empty_row=False)
    np.testing.assert_array_equal(unfilled[[1, 3]], 0)
    np.testing.assert_array_equal(filled[[0, 2]], unfilled[[0, 2]])


@every_version
def test_default_id_has_weight_one(version):
    out = run("eager", SAFE[version], ids(), weights=[2.0, 2.0, 2.0], combiner="sum", default_id=7)
    np.testing.assert_array_equal(out[[1, 3]], TABLE[[7, 7]])
    np.testing.assert_array_equal(out[2], 2 * TABLE[3])


@every_version
@pytest.mark.parametrize("mode", MODES)
def test_default_id_outside_the_table_matters_only_if_used(version, mode):
    with pytest.raises(RUN_TIME, match=r"10 is not in \[0, 10\)"):
        run(mode, SAFE[version], ids(), default_id=10)
    full = ids(rows=(0, 1, 2), batch=3)
    np.testing.assert_array_equal(run(mode, SAFE[version], full, default_id=10), TABLE[[1, 2, 3]])


@every_version
def test_default_id_may_be_any_integer_type(version):
    out = run("eager", SAFE[version], ids(), default_id=np.int64(7))
    np.testing.assert_array_equal(out[1], TABLE[7])


@every_version
@pytest.mark.parametrize("as_sparse", [False, True])
def test_weights_are_a_tensor_or_a_sparse_tensor(version, as_sparse):
    sparse_ids = tf.SparseTensor([[0, 0], [1, 0]], tf.constant([1, 2], tf.int64), [2, 1])
    weights = tf.constant([2.0, 3.0])
    given = tf.SparseTensor(sparse_ids.indices, weights, [2, 1]) if as_sparse else weights
    for function in (SAFE[version], PLAIN[version]):
        out = function(TABLE, sparse_ids, given, combiner="sum")
        np.testing.assert_array_equal(out, [2 * TABLE[1], 3 * TABLE[2]])


@every_version
def test_weights_may_be_a_list(version):
    sparse_ids = tf.SparseTensor([[0, 0]], tf.constant([1], tf.int64), [1, 1])
    table = tf.constant(TABLE, tf.float64)
    out = SAFE[version](table, sparse_ids, [2.0], combiner="sum")
    np.testing.assert_array_equal(out, [2 * TABLE[1]])


@every_version
def test_a_table_of_numbers_takes_the_dtype_of_the_weights(version):
    sparse_ids = tf.SparseTensor([[0, 0]], tf.constant([1], tf.int64), [1, 1])
    for dtype in (tf.float32, tf.float64):
        weights = tf.SparseTensor([[0, 0]], tf.constant([2.0], dtype), [1, 1])
        for table in (TABLE.astype(np.float64), [TABLE.astype(np.float64)]):
            out = SAFE[version](table, sparse_ids, weights, combiner="sum")
            stock = tf.nn.safe_embedding_lookup_sparse(table, sparse_ids, weights, combiner="sum")
            assert out.dtype == stock.dtype == dtype
            np.testing.assert_array_equal(out, stock)


@every_version
def test_name_is_the_scope(version):
    with tf.Graph().as_default() as graph:
        sparse_ids = tf.compat.v1.sparse_placeholder(tf.int64, [None, 2])
        out = SAFE[version](tf.constant(TABLE), sparse_ids, name="mine")
        assert out.name.startswith("mine/")
        new = [op.name for op in graph.get_operations() if op.type.startswith(("Fused", "Prune"))]
        assert new
        assert all(name.startswith("mine/") for name in new)


@every_version
@pytest.mark.parametrize("shape", [[None, 2], [5, 2]])
@pytest.mark.parametrize("n_shards", [1, 3])
def test_static_shapes(version, shape, n_shards):
    with tf.Graph().as_default():
        sparse_ids = tf.compat.v1.sparse_placeholder(tf.int64, shape)
        shards = [tf.Variable(shard) for shard in tables.split(TABLE, n_shards)]
        for function in (SAFE[version], PLAIN[version]):
            assert function(shards, sparse_ids).shape.as_list() == [None, 2]
        cube = tf.compat.v1.sparse_placeholder(tf.int64, [None, 3, 4])
        assert SAFE[version](shards, cube).shape.as_list() == [None, None, 2]
        fixed = tf.SparseTensor([[0, 0]], tf.constant([1], tf.int64), [5, 2])
        assert SAFE[version](shards, fixed).shape.as_list() == [5, 2]


BAD_OPTIONS = [
    ({"combiner": "max"}, ValueError, "combiner .*'max'"),
    ({"combiner": "SUM"}, ValueError, "combiner .*'SUM'"),
    ({"partition_strategy": "hash"}, ValueError, "partition_strategy .*'hash'"),
    ({"default_id": -1}, ValueError, "default_id .*-1"),
    ({"default_id": 1.5}, TypeError, "default_id .*1.5"),
    ({"default_id": 2**63}, ValueError, f"default_id .*{2**63}"),
    ({"max_norm": "a"}, ValueError, "max_norm .*'a'"),
    ({"max_norm": "1.0"}, ValueError, "max_norm .*'1.0'"),
    ({"max_norm": float("nan")}, ValueError, "max_norm .*nan"),
    ({"max_norm": 10**400}, ValueError, "max_norm .*1000"),
    ({"max_norm": [1.0, 2.0]}, ValueError, r"max_norm .*\[1.0, 2.0\]"),
    ({"blocknums": 3}, NotImplementedError, "blocknums .*3"),
]


@pytest.mark.parametrize("mode", MODES)
@every_function
@pytest.mark.parametrize(("options", "error", "message"), BAD_OPTIONS)
def test_bad_options(mode, function, options, error, message):
    with pytest.raises(error, match=message):
        run(mode, function, ids(), **options)


def with_variables():
    module = tf.Module()
    module.table = tf.Variable(TABLE)
    return module


@every_function
@pytest.mark.parametrize("make", [with_variables, lambda: {"a": TABLE}, lambda: [TABLE, object()]])
def test_what_is_no_table(function, make):
    with pytest.raises((TypeError, ValueError), match=r"(embedding_weights|params) must be a Var"):
        run("eager", function, ids(), table=make)


def in_shards():
    return ShardedVariable([tf.Variable(TABLE[:5]), tf.Variable(TABLE[5:])])


@every_function
@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize("make", [lambda: [in_shards()], lambda: [TABLE.tolist()]])
def test_a_list_of_one_table(function, make, strategy):
    expected = run("eager", function, ids())
    actual = run("eager", function, ids(), table=make, partition_strategy=strategy)
    reference.assert_same_bits(actual, expected)
    single = tf.SparseTensor([[0, 0], [1, 0], [3, 0]], tf.constant([1, 7, 9], tf.int64), [4, 1])
    options = {"combiner": "sum", "partition_strategy": strategy}
    stock = tf.compat.v1.nn.safe_embedding_lookup_sparse(make(), single, **options)
    reference.assert_same_bits(function(make(), single, **options).numpy(), stock.numpy())


@every_version
def test_default_id_that_does_not_fit_the_ids(version):
    with pytest.raises(ValueError, match=f"default_id .*int32.*{2**31}"):
        run("eager", SAFE[version], ids(dtype=np.int32), default_id=2**31)


@pytest.mark.parametrize("version", ["v3", "V1", None, "", 1])
def test_unknown_fusion_version(version):
    with pytest.raises(ValueError, match=f"fusion_version .*{version!r}"):
        run("eager", fused_safe_embedding_lookup_sparse, ids(), fusion_version=version)


#: The function, and what it calls the table and the ids.
NAMES = [
    (functions[version], *names)
    for functions, *names in (
        (SAFE, "embedding_weights", "sparse_ids"),
        (PLAIN, "params", "sp_ids"),
    )
    for version in VERSIONS
]

BAD_TABLES = [
    (None, ValueError, "None"),
    ([], ValueError, "empty"),
    (np.zeros(3, np.float32), ValueError, r"rank 2.*\(3,\)"),
    (np.zeros((2, 2, 2), np.float32), ValueError, r"rank 2.*\(2, 2, 2\)"),
    (np.zeros((2, 2), np.int32), TypeError, "int32"),
    (np.zeros((2, 2), np.complex64), TypeError, "complex64"),
    (np.zeros((2, 2), np.bool_), TypeError, "bool"),
    (np.full((2, 2), "1"), TypeError, "string"),
    (np.zeros((2, 2), ml_dtypes.float8_e5m2), TypeError, "float8_e5m2"),
    ([np.zeros((2, 2), np.float16), np.zeros((2, 2), ml_dtypes.bfloat16)], ValueError, "bfloat16"),
    ([np.zeros((2, 2), np.float32), np.zeros((2, 2), np.float64)], ValueError, "float64"),
    ([np.zeros((2, 2), np.float32), np.zeros((2, 3), np.float32)], ValueError, r"\(2, 3\)"),
]


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize(("function", "table_name", "ids_name"), NAMES)
@pytest.mark.parametrize(("table", "error", "message"), BAD_TABLES)
def test_bad_tables(graph, function, table_name, ids_name, table, error, message):
    scope = tf.Graph().as_default() if graph else tf.init_scope()
    with scope, pytest.raises(error, match=f"{table_name} .*{message}"):
        function(table, tf.SparseTensor([[0, 0]], tf.constant([1], tf.int64), [1, 1]))


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize(("function", "table_name", "ids_name"), NAMES)
def test_bad_ids(graph, function, table_name, ids_name):
    scope = tf.Graph().as_default() if graph else tf.init_scope()
    with scope:
        for bad in (tf.constant([[1]]), np.array([[1]]), None):
            with pytest.raises(TypeError, match=f"{ids_name} must be a SparseTensor or a RaggedT"):
                function(TABLE, bad)
        for values in ([1.0], ["a"], tf.constant([1], tf.int16)):
            with pytest.raises(TypeError, match=f"{ids_name} must be int32 or int64, got"):
                function(TABLE, tf.SparseTensor([[0, 0]], values, [1, 1]))


@pytest.mark.parametrize(("function", "table_name", "ids_name"), NAMES)
def test_a_negative_dense_shape_that_is_known(function, table_name, ids_name):
    # TensorFlow itself refuses any other negative number.
    negative = tf.SparseTensor(np.zeros((0, 2)), tf.zeros([0], tf.int64), [-1, 1])
    with pytest.raises(ValueError, match=rf"{ids_name} has a negative .*\[-1, 1\]"):
        function(TABLE, negative)


@pytest.mark.parametrize("graph", [False, True])
@every_function
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (tf.float64, "float32.*float64"),
        (tf.float16, "float32.*float16"),
        (tf.int32, "float32.*int32"),
        ([[1.0]], r"rank 1.*\(1, 1\)"),
        (1.0, r"rank 1.*\(\)"),
    ],
)
def test_bad_weights(graph, function, weights, message):
    with tf.Graph().as_default() if graph else tf.init_scope():
        given = tf.ones([1], weights) if isinstance(weights, tf.DType) else weights
        sparse_ids = tf.SparseTensor([[0, 0]], tf.constant([1], tf.int64), [1, 1])
        with pytest.raises(ValueError, match=f"sparse_weights must have .*{message}"):
            function(tf.constant(TABLE), sparse_ids, given)


@pytest.mark.parametrize("mode", MODES)
@every_function
@pytest.mark.parametrize("bad", [10, 2**40])
def test_an_id_outside_the_table(mode, function, bad):
    with pytest.raises(RUN_TIME, match=rf"{bad} is not in \[0, 10\)") as caught:
        run(mode, function, ids(values=(1, bad, 3)))
    assert ("ResourceGather" if mode == "eager" else "embedding_lookup") in str(caught.value)


@every_version
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("strategy", ["div", "mod"])
def test_an_id_outside_a_table_of_shards(version, mode, strategy):
    make = lambda: [tf.Variable(t) for t in tables.split(TABLE, 3, strategy)]  # noqa: E731
    with pytest.raises(RUN_TIME, match=r"= 10 is not an id of a table of 10 rows in 3 shards"):
        run(mode, SAFE[version], ids(values=(1, 10, 3)), make, partition_strategy=strategy)


@pytest.mark.parametrize("mode", MODES)
@every_function
@pytest.mark.parametrize("row", [4, -1, 2**62])
def test_a_row_outside_the_batch(mode, function, row):
    with pytest.raises(RUN_TIME, match=rf"sp_indices\[2, 0\] = {row} is not in \[0, 4\)"):
        run(mode, function, ids(rows=(0, 0, row)))


@pytest.mark.parametrize("mode", ["function", "session"])
@every_function
def test_a_negative_dense_shape_at_run_time(mode, function):
    with pytest.raises(RUN_TIME, match=r"-4"):
        run(mode, function, ids(batch=-4))


@pytest.mark.parametrize("mode", MODES)
@every_function
@pytest.mark.parametrize("weights", [[1.0], [1.0] * 4])
def test_weights_of_another_length(mode, function, weights):
    error = ValueError if mode == "eager" else RUN_TIME
    with pytest.raises(error, match=f"sp_weights_values .*{len(weights)}.*3"):
        run(mode, function, ids(), weights=weights)


@every_version
@pytest.mark.parametrize("mode", ["function", "session"])
def test_values_and_indices_of_different_lengths(version, mode):
    arrays = ids() | {"values": np.array([1, 2])}
    with pytest.raises(RUN_TIME, match=r"sp_indices .*3.*sp_values.*2"):
        run(mode, SAFE[version], arrays)


@every_version
def test_an_empty_row_of_an_empty_table(version):
    table = np.zeros((0, 2), np.float32)
    with pytest.raises(RUN_TIME, match=r"0 is not in \[0, 0\)"):
        run("eager", SAFE[version], ids(values=(), rows=()), table)
    assert run("eager", SAFE[version], ids(values=(), rows=(), batch=0), table).shape == (0, 2)


def last_row(version, table, sparse_ids, weights=None):
    """The plain lookup as feature columns without safe lookup use it."""
    options = LookupOptions(version=version).until_last_row()
    return lookup(table, sparse_ids, weights, options)


@every_version
@pytest.mark.parametrize("n_shards", [1, 3])
@pytest.mark.parametrize("weights", [None, [0.5, -1.0, 3.0]])
def test_the_lookup_until_the_last_row_is_stock(version, n_shards, weights):
    shards = tables.split(TABLE, n_shards)
    for indices, shape in (
        ([[0, 0], [0, 1], [3, 0]], [9, 2]),
        ([[0, 0], [0, 1], [30, 0]], [9, 2]),
        ([[0], [1], [3]], [9]),
        ([[0, 1, 0], [1, 0, 0], [1, 1, 0]], [2, 2, 1]),
    ):
        sparse_ids = tf.SparseTensor(indices, tf.constant([1, 8, 3], tf.int64), shape)
        given = None if weights is None else tf.SparseTensor(indices, weights, shape)
        stock = tf.nn.embedding_lookup_sparse(TABLE, sparse_ids, given, "mean")
        ours = last_row(version, shards, sparse_ids, given)
        np.testing.assert_allclose(ours, stock, rtol=0 if weights is None else 1e-6)


@every_version
@pytest.mark.parametrize("n_shards", [1, 3])
def test_the_lookup_until_the_last_row_rejects_what_stock_rejects(version, n_shards):
    # The ids of unsorted rows are in different shards: the rows of each are sorted.
    values = tf.constant([1, 8], tf.int64)
    unsorted = tf.SparseTensor([[2, 0], [1, 0]], values, [4, 1])
    negative = tf.SparseTensor([[-1, 0], [1, 0]], values, [4, 1])
    shards = [tf.Variable(shard) for shard in tables.split(TABLE, n_shards)]
    for bad in (unsorted, negative):
        with pytest.raises(RUN_TIME, match=r"indices\w*\[\d, 0\]"):
            last_row(version, shards, bad)
        with pytest.raises(RUN_TIME):
            tf.nn.embedding_lookup_sparse(tf.Variable(TABLE), bad, None, "mean")


def test_public_names():
    assert fusion.fused_safe_embedding_lookup_sparse is fused_safe_embedding_lookup_sparse
    assert fusion.fused_embedding_lookup_sparse is plain_v1
    assert fusion.fused_embedding_lookup_sparse_v2 is plain_v2


@every_function
def test_autograph_does_not_rewrite_lookups(function, monkeypatch):
    """What it rewrites runs in files that it has made."""
    files = []

    def look_up(params, sp_ids, *others, **options):
        files.append(inspect.stack()[1].filename)
        return lookup(params, sp_ids, *others, **options)

    monkeypatch.setattr(functions, "lookup", look_up)
    traced = tf.function(lambda: function(TABLE, tf.sparse.from_dense([[1, 2]])))
    np.testing.assert_allclose(traced()[0], (TABLE[1] + TABLE[2]) / 2)
    assert files == [functions.__file__]
