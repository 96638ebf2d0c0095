"""The lookups against stock TensorFlow, forward and backward."""

from __future__ import annotations

import functools

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import fusion
from fusion.lookup import VERSIONS
from tests import reference, tables
from tests.bounds import Bounds, loss_factors
from tests.memo import computed_once
from tests.reference import MODES, assert_same_bits, assert_within

COMBINERS = ["sum", "mean", "sqrtn"]
HALVES = [np.float16, ml_dtypes.bfloat16]
DTYPES = [*HALVES, np.float32, np.float64]
LENGTHS = [2, 0, 1, 13, 1, 30, 0, 5, 9, 10]


def random_table(rows=25, dim=6, dtype=np.float32):
    return np.random.default_rng(rows).standard_normal((rows, dim)).astype(dtype)


def entries(arrays, combiner, weighted, default_id, batch):
    """(values, rows, weights) that count, fillers included."""
    values, outer = arrays["values"], arrays["dense_shape"][:-1]
    rows = np.zeros(len(values), np.int64)
    for axis, size in enumerate(outer):
        rows = rows * size + arrays["indices"][:, axis]
    keep = values >= 0
    if weighted and combiner != "sum":
        keep &= arrays["weights"] > 0
    values, rows, weights = values[keep], rows[keep], arrays["weights"][keep]
    if default_id is not None:
        empty = np.setdiff1d(np.arange(batch), rows)
        values = np.concatenate([values, np.full(len(empty), default_id)])
        rows, weights = (
            np.concatenate([rows, empty]),
            np.concatenate([weights, np.ones(len(empty))]),
        )
    return values.astype(np.int64), rows, weights, keep


def fused(version):
    return functools.partial(fusion.fused_safe_embedding_lookup_sparse, fusion_version=version)


def compare(
    version,
    mode,
    make,
    table,
    arrays,
    weighted=False,
    strategy="div",
    rank=2,
    stock_make=None,
    **kw,
):
    """Compares with stock; `kw` are arguments of both. Gives our outcome."""

    def lookup(function, takes_tensor):
        def call(shards, ids, weights):
            if weights is not None and not takes_tensor:
                weights = tf.SparseTensor(ids.indices, weights, ids.dense_shape)
            return function(shards, ids, weights, partition_strategy=strategy, **kw)

        return call

    ours = lookup(fused(version), takes_tensor=rank is None)
    stock = lookup(tf.compat.v1.nn.safe_embedding_lookup_sparse, takes_tensor=False)
    actual = reference.outcome(mode, ours, make, arrays, weighted, rank)
    inputs = mode, stock, stock_make or make, arrays, weighted, rank
    expected = computed_once(reference.outcome, *inputs)
    actual_table = tables.joined(actual.tables, strategy)
    expected_table = tables.joined(expected.tables, strategy)
    for ids in actual.ids:
        assert len(set(ids.tolist())) == len(ids)
    is_half = table.dtype in HALVES
    if not weighted and is_half:  # stock clips them also for us
        assert_same_bits(actual.output, expected.output)
    if not weighted and kw.get("max_norm") is None:
        assert_same_bits(actual.output, expected.output)
        # The v1 ops round half types once more, between an entry's gradient and the sum of them.
        if not (is_half and version == "v1"):
            assert_same_bits(actual_table, expected_table)
            return actual
    combiner = kw.get("combiner", "mean")
    dim = table.shape[1]
    batch = int(np.prod(arrays["dense_shape"][:-1]))
    values, rows, weights, keep = entries(arrays, combiner, weighted, kw.get("default_id"), batch)
    bounds = Bounds(
        table, values, rows, weights if weighted else None, combiner, kw.get("max_norm"), batch
    )
    top_grad = loss_factors(actual.output.shape).reshape(batch, dim)
    assert_within(
        actual.output.reshape(batch, dim), expected.output.reshape(batch, dim), bounds.output()
    )
    assert actual.output.shape == expected.output.shape
    assert_within(actual_table, expected_table, bounds.table_gradient(top_grad))
    bound = np.zeros(len(keep))
    bound[keep] = bounds.weights_gradient(top_grad)[: keep.sum()]
    assert_within(actual.weights, expected.weights, bound if weighted else 0)
    return actual


def batch(dtype=np.int64, seed=0, rows=25, lengths=LENGTHS, table_dtype=np.float32, shuffled=False):
    rng = np.random.default_rng(seed)
    arrays = reference.sparse(rng, lengths, rows, dtype, negative=0.1, shuffled=shuffled)
    return arrays | {"weights": arrays["weights"].astype(table_dtype)}


KINDS = [
    *((mode, kind) for mode in MODES for kind in tables.EVERYWHERE),
    *((mode, kind) for mode in ("eager", "function") for kind in tables.IN_EAGER),
    *(("session", kind) for kind in tables.IN_SESSION),
]
MAKERS = {**tables.EVERYWHERE, **tables.IN_EAGER, **tables.IN_SESSION}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("mode", "kind"), KINDS)
def test_every_kind_of_table(version, mode, kind):
    table = random_table()
    for strategy in ("div", "mod") if kind not in ("sharded", "partitioned") else ("div",):
        make = lambda strategy=strategy: MAKERS[kind](table, strategy)  # noqa: E731
        compare(version, mode, make, table, batch(), strategy=strategy)
    compare(version, mode, make, table, batch(), weighted=True, strategy=strategy, max_norm=1.5)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("kind", "mode"), {kind: mode for mode, kind in KINDS[::-1]}.items())
def test_every_kind_of_table_of_halves(version, kind, mode):
    dtype = HALVES[len(kind) % 2]
    table, arrays = random_table(dtype=dtype), batch(table_dtype=dtype)
    make = lambda: MAKERS[kind](table, "div")  # noqa: E731
    compare(version, mode, make, table, arrays)
    compare(version, mode, make, table, arrays, weighted=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("mode", "combiner", "dtype"),
    [
        *(("eager", combiner, dtype) for combiner in COMBINERS for dtype in (np.int32, np.int64)),
        ("function", "sqrtn", np.int64),
        ("session", "mean", np.int32),
    ],
)
@pytest.mark.parametrize("table_dtype", DTYPES)
def test_combiners_and_dtypes(version, mode, combiner, dtype, table_dtype):
    table = random_table(dtype=table_dtype)
    for weighted in (False, True):
        compare(
            version,
            mode,
            lambda: tf.Variable(table),
            table,
            batch(dtype, table_dtype=table_dtype),
            weighted,
            combiner=combiner,
        )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("dim", [1, 3, 16, 64, 300])
@pytest.mark.parametrize("table_dtype", [*HALVES, np.float32])
def test_unweighted_lookups_have_stock_bits(version, combiner, dim, table_dtype):
    table = random_table(60, dim, table_dtype)
    arrays = batch(rows=60, lengths=[*range(41), 128, 300, 401])
    compare(version, "function", lambda: tf.Variable(table), table, arrays, combiner=combiner)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("max_norm", [0.0, -3.0, 0.7, 100.0])
@pytest.mark.parametrize("table_dtype", DTYPES)
def test_max_norm(version, combiner, weighted, max_norm, table_dtype):
    # 0.7 is no float32: an attr of the op cannot hold it for a float64 table.
    table = random_table(dtype=table_dtype)
    compare(
        version,
        "eager",
        lambda: tf.Variable(table),
        table,
        batch(table_dtype=table_dtype),
        weighted,
        combiner=combiner,
        max_norm=max_norm,
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("max_norm", [0.7, 0.5])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("table_dtype", [*HALVES, np.float64])
def test_max_norm_of_shards(version, mode, max_norm, table_dtype):
    table = random_table(dtype=table_dtype)
    make = lambda: [tf.Variable(t) for t in tables.split(table, 3)]  # noqa: E731
    compare(version, mode, make, table, batch(table_dtype=table_dtype), max_norm=max_norm)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("weighted", [False, True])
def test_max_norm_where_squares_of_halves_overflow(version, combiner, weighted):
    # x * x > 65504: the norm is infinite and the row vanishes, in stock TensorFlow and here.
    table = random_table(dtype=np.float16)
    table[::3] *= 1000
    arrays = batch(table_dtype=np.float16)
    options = {"combiner": combiner, "max_norm": 2.0}
    ours = run_forward(fused(version), table, arrays, weighted, options)
    stock = run_forward(tf.nn.safe_embedding_lookup_sparse, table, arrays, weighted, options)
    with np.errstate(over="ignore"):
        assert np.isinf(table * table).any()
    assert_close(ours, stock)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("mode", "default_id", "table_dtype"),
    [
        ("eager", 0, np.float32),
        ("function", 7, np.float32),
        ("session", 24, np.float32),
        ("eager", 0, np.float16),
        ("eager", 7, ml_dtypes.bfloat16),
    ],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_default_id(version, mode, default_id, table_dtype, weighted):
    table, arrays = random_table(dtype=table_dtype), batch(table_dtype=table_dtype)
    make = lambda: [tf.Variable(t) for t in tables.split(table, 2)]  # noqa: E731
    compare(version, mode, make, table, arrays, weighted, default_id=default_id)
    compare(version, mode, make, table, arrays, weighted, default_id=default_id, max_norm=0.5)


def of_rank(arrays, rank):
    """The same entries as ids of rank 1 (of the first row alone) or 3."""
    indices = arrays["indices"]
    if rank == 1:
        return arrays | {
            "indices": np.arange(len(indices))[:, None],
            "dense_shape": np.array([len(indices)]),
        }
    rows = indices[:, 0]
    return arrays | {
        "indices": np.stack([rows // 5, rows % 5, indices[:, 1]], 1),
        "dense_shape": np.array([2, 5, arrays["dense_shape"][1]]),
    }


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_rank_of_ids(version, mode, rank, known, weighted):
    table, arrays = random_table(), of_rank(batch(), rank)
    make = lambda: tf.Variable(table)  # noqa: E731
    actual = compare(version, mode, make, table, arrays, weighted, rank=rank if known else None)
    assert actual.output.shape == (*arrays["dense_shape"][:-1], 6)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mode", ["function", "session"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_unknown_rank_of_a_matrix(version, mode, dtype):
    table = random_table()
    compare(version, mode, lambda: tf.Variable(table), table, batch(dtype), rank=None)


@given(
    version=st.sampled_from(VERSIONS),
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=10),
    dim=st.integers(1, 12),
    n_shards=st.integers(1, 4),
    strategy=st.sampled_from(["div", "mod"]),
    combiner=st.sampled_from(COMBINERS),
    weighted=st.booleans(),
    max_norm=st.sampled_from([None, None, 0.0, 0.5, 2.0]),
    default_id=st.sampled_from([None, 0, 3]),
    table_dtype=st.sampled_from([np.float32, np.float32, *HALVES]),
    shuffled=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_any_lookup(
    version,
    lengths,
    dim,
    n_shards,
    strategy,
    combiner,
    weighted,
    max_norm,
    default_id,
    table_dtype,
    shuffled,
    seed,
):
    table = random_table(8, dim, table_dtype)

    def make():
        shards = [tf.Variable(shard) for shard in tables.split(table, n_shards, strategy)]
        return shards if n_shards > 1 else shards[0]

    arrays = batch(seed=seed, rows=8, lengths=lengths, table_dtype=table_dtype, shuffled=shuffled)
    options = {"combiner": combiner, "max_norm": max_norm, "default_id": default_id}
    compare(version, "eager", make, table, arrays, weighted, strategy, **options)


EDGES = {
    "no ids": [0, 0, 0],
    "no rows": [],
    "one row": [3],
    "a row of 100000 ids": [1, 100_000, 0],
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", EDGES)
def test_edge_batches(version, mode, name):
    table = random_table(rows=1000, dim=2)
    arrays = batch(rows=1000, lengths=EDGES[name])
    actual = compare(version, mode, lambda: tf.Variable(table), table, arrays)
    assert actual.output.shape == (len(EDGES[name]), 2)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("combiner", COMBINERS)
def test_all_ids_negative(version, combiner):
    table, arrays = random_table(), batch()
    arrays["values"][:] = -5
    actual = compare(version, "eager", lambda: tf.Variable(table), table, arrays, combiner=combiner)
    assert not actual.output.any()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("dim", [1, 2000])
def test_narrow_and_wide_tables(version, dim):
    table = random_table(dim=dim)
    compare(version, "eager", lambda: tf.Variable(table), table, batch())
    compare(version, "eager", lambda: tf.Variable(table), table, batch(), weighted=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("default_id", [None, 0])
@pytest.mark.parametrize("table_dtype", [*HALVES, np.float32])
def test_nan_and_inf_in_the_table(version, weighted, combiner, default_id, table_dtype):
    table = random_table(4, 2, table_dtype)
    table[0], table[1, 0], table[2, 1] = np.nan, np.inf, -np.inf
    arrays = batch(rows=4, lengths=[0, 1, 1, 1, 2, 3, 1], table_dtype=table_dtype)
    options = {"combiner": combiner, "default_id": default_id}
    ours = run_forward(fused(version), table, arrays, weighted, options)
    stock = run_forward(tf.nn.safe_embedding_lookup_sparse, table, arrays, weighted, options)
    assert_close(ours, stock)


def assert_close(ours, stock):
    rtol = 8 * max(float(ml_dtypes.finfo(stock.dtype).eps), 1e-7)
    assert ours.dtype == stock.dtype
    ours, stock = ours.astype(np.float64), stock.astype(np.float64)
    np.testing.assert_allclose(ours, stock, rtol, rtol / 10)


def run_forward(lookup, table, arrays, weighted, options):
    ids = tf.SparseTensor(arrays["indices"], arrays["values"], arrays["dense_shape"])
    weights = tf.SparseTensor(ids.indices, arrays["weights"], ids.dense_shape)
    return lookup(tf.Variable(table), ids, weights if weighted else None, **options).numpy()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("dtype", [*HALVES, np.float32])
def test_odd_weights(version, combiner, dtype):
    table, arrays = random_table(dtype=dtype), batch()
    odd = [0.0, -1.0, np.nan, -0.0, 2.0, float(ml_dtypes.finfo(dtype).smallest_subnormal)]
    arrays["weights"] = np.resize(np.array(odd, dtype), len(arrays["values"]))
    options = {"combiner": combiner}
    ours = run_forward(fused(version), table, arrays, True, options)
    stock = run_forward(tf.nn.safe_embedding_lookup_sparse, table, arrays, True, options)
    assert_close(ours, stock)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_shards", [1, 3])
@pytest.mark.parametrize("default_id", [None, 3])
def test_rows_and_columns_in_any_order(version, combiner, weighted, n_shards, default_id):
    # Id 3 is in several rows, before and behind those that it fills, and columns repeat.
    table, arrays = random_table(), batch(lengths=[*LENGTHS, 0, 40], shuffled=True)
    arrays["indices"][:, 1] = np.random.default_rng(4).integers(0, 5, len(arrays["values"]))
    assert (arrays["values"] == 3).sum() > 2
    make = lambda: [tf.Variable(t) for t in tables.split(table, n_shards)]  # noqa: E731
    options = {"combiner": combiner, "default_id": default_id}
    compare(version, "eager", make, table, arrays, weighted, **options)


@pytest.mark.parametrize("version", VERSIONS)
def test_columns_may_exceed_the_dense_shape(version):
    table, arrays = random_table(), batch()
    arrays["indices"][:, 1] += 1000
    compare(version, "eager", lambda: tf.Variable(table), table, arrays)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("n_shards", [7, 30])
@pytest.mark.parametrize("strategy", ["div", "mod"])
def test_more_shards_than_rows(version, n_shards, strategy):
    # Stock TensorFlow raises for div: it is compared with the whole table.
    table = random_table(rows=5)
    ids = tf.SparseTensor([[0, 0], [0, 1], [2, 0]], tf.constant([4, 0, 3], tf.int64), [4, 2])
    shards = [tf.Variable(shard) for shard in tables.split(table, n_shards, strategy)]
    ours = fused(version)(shards, ids, partition_strategy=strategy)
    assert_same_bits(ours.numpy(), tf.nn.safe_embedding_lookup_sparse(table, ids).numpy())


@pytest.mark.parametrize("version", VERSIONS)
def test_div_follows_the_rows_of_uneven_shards(version):
    table = random_table(rows=10)
    shards = [tf.Variable(table[a:b]) for a, b in ((0, 1), (1, 1), (1, 8), (8, 10))]
    arrays = batch(rows=10)
    compare(
        version, "eager", lambda: shards, table, arrays, stock_make=lambda: [tf.Variable(table)]
    )
