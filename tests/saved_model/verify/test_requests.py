"""Batches of requests: rows of all kinds of inputs, repeated and once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from fusion.saved_model.inputs.signature import Signature, TensorSpec
from fusion.saved_model.model.source import SourceModel
from fusion.saved_model.verify.requests import (
    RequestCheck,
    first_rows,
    record_of,
    recorded_checks,
    request_batch,
    unequal_counts,
)

SPECS = (
    TensorSpec("bag/dense_shape", "d:0", tf.int64.as_datatype_enum, (2,)),
    TensorSpec("bag/indices", "i:0", tf.int64.as_datatype_enum, (-1, 2)),
    TensorSpec("bag/values", "v:0", tf.int64.as_datatype_enum, (-1,)),
    TensorSpec("item", "item:0", tf.int64.as_datatype_enum, (-1,)),
    TensorSpec("list/0", "l:0", tf.int64.as_datatype_enum, (-1,)),
    TensorSpec("list/1", "s:0", tf.int64.as_datatype_enum, (-1,)),
    TensorSpec("rate", "rate:0", tf.float32.as_datatype_enum, ()),
)
SIGNATURE = Signature(
    ("serve",),
    "rank",
    SPECS,
    (),
    (("bag/indices", "bag/values", "bag/dense_shape"),),
    (("list/0", "list/1"),),
)
#: Bags of two, no and one value, and lists of one, two and no value.
FEEDS = {
    "bag/indices": np.array([[0, 0], [0, 1], [2, 1]]),
    "bag/values": np.array([5, 6, 7]),
    "bag/dense_shape": np.array([3, 2]),
    "item": np.array([1, 2, 3]),
    "list/0": np.array([7, 8, 9]),
    "list/1": np.array([0, 1, 3, 3]),
    "rate": np.array(0.5, np.float32),
}
SEVERAL = RequestCheck("rank_requests", "rank", ("bag", "list"), "counts")


def plain(feeds: dict[str, np.ndarray]) -> dict[str, object]:
    return {name: array.tolist() for name, array in feeds.items()}


def test_rows_are_repeated_and_once() -> None:
    repeated, once = request_batch(SEVERAL, SIGNATURE, FEEDS, np.array([2, 1]))
    assert plain(repeated) == {
        "bag/indices": [[0, 0], [0, 1], [1, 0], [1, 1]],
        "bag/values": [5, 6, 5, 6],
        "bag/dense_shape": [3, 2],
        "item": [1, 2, 3],
        "list/0": [7, 7, 8, 9],
        "list/1": [0, 1, 2, 4],
        "rate": 0.5,
    }
    assert plain(once) == {
        "bag/indices": [[0, 0], [0, 1]],
        "bag/values": [5, 6],
        "bag/dense_shape": [2, 2],
        "item": [1, 2, 3],
        "list/0": [7, 8, 9],
        "list/1": [0, 1, 3],
        "rate": 0.5,
        "counts": [2, 1],
    }


@pytest.mark.parametrize("count", [0, 1, 3])
def test_first_rows(count: int) -> None:
    rows = first_rows(SIGNATURE, FEEDS, count)
    assert rows.keys() == FEEDS.keys()
    assert rows["bag/dense_shape"].tolist() == [count, 2]
    assert rows["item"].tolist() == [1, 2, 3][:count]
    assert rows["list/1"].tolist() == [0, 1, 3, 3][: count + 1]
    assert len(rows["list/0"]) == rows["list/1"][-1]
    assert rows["rate"] == 0.5
    assert count < 3 or plain(rows) == plain(FEEDS)


def test_numbers_of_candidates_are_unequal() -> None:
    assert unequal_counts(SEVERAL, 10).tolist() == [5, 0, 3, 2]
    assert unequal_counts(SEVERAL, 1).tolist() == [1]
    assert unequal_counts(RequestCheck("rank_request", "rank", ("bag",)), 10).tolist() == [10]


def test_what_is_recorded_is_read(tmp_path: Path) -> None:
    model = SourceModel(tmp_path, saved_model_pb2.SavedModel(), b"")
    assert recorded_checks(model) == ()
    file = tmp_path / "fusion.json"
    for text in ("", "[]", '{"request_signatures": [1]}', '{"request_signatures": [{"a": 1}]}'):
        file.write_text(text)
        assert recorded_checks(model) == ()
    file.write_text(json.dumps(record_of([SEVERAL])))
    assert recorded_checks(model) == (SEVERAL,)
    assert record_of([]) == {}
