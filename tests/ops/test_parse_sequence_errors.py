"""What FusedParseSequenceExample refuses: attrs, when a node of it is made, and other inputs."""

from __future__ import annotations

import re
from typing import Any

import pytest
import tensorflow as tf

from tests.example_bytes import ints, sequence_of
from tests.parse_calls import Asked
from tests.sequence_calls import SequenceCall, check, fused

CALL = SequenceCall(
    (Asked(b"a", "default", shape=(1,)), Asked(b"s", "sparse"), Asked(b"r", "ragged")),
    (Asked(b"d", shape=(2,)), Asked(b"t", "sparse"), Asked(b"u", "ragged")),
    (sequence_of({"a": ints([1])}, {"d": [ints([1, 2])]}), sequence_of(lists={"d": []})),
)


def test_the_call_is_good_before_it_is_made_bad() -> None:
    assert not isinstance(check(CALL), str)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"Tcontext_dense": []}, "Tcontext_dense has 0 items, not 1"),
        ({"Tfeature_list_dense": []}, "Tfeature_list_dense has 0 items, not 1"),
        ({"context_dense_ranks": [1, 1]}, "context_dense_ranks has 2 items, not 1"),
        ({"context_dense_dims": []}, "context_dense_dims has 0 items, not 1"),
        ({"feature_list_dense_dims": [-1]}, "feature_list_dense_dims has 1 items, not 2"),
        ({"context_required": []}, "context_required has 0 items, not 1"),
        ({"feature_list_required": []}, "feature_list_required has 0 items, not 1"),
        ({"context_dense_defaults": []}, "Tcontext_defaults has 0 items, not 1"),
        ({"context_sparse_keys": []}, "context_sparse_types has 1 items, not 0"),
        ({"feature_list_sparse_types": []}, "feature_list_sparse_types has 0 items, not 1"),
        (
            {"num_context_sparse": 2},
            "num_context_sparse is 2, but context_sparse_keys has 1 items",
        ),
        (
            {"num_feature_list_sparse": 0},
            "num_feature_list_sparse is 0, but feature_list_sparse_keys has 1 items",
        ),
        (
            {"num_feature_list_dense": 2},
            "num_feature_list_dense is 2, but feature_list_dense_keys has 1 items",
        ),
        (
            {"feature_list_ragged_split_types": []},
            "feature_list_ragged_split_types has 0 items, not 1",
        ),
        (
            {"context_ragged_keys": [b"s"]},
            "context_ragged_keys[0] is a key that another feature has, too",
        ),
        (
            {"feature_list_sparse_keys": [b"d"]},
            "feature_list_sparse_keys[0] is a key that another feature has, too",
        ),
        (
            {"feature_list_dense_dims": [2, 2]},
            "feature_list_dense_dims of feature_list_dense_keys[0]: the size of a list must be -1",
        ),
        (
            {"feature_list_dense_ranks": [0], "feature_list_dense_dims": []},
            "feature_list_dense_dims of feature_list_dense_keys[0]: the size of a list must be -1",
        ),
        (
            {"feature_list_dense_dims": [-1, 0]},
            "feature_list_dense_dims of feature_list_dense_keys[0]: strides of 0 values, and rows "
            "that are filled up",
        ),
        (
            {"feature_list_dense_dims": [-1, -1]},
            "feature_list_dense_dims of feature_list_dense_keys[0]: a size of -1, and it is not "
            "the first",
        ),
        (
            {"context_dense_dims": [1 << 50]},
            "context_dense_dims of context_dense_keys[0]: 1125899906842624 is too large a size",
        ),
        (
            {"context_dense_ranks": [254], "context_dense_dims": [1] * 254},
            "context_dense_ranks[0] = 254 is not in [0, 253]",
        ),
        (
            {"context_dense_dims": [-1], "context_required": [True], "context_dense_defaults": []},
            "context_required[0] is true, but rows of context_dense_keys[0] are filled up",
        ),
        (
            {"context_dense_dims": [-1]},
            "context_dense_dims of context_dense_keys[0]: a size of -1 in the context",
        ),
        (
            {"context_dense_defaults": [tf.constant([7.0])]},
            "Tcontext_defaults[0] is not the dtype of context_dense_keys[0]",
        ),
        (
            {"context_dense_defaults": [tf.constant([7, 8], tf.int64)]},
            "dense_defaults[0] must have the shape of the feature, but has 2 elements",
        ),
        (
            {"names": tf.constant(["one"])},
            "example_names must be empty or have the correct number of elements",
        ),
        (
            {"serialized": tf.constant([[b""]])},
            "serialized must be a scalar or a vector, but has rank 2",
        ),
    ],
    ids=lambda value: "" if isinstance(value, dict) else re.sub(r"\W+", " ", value),
)
def test_what_is_refused(changed: dict[str, Any], text: str) -> None:
    found = fused(CALL, **changed)
    assert isinstance(found, str), found
    assert found.removeprefix("FusedParseSequenceExample: ") == text


def test_names_of_any_shape_are_taken() -> None:
    """As TensorFlow takes them."""
    found = fused(CALL, names=tf.constant([["one"], ["two"]]))
    assert not isinstance(found, str)
