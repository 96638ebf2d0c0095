"""What the ops for whole columns call a column in their errors, and what else these tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from fusion.runtime.native import objects
from tests.ops.embedding_columns import NO_IDS, attrs, copied, grouped
from tests.ops.training_columns import pre

NAME = "input_layer/C17_embedding of table C17/weights"
TABLE = np.ones([5, 4], np.float32)


def column(form: str, ids: Any, entry_rows: Any, dense_shape: Any, **given: Any) -> dict[str, Any]:
    inputs = {
        "table": TABLE,
        "ids": np.array(ids),
        "entry_rows": np.array(entry_rows),
        "dense_shape": np.array(dense_shape),
        "weights": np.zeros(0, np.float32),
    }
    return {"inputs": inputs, "attrs": attrs(form=form, **given)}


def by_rows(ids: Any, rows: Any, **given: Any) -> dict[str, Any]:
    return column("row_ids", ids, rows, 3, **given)


GOOD = column("dense", [[0], [1], [2]], NO_IDS, NO_IDS)
OUTSIDE = [
    (column("dense", [[0, 1], [2, 7], [0, 0]], NO_IDS, NO_IDS), 3, 1),
    (column("row_splits", [0, 1, 2, 7], [0, 1, 1, 4], NO_IDS), 3, 2),
    (column("row_ids", [0, 7, 1], [2, 1, 0], 3), 1, 1),
    (column("indices", [0, 1, 7], [[0, 0], [2, 9], [2, 1]], [3, 2]), 2, 2),
    # The ids before are ignored, dropped, and of the first row.
    (column("dense", [[-1], [-5], [7]], NO_IDS, NO_IDS, use_ignored_id=True, prune=True), 2, 2),
]
WRONG = [
    (by_rows([1, 2], [0, 7]), r"row 7 of entry 1 is not in \[0, 3\), .*; its id is 2"),
    (by_rows([1, 2], [0]), "there are 1 entry_rows for 2 ids"),
    (by_rows([1, 2], [0, 1], use_sparse_weights=True), "there are 0 weights for 2 ids"),
    (column("row_splits", [1, 2, 3], [0, 2, 1, 3], NO_IDS), "row split 2 is 1, after 2"),
    (
        column("indices", [1], [[0, 0]], [-1, 1]),
        "must not be negative, but dense_shape\\[0\\] = -1",
    ),
]


@pytest.mark.parametrize(("wrong", "element", "row"), OUTSIDE)
def test_an_id_outside_is_told_with_its_column_and_row(wrong, element, row):
    text = rf"indices\[{element}\] = 7 is not in \[0, 5\), the rows of the table, in row {row} of"
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"column 0 \({NAME}\): {text}"):
        ops.fused_embedding_lookup(**wrong["inputs"], **wrong["attrs"], column_name=NAME)
    group = [copied(np.ones([3, 1], np.float32)), GOOD, wrong]
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"column 2 \({NAME}\): {text}"):
        grouped(group, column_names=["", "a", NAME])
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"column 2: {text}"):
        grouped(group)


@pytest.mark.parametrize(("wrong", "text"), WRONG)
def test_other_errors_name_the_column(wrong, text):
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"column 1 \({NAME}\): .*{text}"):
        grouped([GOOD, wrong], column_names=["a", NAME])
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"column 1 \({NAME}\): .*{text}"):
        pre([GOOD, wrong], column_names=["a", NAME])
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"column 1: .*{text}"):
        pre([GOOD, wrong])


def test_columns_of_other_rows_are_named():
    few = column("dense", [[0]], NO_IDS, NO_IDS)
    text = r"column 1 \(few\) has 1 rows, but others have 3"
    for op in (grouped, pre):
        with pytest.raises(tf.errors.InvalidArgumentError, match=text):
            op([GOOD, few], column_names=["many", "few"])


def test_a_negative_id_before_gathers_is_told_with_its_row():
    wrong = column("dense", [[0, 1], [2, -3], [0, 0]], NO_IDS, NO_IDS)
    text = r"column 0 \(a\): indices\[3\] = -3 is negative, in row 1 of the batch"
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        pre([wrong], column_names=["a"])


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"]])
def test_there_is_a_name_for_each_column(names):
    for op in (grouped, pre):
        with pytest.raises(tf.errors.InvalidArgumentError, match="items for 2 columns"):
            op([GOOD, GOOD], column_names=names)


def test_names_change_no_number_and_need_no_code():
    expected = grouped([GOOD, GOOD]).numpy()
    known = set(objects._addresses)
    found = grouped([GOOD, GOOD], column_names=["never seen", "\x1b[31m"]).numpy()
    assert set(objects._addresses) == known
    assert found.tobytes() == expected.tobytes()


def test_what_a_terminal_would_obey_is_escaped():
    wrong = OUTSIDE[0][0]
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        grouped([wrong], column_names=["a\x1b[31m\rb\n\u202e%s%n"])
    assert r"column 0 (a\x1b[31m\rb\n\u202e%s%n): indices[3] = 7" in caught.value.message


def test_a_long_name_leaves_room_for_the_rest():
    wrong = OUTSIDE[0][0]
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        grouped([wrong], column_names=["first" + "é" * 4000 + "last"])
    assert "column 0 (first" in caught.value.message
    assert "last): indices[3] = 7 is not in [0, 5)" in caught.value.message
    assert "in row 1 of the batch" in caught.value.message
