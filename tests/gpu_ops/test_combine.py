"""The kernels that combine rows into bags, in the simulator: the CPU's bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from benchmarks.gpu import call as calls
from fusion.cpu_ops import column_layout
from fusion.cpu_ops.column_layout import ColumnAttrs
from fusion.gpu_ops.layout import call as call_of
from fusion.gpu_ops.layout.arrays import array_index
from fusion.gpu_ops.layout.call import CombineCall
from fusion.runtime.cuda.layout import ErrorRecord
from tests.gpu_ops.simulation import Given, combine

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def table(rows: int, dim: int, dtype: str = "float32", seed: int = 0) -> Any:
    values = np.random.default_rng(seed).standard_normal([rows, dim])
    # Aligned as TensorFlow's tensors are.
    space = np.zeros([rows * dim * 8 + 64], np.uint8)
    kind = np.dtype(DTYPES.get(dtype, dtype))
    skip = -space.ctypes.data % 64
    made = space[skip : skip + rows * dim * kind.itemsize].view(kind).reshape(rows, dim)
    made[:] = values.astype(kind)
    return made


def entries(form: str, batch: int, rows: int, seed: int, most: int = 21, **attrs: Any) -> Any:
    """Ids, some of them negative, and where they belong; some rows are empty."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(0, most, batch) * (draw.random(batch) > 0.2)
    owners = np.repeat(np.arange(batch), lengths)
    ids = draw.integers(-1 if attrs.get("prune") else 0, rows, owners.size)
    if form == "indices":
        return ids, np.stack([owners, owners], 1)
    if form == "row_ids":
        return ids.astype(np.int32), owners.astype(np.int32)
    return ids, np.concatenate([[0], np.cumsum(lengths)])


def same(batch: int, *columns: Given) -> None:
    out, record, _ = combine(batch, columns)
    assert record[ErrorRecord.error_code] == 0
    wanted = np.concatenate([column.by_cpu(batch) for column in columns], 1)
    assert out.shape == wanted.shape
    assert out.tobytes() == wanted.tobytes(), f"{out} is not {wanted}"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("form", ["indices", "row_ids", "row_splits"])
def test_bags_of_all_lengths(form: str, dtype: str) -> None:
    for combiner, prune in (("sum", False), ("mean", True), ("sqrtn", True)):
        ids, rows = entries(form, 9, 13, seed=len(combiner), prune=prune)
        attrs = {"combiner": combiner, "prune": prune}
        same(9, Given(form, table(13, 12, dtype), ids, rows, attrs=attrs))


@pytest.mark.parametrize("dim", [1, 2, 3, 5, 7, 8, 31, 64, 130, 520])
def test_rows_of_any_size(dim: int) -> None:
    ids, rows = entries("row_splits", 3, 7, seed=dim)
    for dtype in ("float32", "bfloat16"):
        same(3, Given("row_splits", table(7, dim, dtype), ids, rows))


@pytest.mark.parametrize("shape", [(5, 1), (4, 3), (0, 2), (3, 0)])
def test_dense_ids(shape: tuple[int, int]) -> None:
    draw = np.random.default_rng(1)
    ids = draw.integers(-1, 9, shape)
    for attrs in (
        {"prune": True},
        {"use_ignored_id": True, "ignored_id": -1, "combiner": "sum"},
        {"use_ignored_id": True, "ignored_id": 3, "prune": True},
        {"num_buckets": 7, "bucket_default": 2},
        {"column_stride": 1, "prune": True},
    ):
        same(shape[0], Given("dense", table(20, 8), ids.astype(np.int32), attrs=attrs))


def test_values_with_boundaries() -> None:
    values = np.array([[-9], [0.5], [0.5001], [2], [np.nan], [1e9]])
    for dtype in (np.float32, np.float64):
        ids = values.astype(dtype)
        limits = [-1.0, 0.5, 0.75, 2.0, 3.0]
        same(6, Given("dense", table(6, 4), ids, boundaries=limits))
    integers = np.array([[-5], [0], [1], [2], [7]])
    same(5, Given("dense", table(6, 4), integers, boundaries=[-1.0, 0.5, 0.75, 2.0, 3.0]))


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_weights(combiner: str, dtype: str) -> None:
    some: list[dict[str, Any]] = [
        {},
        {"prune": True, "prune_sparse_weights": True},
        {"fill_empty_row": True, "default_id": 2, "default_weight": 0.5},
        {"divide_no_nan": False},
    ]
    for seed, attrs in enumerate(some):
        ids, rows = entries("indices", 8, 11, seed, prune=bool(attrs.get("prune")))
        weights = np.random.default_rng(seed).integers(-2, 4, ids.size).astype(dtype)
        given = Given("indices", table(11, 6, dtype), ids, rows, weights, attrs=dict(attrs))
        given.attrs["combiner"] = combiner
        same(8, given)


@pytest.mark.parametrize("dim", [4, 13])
def test_long_rows_are_clipped(dim: int) -> None:
    for dtype in ("float16", "float32", "float64"):
        ids, rows = entries("row_splits", 5, 9, seed=3)
        for attrs in ({"max_norm": 1.5}, {"max_norm": 0.0, "combiner": "sum"}):
            same(5, Given("row_splits", table(9, dim, dtype), ids, rows, attrs=attrs))


@pytest.mark.parametrize("default", [-1, 4])
def test_empty_rows(default: int) -> None:
    attrs = {"fill_empty_row": True, "default_id": default, "prune": True}
    ids, rows = entries("indices", 10, 6, seed=5, most=3, prune=True)
    same(10, Given("indices", table(6, 8), ids, rows, attrs=attrs))
    none = np.zeros([0], np.int64)
    same(3, Given("row_ids", table(6, 8), none, none, attrs=attrs))


def test_rows_that_are_not_in_order() -> None:
    draw = np.random.default_rng(2)
    for attrs in ({}, {"prune": True, "combiner": "sum"}, {"max_norm": 0.9}):
        ids = draw.integers(-1 if attrs.get("prune") else 0, 9, 40)
        same(6, Given("row_ids", table(9, 8), ids, draw.integers(0, 6, 40), attrs=attrs))


def test_many_columns_in_one_call() -> None:
    columns = []
    for index, dim in enumerate((4, 1, 16, 6, 8, 3)):
        form = ("row_splits", "indices", "row_ids")[index % 3]
        ids, rows = entries(form, 40, 10, seed=index, most=4)
        columns.append(Given(form, table(10, dim, seed=index), ids, rows))
    columns.append(Given("copy", table(40, 5)))
    columns.append(Given("dense", table(6, 4), np.ones([40, 1], np.float32), boundaries=[0.5]))
    same(40, *columns)
    _, _, call = combine(40, columns)
    assert not call.is_plain
    assert words_of(call, CombineCall.plain, count=8) == (1,) * 7 + (0,)
    assert call.tiles(CombineCall.tiles) > len(columns)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_plain_columns_beside_others(dtype: str) -> None:
    """All ways in which plain columns are computed are in the kernel for any, too."""
    draw = np.random.default_rng(3)
    lengths = {"short": [0, 1, 2, 3, 10], "long": [0, 1, 9, 47, 133]}
    columns = []
    for dim in (40, 8, 4, 2, 3):
        for each in lengths.values():
            splits = np.concatenate([[0], np.cumsum(each)])
            ids = draw.integers(0, 9, splits[-1])
            columns.append(Given("row_splits", table(9, dim, dtype, seed=dim), ids, splits))
        owners = draw.integers(0, 5, 30)
        pruned = {"prune": True, "fill_empty_row": True, "default_id": 4}
        for rows in (np.sort(owners), owners):
            ids = draw.integers(-1, 9, 30)
            columns.append(Given("row_ids", table(9, dim, dtype), ids, rows, attrs=dict(pruned)))
        columns.append(Given("copy", table(5, dim, dtype)))
    columns.append(columns[-1])
    out, record, call = combine(5, columns)
    assert record[ErrorRecord.error_code] == 0
    assert call.is_plain
    shares = np.array(words_of(call, CombineCall.shares, count=len(columns)))
    assert (shares > 1).any()
    assert (shares == 1).any()
    widest = 16 // columns[0].table.itemsize
    lanes = words_of(call, CombineCall.lanes, count=len(columns))
    assert {widest, max(widest // 2, 1), 1} <= set(lanes)
    # What needs the other kernel is a multiple of 16 bytes, so that the others lie as before.
    splits = np.array([0, 2, 2, 3, 5, 6])
    ids, clipped = np.array([1, 1, 5, 3, 0, 2]), {"max_norm": 0.5}
    columns.append(Given("row_splits", table(9, 8, dtype), ids, splits, attrs=clipped))
    beside, record, call = combine(5, columns)
    assert record[ErrorRecord.error_code] == 0
    assert not call.is_plain
    assert words_of(call, CombineCall.lanes, count=len(columns))[:-1] == lanes
    wanted = np.concatenate([column.by_cpu(5) for column in columns], 1)
    assert beside.tobytes() == wanted.tobytes()
    assert out.tobytes() == np.ascontiguousarray(wanted[:, :-8]).tobytes()


def words_of(call: Any, *names: int, count: int = 1) -> tuple[int, ...]:
    """What a call has there of its first columns."""
    base = int(call.words[CombineCall.errors]) - 8 * CombineCall.SIZE
    places = [array_index(call.words, base, name) for name in names]
    return tuple(int(word) for index in places for word in call.words[index : index + count])


@pytest.mark.parametrize(
    ("length", "batch", "dim", "group", "shares"),
    [
        (50, 3, 32, 8, 4),  # long for so few
        (2, 3, 32, 8, 1),
        (50, 1 << 15, 32, 8, 1),
        (128, 1 << 15, 32, 8, 4),  # long for any number
        (128, 3, 2, 1, 32),
        (128, 3, 128, 32, 1),  # a row is a warp's
    ],
)
def test_long_bags_get_a_warp(length: int, batch: int, dim: int, group: int, shares: int) -> None:
    column = calls.Column(column_layout.ROW_SPLITS, 0, 9, dim, ids=0, id_count=length * batch)
    call = calls.prepare("float32", batch, [column], 0, lambda size: 0)
    found = words_of(call, CombineCall.lanes, CombineCall.groups, CombineCall.shares)
    assert found == (min(dim, 4), group, shares)
    assert call.is_plain
    assert call.tiles(CombineCall.tiles) == -(-batch * group * shares // call_of.THREADS)
    other = calls.Column(
        column_layout.ROW_SPLITS,
        0,
        9,
        dim,
        ids=0,
        id_count=length * batch,
        attrs={ColumnAttrs.max_norm: 1.0},
    )
    call = calls.prepare("float32", batch, [other], 0, lambda size: 0)
    assert words_of(call, CombineCall.lanes, CombineCall.groups, CombineCall.shares) == found
    assert not call.is_plain
    assert call.tiles(CombineCall.tiles) == -(-batch * group * shares // call_of.THREADS)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_long_bags(dtype: str) -> None:
    """Bags with a head and no block, with blocks for some shares, and with several rounds."""
    splits = np.array([0, 1, 10, 10, 57, 400])
    ids = np.random.default_rng(8).integers(0, 9, splits[-1])
    for dim, combiner in ((4, "mean"), (6, "sqrtn"), (40, "sum")):
        given = Given("row_splits", table(9, dim, dtype), ids, splits, attrs={"combiner": combiner})
        out, _, call = combine(5, [given])
        assert out.tobytes() == given.by_cpu(5).tobytes()
        assert words_of(call, CombineCall.shares)[0] > 1 or dtype == "float64"


#: Columns of which each element is asked what it is.
OTHERS: dict[str, dict[str, Any]] = {
    "weights": {"weighted": True},
    "pruned": {"weighted": True, "prune": True, "prune_sparse_weights": True},
    "buckets": {"num_buckets": 7, "bucket_default": 2, "prune": True},
    "max_norm": {"max_norm": 1.25, "prune": True},
    "all": {"weighted": True, "max_norm": 1.25, "prune": True, "prune_sparse_weights": True},
}


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [("float32", kind) for kind in OTHERS]
    + [
        (dtype, kind) for dtype in ("float16", "bfloat16", "float64") for kind in ("buckets", "all")
    ],
)
def test_long_bags_of_other_columns(dtype: str, kind: str) -> None:
    """As above; a warp reads four rows for each share, and some of them do not count."""
    splits, draw = np.array([0, 1, 10, 10, 47, 190]), np.random.default_rng(9)
    ids, attrs = draw.integers(-1, 9, splits[-1]), dict(OTHERS[kind])
    weighted = attrs.pop("weighted", False)
    ids[1:10] = -1  # nothing counts
    if not attrs.get("prune"):
        ids = np.maximum(ids, 0)
    weights = draw.integers(-2, 4, ids.size).astype(table(1, 1, dtype).dtype)
    for dim, combiner in ((8, "mean"), (6, "sqrtn"), (40, "sum"))[: 3 if dtype == "float32" else 2]:
        given = Given(
            "row_splits", table(9, dim, dtype), ids, splits, weights if weighted else None,
            attrs=attrs | {"combiner": combiner, "fill_empty_row": True, "default_id": 3},
        )  # fmt: skip
        out, record, call = combine(5, [given])
        assert record[ErrorRecord.error_code] == 0
        assert out.tobytes() == given.by_cpu(5).tobytes()
        assert not call.is_plain
        assert words_of(call, CombineCall.shares)[0] > 1


def test_bags_behind_gathers_share_by_the_entries_of_all_columns() -> None:
    """Each such column has the number of all entries."""
    for columns, length, shares in ((20, 1, 1), (20, 200, 8), (1, 200, 8)):
        column = calls.Column(
            column_layout.LISTED, 0, 9, 16, ids=0, id_count=columns * length * 1024
        )
        call = calls.prepare("float32", 1024, [column] * columns, 0, lambda size: 0)
        assert words_of(call, CombineCall.shares) == (shares,)


def test_entries_outside_the_batch_are_in_no_bag() -> None:
    draw = np.random.default_rng(6)
    ids, rows = draw.integers(0, 9, 40), np.sort(draw.integers(-1, 6, 40))
    for attrs in ({}, {"max_norm": 0.9}):
        out, record, _ = combine(5, [Given("row_ids", table(9, 8), ids, rows, attrs=attrs)])
        assert record[0] == call_of.BAD_ROW
        inside = (rows >= 0) & (rows < 5)
        given = Given("row_ids", table(9, 8), ids[inside], rows[inside], attrs=attrs)
        assert out.tobytes() == given.by_cpu(5).tobytes()


def test_long_bags_that_are_not_in_order() -> None:
    draw = np.random.default_rng(4)
    for attrs in ({"prune": True}, {"prune": True, "max_norm": 0.9}):
        ids = draw.integers(-1, 9, 300)
        given = Given("row_ids", table(9, 8), ids, draw.integers(0, 4, 300), attrs=attrs)
        out, _, call = combine(4, [given])
        assert out.tobytes() == given.by_cpu(4).tobytes()
        assert words_of(call, CombineCall.shares) == (16,)


@pytest.mark.parametrize("index", [0, 20, 99])
def test_long_bags_of_other_columns_with_errors(index: int) -> None:
    ids, rows = np.random.default_rng(3).integers(0, 9, 203), np.array([0, 101, 203])
    ids[index] = 9
    for weights in (None, np.ones(203, np.float32)):
        given = Given("row_splits", table(9, 8), ids, rows, weights, attrs={"max_norm": 2.0})
        out, record, call = combine(2, [given])
        assert words_of(call, CombineCall.shares) == (16,)
        assert record == [call_of.BAD_ID, 0, index, 9]
        assert np.isnan(out[0]).all()
        assert np.isfinite(out[1]).all()


@pytest.mark.parametrize("index", [0, 20, 99])
def test_long_bags_with_elements_that_do_not_count(index: int) -> None:
    """One in the head, or in a block of any share: all threads of the warp learn of it."""
    ids = np.random.default_rng(3).integers(0, 9, 203)
    ids[index] = -1
    rows = np.array([0, 101, 203])
    same(2, Given("row_splits", table(9, 8), ids, rows, attrs={"prune": True}))
    ids[index] = 9
    out, record, _ = combine(2, [Given("row_splits", table(9, 8), ids, rows)])
    assert record == [call_of.BAD_ID, 0, index, 9]
    assert np.isnan(out[0]).all()
    assert np.isfinite(out[1]).all()


def test_a_table_of_more_rows_than_an_int32_counts() -> None:
    """Ids are 64 bits wide: an address is never computed in less."""
    given = Given("row_splits", table(4, 4), np.array([2**31 + 3]), np.array([0, 1]))
    out, record, _ = combine(1, [given])
    assert record == [call_of.BAD_ID, 0, 0, 2**31 + 3]
    assert np.isnan(out).all()


@pytest.mark.parametrize(
    ("change", "record"),
    [
        ({"ids": np.array([0, 1, 5])}, [call_of.BAD_ID, 0, 2, 5]),
        ({"ids": np.array([0, -1, 2])}, [call_of.BAD_ID, 0, 1, -1]),
        ({"rows": np.array([0, 1, 2])}, [call_of.BAD_ROW, 0, 2, 2]),
        ({"rows": np.array([0, -1, 1])}, [call_of.BAD_ROW, 0, 1, -1]),
        (
            {"form": "row_splits", "rows": np.array([0, 2, 4])},
            [call_of.BAD_SPLIT, 0, 2, 4],
        ),
        (
            {"form": "row_splits", "rows": np.array([1, 3, 3])},
            [call_of.BAD_SPLIT, 0, 0, 1],
        ),
        (
            {"rows": np.array([0, 0, 0]), "attrs": {"fill_empty_row": True, "default_id": 5}},
            [call_of.BAD_DEFAULT, 0, -1, 5],
        ),
    ],
)
def test_errors_are_reported(change: dict[str, Any], record: list[int]) -> None:
    given = {"form": "row_ids", "ids": np.array([0, 1, 2]), "rows": np.array([0, 1, 1])}
    out, found, _ = combine(2, [Given(table=table(5, 4), **{**given, **change})])
    assert found == record
    if record[0] != call_of.BAD_ROW:
        assert np.isnan(out).any()
        return
    ids, rows = np.arange(3), change["rows"]
    rest = np.flatnonzero((rows >= 0) & (rows < 2))
    inside = Given("row_ids", table(5, 4), ids[rest], rows[rest])
    assert out.tobytes() == inside.by_cpu(2).tobytes()  # the entry is in no bag


def test_memory_that_is_not_given_is_not_read() -> None:
    """The simulator's check itself."""
    given = Given("row_splits", table(5, 4), np.array([1]), np.array([0, 1]))
    given.arrays = lambda: [given.table, given.ids]  # type: ignore[method-assign]
    with pytest.raises(MemoryError, match="outside the memory allowed"):
        combine(1, [given])
