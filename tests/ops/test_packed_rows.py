"""Tables of packed rows: the bits of the same lookup in the plain table that they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from fusion import ops
from fusion.schema.row_formats import HALF_FORMATS, PACKED_FORMATS, pack_rows
from tests.ops.embedding_columns import (
    FORMS,
    NO_IDS,
    attrs,
    copied,
    draw,
    grouped,
    lookup,
    packed,
    run,
)
from tests.ops.test_stock_sums import MASKED, padded, same
from tests.tiers import examples

#: Around vectors, halves of bytes, words, and the longest tile.
DIMENSIONS = (1, 2, 3, 7, 8, 15, 16, 17, 33, 64, 128, 200)


def table_of(dim: int, rows: int = 50, seed: int = 0) -> Any:
    """Rows of very different sizes, some of one number, one of -0.0."""
    rng = np.random.default_rng([dim, seed])
    table = rng.normal(size=(rows, dim)) * np.exp(3 * rng.normal(size=(rows, 1)))
    table[3], table[4], table[5] = 0.0, -0.0, 0.1
    return table.astype(np.float32)


def column(table: Any, ids: Any, rows: Any = NO_IDS, weights: Any = None, **given: Any) -> Any:
    inputs = {"table": table, "ids": ids, "entry_rows": rows, "dense_shape": np.array([7, 1])}
    inputs["weights"] = np.zeros(0, np.float32) if weights is None else weights
    return {"inputs": inputs, "attrs": attrs(**given, use_sparse_weights=weights is not None)}


def agrees(made: Any, row_format: str) -> None:
    of_packed, of_plain = packed(made, row_format)
    same(run(of_packed), run(of_plain))


@pytest.mark.parametrize("dim", DIMENSIONS)
@pytest.mark.parametrize("row_format", PACKED_FORMATS)
def test_bags_of_each_dimension(row_format: str, dim: int) -> None:
    rng = np.random.default_rng(dim)
    lengths = [0, 1, 2, 9, 10, 30, 0]
    ids, splits = rng.integers(0, 50, sum(lengths)), np.cumsum([0, *lengths])
    weights = rng.normal(size=len(ids)).astype(np.float32)
    for combiner in ("sum", "mean", "sqrtn"):
        for own in (None, weights):
            made = column(table_of(dim), ids, splits, own, form="row_splits", combiner=combiner)
            agrees(made, row_format)


@pytest.mark.parametrize("dim", DIMENSIONS)
@pytest.mark.parametrize("row_format", PACKED_FORMATS)
def test_one_id_a_row_and_a_large_batch(row_format: str, dim: int) -> None:
    """Threads share it, and results go past the caches."""
    rng = np.random.default_rng(dim)
    batch = max(5000, (20 << 20) // (4 * dim) if dim % 16 == 0 else 0)
    ids = rng.integers(-2, 50, (batch, 1))
    made = column(table_of(dim), ids, form="dense", prune=True, combiner="sum")
    agrees(made, row_format)


@pytest.mark.parametrize("row_format", PACKED_FORMATS)
@pytest.mark.parametrize("form", FORMS)
def test_random_columns(form: str, row_format: str) -> None:
    rng = np.random.default_rng([FORMS.index(form), len(row_format)])
    for rows in (1, 2, 7, 30, 200, 0, 3, 3):
        made = draw(rng, form, rows)
        made["attrs"]["max_norm"] = -1.0
        agrees(made, row_format)


@settings(max_examples=examples(30))
@given(
    form=st.sampled_from(FORMS),
    row_format=st.sampled_from(PACKED_FORMATS),
    rows=st.integers(0, 40),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_column(form: str, row_format: str, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    made = draw(rng, form, rows)
    made["attrs"]["max_norm"] = -1.0
    made["inputs"]["table"] = made["inputs"]["table"] * np.float32(np.exp(rng.uniform(-20, 8)))
    agrees(made, row_format)


@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize("row_format", PACKED_FORMATS)
def test_sums_of_an_axis(row_format: str, name: str) -> None:
    _, how = MASKED[name]
    rng = np.random.default_rng(1)
    for dim in (1, 3, 8, 17, 33, 130) if name in ("sum", "mean", "largest") else (1, 10):
        for length, batch in ((1, 7), (2, 2), (15, 3), (16, 70), (131, 2)):
            lengths = rng.integers(0, length + 3, (batch, 1)).astype(np.int32)
            weights = rng.normal(size=(batch, length)).astype(np.float32)
            given: dict[str, Any] = {"form": "dense", "sum_order": "axis", "dim": dim, **how}
            rows = lengths if given["form"] == "lengths" else NO_IDS
            own = weights if "weight" in name else None
            agrees(column(table_of(dim), padded(batch, length), rows, own, **given), row_format)


@pytest.mark.parametrize("dim", [1, 3, 16, 33])
@pytest.mark.parametrize("row_format", PACKED_FORMATS)
def test_sums_in_other_orders(row_format: str, dim: int) -> None:
    rng = np.random.default_rng(dim)
    lengths = np.array([1, 2, 3, 7, 15, 16, 17, 20, 31, 50, 200, 0, 5, 1])
    ids, splits = rng.integers(0, 50, lengths.sum()), np.cumsum([0, *lengths])
    weights = rng.normal(size=len(ids)).astype(np.float32)
    given = {"form": "row_splits", "sum_order": "sequence"}
    for combiner in ("sum", "mean", "sqrtn", "max"):
        for own in (None, weights) if combiner != "max" else (None,):
            made = column(table_of(dim), ids, splits, own, combiner=combiner, **given)
            agrees(made, row_format)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    given = {"form": "row_ids", "sum_order": "dense_segment", "row_count": "last_row"}
    for combiner in ("sum", "mean"):
        agrees(column(table_of(dim), ids, rows, combiner=combiner, **given), row_format)


@pytest.mark.parametrize("row_format", HALF_FORMATS)
def test_what_is_not_finite(row_format: str) -> None:
    table = table_of(17)
    table[7, ::2], table[8, 5], table[9] = np.nan, np.inf, -np.inf
    ids, splits = np.arange(50), np.array([0, 5, 8, 9, 10, 50])
    for combiner in ("sum", "mean"):
        agrees(column(table, ids, splits, form="row_splits", combiner=combiner), row_format)


@pytest.mark.parametrize("row_format", PACKED_FORMATS)
def test_entries_in_any_order(row_format: str) -> None:
    rng = np.random.default_rng(5)
    rows, ids = rng.integers(0, 7, 40), rng.integers(0, 50, 40)
    agrees(column(table_of(9), ids, rows, form="row_ids"), row_format)


@pytest.mark.parametrize("row_format", PACKED_FORMATS)
def test_rows_of_a_default_id(row_format: str) -> None:
    ids, rows = np.array([3, -1, 6]), np.array([1, 2, 4])
    given: Any = {"form": "row_ids", "prune": True, "fill_empty_row": True}
    for default in (-1, 0, 49):
        agrees(column(table_of(5), ids, rows, default_id=default, **given), row_format)


def test_a_group_of_all_formats() -> None:
    rng = np.random.default_rng(0)
    of_packed, of_plain = list[Any](), list[Any]()
    for number, row_format in enumerate((*PACKED_FORMATS, *PACKED_FORMATS)):
        made = draw(rng, FORMS[number % len(FORMS)], 30)
        made["attrs"]["max_norm"] = -1.0
        for columns, one in zip((of_packed, of_plain), packed(made, row_format), strict=True):
            columns.append(one)
    plain, matrix = draw(rng, "dense", 30), copied(rng.normal(size=(30, 3)).astype(np.float32))
    for columns in (of_packed, of_plain):
        columns[2:2] = [plain, matrix]
    same(grouped(of_packed).numpy(), grouped(of_plain))
    given = {"num_others": 2, "output_columns": [3, 1, 6]}
    apart = zip(grouped(of_packed, **given), grouped(of_plain, **given), strict=True)
    for found, expected in apart:
        same(found.numpy(), expected)


def test_no_static_width_is_told_where_tables_are_packed() -> None:
    of_packed, of_plain = packed(draw(np.random.default_rng(0), "dense", 4), "int8")
    of_packed["attrs"]["max_norm"] = of_plain["attrs"]["max_norm"] = -1.0
    dim = of_packed["attrs"]["dim"]
    with tf.Graph().as_default():
        assert lookup(of_plain).shape.as_list() == [None, dim]
        assert grouped([of_plain, of_plain]).shape.as_list() == [None, 2 * dim]
        assert lookup(of_packed).shape.as_list() == [None, None]
        assert grouped([of_plain, of_packed]).shape.as_list() == [None, None]

    @tf.function
    def doubled() -> Any:
        return 2 * grouped([of_packed, of_plain])

    same(doubled().numpy(), 2 * grouped([of_plain, of_plain]))


WRONG: dict[str, dict[str, Any]] = {
    "row_format int8 needs tables of dtype float32": {"dtype": "float64"},
    "row_format int8 needs Tpacked uint8": {"Tpacked": "float32"},
    "row_format int8 does not go with max_norm": {"max_norm": 0.0},
    "row_format int8 needs a dim of at least 1, not 0": {"dim": 0},
    "row_format int8 needs a dim of at least 1, not -1": {"dim": -1},
    "the table has rows of 6 words, but packed ones of dim 12 have 5": {"dim": 12},
    "the table has rows of 6 words, but packed ones of dim 17 have 7": {"dim": 17},
}


@pytest.mark.parametrize("message", WRONG)
def test_errors(message: str) -> None:
    changed = dict(WRONG[message])
    dtype, tpacked = changed.pop("dtype", "float32"), changed.pop("Tpacked", "uint8")
    made, _ = packed(column(table_of(16), np.array([[1]]), form="dense"), "int8")
    shapes = {name: made["inputs"][name].shape for name in ("table", "weights")}
    inputs = made["inputs"] | {name: np.zeros(shape, dtype) for name, shape in shapes.items()}
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ops.fused_embedding_lookup(**inputs, **{**made["attrs"], **changed}, Tpacked=tpacked)


def test_a_message_names_the_column() -> None:
    made, plain = packed(column(table_of(16), np.array([[1]]), form="dense"), "int8")
    made["attrs"]["dim"] = 15
    made["inputs"]["table"] = made["inputs"]["table"][:, :5]
    names = {"column_names": ["one", "other"]}
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"other.*rows of 5 words"):
        grouped([plain, made], **names)


def test_a_matrix_that_is_copied_is_plain() -> None:
    matrix = copied(table_of(16))
    matrix["attrs"]["row_format"] = "int8"
    text = "column 0: row_format int8 does not go with form copy"
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        grouped([matrix])


def test_unknown_formats_are_refused() -> None:
    made = column(table_of(16), np.array([[1]]), form="dense", row_format="int2")
    with pytest.raises(ValueError, match="row_format must be one of"):
        lookup(made)


@pytest.mark.parametrize("is_alone", [True, False])
def test_there_is_no_gradient(is_alone: bool) -> None:
    made, _ = packed(column(table_of(16), np.array([[1]]), form="dense"), "int8")
    table = tf.constant(made["inputs"]["table"])
    made["inputs"]["table"] = table
    with tf.GradientTape() as tape:
        tape.watch(table)
        result = lookup(made) if is_alone else grouped([made, made])
    with pytest.raises(LookupError, match="row_format int8"):
        tape.gradient(result, table)


@pytest.mark.parametrize("row_format", PACKED_FORMATS)
def test_ids_that_are_not_in_the_table(row_format: str) -> None:
    made, _ = packed(column(table_of(16), np.array([[1], [50]]), form="dense"), row_format)
    text = r"indices\[1\] = 50 is not in \[0, 50\), the rows of the table"
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        lookup(made)
    made["inputs"]["table"] = pack_rows(table_of(16)[:0].reshape(0, 16), row_format)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"not in \[0, 0\)"):
        lookup(made)
