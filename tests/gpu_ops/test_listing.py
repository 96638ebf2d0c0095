"""The kernels before gathers, in the simulator: GroupedEmbeddingPreLookUp, bit for bit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from fusion.gpu_ops.layout import call as call_of
from tests.gpu_ops.listing import Given, by_cpu, by_steps

# Of hashes, and of numbers that are narrowed, as is meant.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered")

FORMS = ("indices", "row_ids", "row_splits", "dense")
FILLS: list[dict[str, Any]] = [
    {},
    {"fill_empty_row": True, "default_id": 3},
    {"fill_empty_row": True, "default_id": -1},
    {"fill_empty_row": True, "default_id": 1000},
]


def same(batch: int, *columns: Given, dtype: Any = np.float32, is_open: bool = False) -> None:
    found, errors = by_steps(batch, columns, dtype, is_open)
    assert not any(errors)
    wanted = by_cpu(batch, columns, dtype)
    for mine, theirs in zip(found[0], wanted.unique_keys, strict=True):
        np.testing.assert_array_equal(mine, theirs.numpy(), strict=True)
    np.testing.assert_array_equal(found[1], wanted.unique_idxs.numpy(), strict=True)
    np.testing.assert_array_equal(found[2], wanted.row_splits.numpy(), strict=True)
    assert found[3].dtype == wanted.entry_weights.numpy().dtype
    assert found[3].tobytes() == wanted.entry_weights.numpy().tobytes()


def column(
    form: str, batch: int, seed: int, weighted: Any = None, is_sorted: bool = True, **attrs: Any
) -> Given:
    """A column of random ids, some of them -1 if they are pruned."""
    draw = np.random.default_rng(seed)
    least = -1 if attrs.get("prune") else 0
    if form == "dense":
        ids = draw.integers(least, 9, [batch, 3])
        ids[draw.random(batch) < 0.3] = least
        return Given(form, ids.astype([np.int32, np.int64][seed % 2]), attrs=attrs)
    lengths = draw.integers(0, 4, batch) * (draw.random(batch) > 0.3)
    owners = np.repeat(np.arange(batch), lengths)
    ids = draw.integers(least, 9, owners.size)
    if not is_sorted:
        draw.shuffle(owners)
    weights = None if weighted is None else draw.integers(-1, 4, ids.size).astype(weighted)
    rows: Any = owners.astype(np.int32)
    if form == "indices":
        rows = np.stack([owners, owners], 1)
    elif form == "row_splits":
        rows = np.concatenate([[0], np.cumsum(lengths)])
    return Given(form, ids, rows, weights, attrs=attrs)


@pytest.mark.parametrize("fills", FILLS)
@pytest.mark.parametrize("prune", [False, True])
def test_all_forms(prune: bool, fills: dict[str, Any]) -> None:
    columns = [column(form, 7, seed, prune=prune, **fills) for seed, form in enumerate(FORMS)]
    same(7, *columns)


@pytest.mark.parametrize("batch", [0, 1])
def test_few_rows(batch: int) -> None:
    for fills in FILLS[1:3]:
        same(batch, *(column(form, batch, 1, prune=True, **fills) for form in FORMS))


@pytest.mark.parametrize("fills", FILLS[1:3])
def test_rows_in_any_order(fills: dict[str, Any]) -> None:
    columns = [
        column("indices", 8, 1, is_sorted=False, prune=True, **fills),
        column("row_ids", 8, 2, is_sorted=False, weighted=np.float32, **fills),
        column("row_ids", 8, 3, **fills),
        column("row_splits", 8, 4, **fills),
    ]
    same(8, *columns)


@pytest.mark.parametrize("fills", FILLS[2:])
def test_keys_in_order(fills: dict[str, Any]) -> None:
    columns = [
        column("indices", 6, 1, sort_key=True, **fills),
        column("dense", 6, 2, prune=True, **fills),
        column("row_splits", 6, 3, sort_key=True, prune=True, **fills),
    ]
    columns[2].keys = "int32"
    same(6, *columns)


def test_keys_of_any_size_in_order() -> None:
    columns = [Given("dense", np.array([[2**33, 1, 2**31, 300, 2**31]]), attrs={"sort_key": True})]
    same(1, *columns)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_weights(dtype: Any) -> None:
    attrs: dict[str, Any] = {"fill_empty_row": True, "default_weight": float(np.float32(0.3))}
    columns = [
        column("indices", 6, 5, weighted=dtype, prune_sparse_weights=True, default_id=2, **attrs),
        column("row_splits", 6, 6, weighted=dtype, **attrs),
        column("row_ids", 6, 7, default_id=2, fill_empty_row=True),
        column("row_ids", 6, 8, weighted=dtype),
    ]
    special = np.array([np.nan, np.inf, 65504.0], dtype)
    columns[3].weights[:3] = special
    same(6, *columns, dtype=dtype)


def test_what_becomes_of_dense_ids() -> None:
    ids = np.random.default_rng(1).integers(-1, 9, (6, 3))
    some: list[dict[str, Any]] = [
        {"use_ignored_id": True, "ignored_id": -1, "fill_empty_row": True, "default_id": 0},
        {"use_ignored_id": True, "ignored_id": 4, "prune": True},
        {"column_stride": 100, "prune": True},
        {"num_buckets": 5, "bucket_default": 2},
        {"column_stride": 2, "num_buckets": 7, "use_ignored_id": True, "ignored_id": 3},
    ]
    for dtype in (np.int32, np.int64):
        same(6, *(Given("dense", ids.astype(dtype), attrs=attrs) for attrs in some))


def test_values_with_boundaries() -> None:
    values = np.array([[-9, 0.5], [0.5001, 2], [np.nan, 1e9], [7, 7]])
    limits = [-1.0, 0.5, 0.75, 2.0, 3.0]
    attrs = {"use_ignored_id": True, "ignored_id": 7, "fill_empty_row": True, "default_id": 9}
    same(
        4,
        Given("dense", values.astype(np.float32), boundaries=limits, attrs=attrs),
        Given("dense", values, boundaries=limits),
        Given("dense", np.array([[-5], [0], [2], [9]]), boundaries=limits),
    )


def test_the_same_ids_in_many_columns() -> None:
    ids = np.array([5, 2**40 + 5, 5, 0, 2**62, 5])
    rows = np.arange(6)
    same(6, *(Given("row_ids", ids, rows) for _ in range(5)))


def test_no_elements() -> None:
    none = np.zeros([0], np.int64)
    filled = {"fill_empty_row": True, "default_id": 4}
    same(3, Given("row_ids", none, none), Given("row_ids", none, none, attrs=filled))
    same(2, Given("dense", np.zeros([2, 0], np.int32)), Given("row_splits", none, np.zeros(3, int)))


def test_rows_up_to_the_last() -> None:
    ids, rows = np.array([4, 2, 4]), np.array([0, 2, 2])
    attrs = {"fill_empty_row": True, "default_id": 2}
    same(3, Given("row_ids", ids, rows, last_row=True, attrs=attrs), column("dense", 3, 1))


def test_rows_that_the_kernels_count() -> None:
    rows = np.sort(np.random.default_rng(1).integers(0, 70, 150))
    rows[-1], pairs = 69, np.array([[0, 0], [69, 0]])
    ids = np.random.default_rng(2).integers(-1, 9, 150)
    some = Given("row_ids", ids, rows.astype(np.int32), last_row=True, attrs={"prune": True})
    same(70, some, Given("indices", np.array([5, 6]), pairs, last_row=True), is_open=True)


def test_more_than_a_tile() -> None:
    columns = [column("row_splits", 80, 1), column("indices", 80, 2, **FILLS[2])]
    same(80, *columns, column("row_ids", 80, 3, **FILLS[1]))


@pytest.mark.parametrize(
    ("change", "record"),
    [
        ({"rows": np.array([0, 1, 2])}, [call_of.BAD_ROW, 1, 2, 2]),
        ({"rows": np.array([0, -1, 1])}, [call_of.BAD_ROW, 1, 1, -1]),
        ({"rows": np.array([1, 0, 1]), "last_row": True}, [call_of.UNSORTED_ROW, 1, 1, 0]),
        ({"rows": np.array([-1, 0, 1]), "last_row": True}, [call_of.BAD_ROW, 1, 0, -1]),
        (
            {
                "ids": np.array([-1, 1, 2]),
                "rows": np.array([-1, 0, 1]),
                "last_row": True,
                "attrs": {"prune": True},  # though it does not count
            },
            [call_of.BAD_ROW, 1, 0, -1],
        ),
        ({"ids": np.array([0, -7, 2])}, [call_of.BAD_ID, 1, 1, -7]),
        ({"ids": np.array([0, 1, 2**63 - 1])}, [call_of.BAD_ID, 1, 2, 2**63 - 1]),
        ({"ids": np.array([0, 2**31, 1]), "keys": "int32"}, [call_of.BAD_KEY, 1, 1, 2**31]),
        (
            {
                "rows": np.array([0, 0, 0]),
                "keys": "int32",
                "attrs": {"fill_empty_row": True, "default_id": 2**40},
            },
            [call_of.BAD_KEY, 1, -1, 2**40],
        ),
        ({"form": "row_splits", "rows": np.array([1, 2, 3])}, [call_of.BAD_SPLIT, 1, 0, 1]),
        ({"form": "row_splits", "rows": np.array([0, 4, 3])}, None),
        ({"form": "row_splits", "rows": np.array([0, -1, 3])}, [call_of.BAD_SPLIT, 1, 1, -1]),
        ({"form": "row_splits", "rows": np.array([0, 2, 2])}, [call_of.BAD_SPLIT, 1, 2, 2]),
    ],
)
def test_errors_are_reported(change: dict[str, Any], record: list[int] | None) -> None:
    given = {"form": "row_ids", "ids": np.array([0, 1, 2]), "rows": np.array([0, 1, 1])}
    columns = [column("row_ids", 2, 1), Given(**{**given, **change})]
    _, found = by_steps(2, columns, np.float32)
    if record is None:  # one of two
        assert found[:2] == [call_of.BAD_SPLIT, 1]
    else:
        assert found == record
    with pytest.raises(tf.errors.InvalidArgumentError, match="column 1"):
        by_cpu(2, columns, np.float32)


def test_what_does_not_count_is_not_looked_at() -> None:
    """Neither its row nor its id, as on the CPU."""
    ids, rows = np.array([3, -5, 3, 1]), np.array([1, 99, 0, 0])
    same(2, Given("row_ids", ids, rows, attrs={"prune": True}))
