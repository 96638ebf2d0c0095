"""What FusedParseExample refuses: attrs, when a node of it is made, and inputs of other shapes."""

from __future__ import annotations

import re
from typing import Any

import pytest
import tensorflow as tf

from fusion import ops
from tests.example_bytes import ints, of
from tests.parse_calls import Asked, Call, arguments, check, fused

CALL = Call(
    (
        Asked(b"a", "default", shape=(1,)),
        Asked(b"p", "padded"),
        Asked(b"s", "sparse"),
        Asked(b"r", "ragged"),
    ),
    (of(a=ints([1])), of(p=ints([2, 3]))),
)
REQUIRED = Call((Asked(b"a", shape=(1,)), Asked(b"b", shape=(1,))), (of(a=ints([1]), b=ints([2])),))

SEVEN = [tf.constant([7], tf.int64), tf.constant(7, tf.int64)]


def test_the_calls_are_good_before_they_are_made_bad() -> None:
    for call in (CALL, REQUIRED):
        assert not isinstance(check(call), str)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"Tdense": ["int64"]}, "Tdense has 1 items, not 2"),
        ({"dense_keys": [b"a"]}, "Tdense has 2 items, not 1"),
        ({"dense_ranks": [1]}, "dense_ranks has 1 items, not 2"),
        ({"dense_dims": [1]}, "dense_dims has 1 items, not 2"),
        ({"dense_dims": [1, -1, 1]}, "dense_dims has 3 items, not 2"),
        ({"required": [False]}, "required has 1 items, not 2"),
        ({"dense_defaults": SEVEN[:1]}, "Tdefaults has 1 items, not 2"),
        ({"sparse_keys": []}, "sparse_types has 1 items, not 0"),
        ({"sparse_types": []}, "sparse_types has 0 items, not 1"),
        ({"num_sparse": 2}, "num_sparse is 2, but sparse_keys has 1 items"),
        ({"ragged_value_types": []}, "ragged_value_types has 0 items, not 1"),
        ({"ragged_split_types": ["int32", "int64"]}, "ragged_split_types has 2 items, not 1"),
        ({"sparse_keys": [b"a"]}, "sparse_keys[0] is a key that another feature has, too"),
        ({"ragged_keys": [b"s"]}, "ragged_keys[0] is a key that another feature has, too"),
        ({"dense_keys": [b"a", b"a"]}, "dense_keys[1] is a key that another feature has, too"),
        (
            {"dense_ranks": [1, 2], "dense_dims": [1, -1, 0]},
            "dense_dims of dense_keys[1]: strides of 0 values, and rows that are filled up",
        ),
        (
            {"dense_ranks": [2, 1], "dense_dims": [1, -1, -1]},
            "dense_dims of dense_keys[0]: a size of -1, and it is not the first",
        ),
        (
            {"dense_ranks": [2, 1], "dense_dims": [1 << 30, 1 << 30, -1]},
            "dense_dims of dense_keys[0]: 1073741824 is too large a size",
        ),
        (
            {"dense_ranks": [2, 1], "dense_dims": [0, 1 << 62, -1]},
            "dense_dims of dense_keys[0]: 4611686018427387904 is too large a size",
        ),
        ({"sparse_buckets": []}, "sparse_buckets has 0 items, not 1"),
        ({"dense_buckets": [0, 0, 0]}, "dense_buckets has 3 items, not 2"),
        ({"ragged_buckets": [0, 0]}, "ragged_buckets has 2 items, not 1"),
        (
            {"dense_buckets": [0, 5]},
            "dense_buckets[1] is 5: only one int64 of a row, or a list of them, is a hash",
        ),
        (
            {"sparse_buckets": [-1]},
            "sparse_buckets[0] is -1: only one int64 of a row, or a list of them, is a hash",
        ),
        ({"dense_outputs": [0]}, "dense_outputs has 1 items, not 2"),
        (
            {"dense_outputs": [1, 0]},
            "dense_outputs[0] = 1: outputs of dense features are numbered in their order",
        ),
        (
            {"dense_outputs": [0, -1]},
            "dense_outputs[1] = -1: outputs of dense features are numbered in their order",
        ),
        ({"dense_outputs": [0, 0]}, "Tvalues has 2 items, not 1"),
        ({"dense_columns": [0]}, "dense_columns has 1 items, not 2"),
        (
            {"dense_columns": [1, 0]},
            "dense_columns[0] = 1: features of an output are not side by side",
        ),
        (
            {"dense_outputs": [0, 0], "Tvalues": ["int64"]},
            "dense_columns[0] = 0: features of an output are not side by side",
        ),
        (
            {"dense_outputs": [0, 0], "dense_columns": [0, 1], "Tvalues": ["int64"]},
            "dense_outputs[1]: it has no values, or is filled up, and has no output of its own",
        ),
        (
            {"Tvalues": ["int64", "float32"]},
            "Tvalues[1] is not the dtype of a feature in it",
        ),
        ({"dense_ranks": [-1, 3]}, "dense_ranks[0] = -1 is not in [0, 253]"),
        ({"dense_ranks": [254, 1]}, "dense_ranks[0] = 254 is not in [0, 253]"),
        (
            {"required": [False, True], "dense_defaults": SEVEN[:1]},
            "required[1] is true, but rows of dense_keys[1] are filled up",
        ),
        (
            {"dense_defaults": [SEVEN[0], tf.constant(7.0)]},
            "Tdefaults[1] is not the dtype of dense_keys[1]",
        ),
        (
            {"dense_defaults": [tf.constant([7, 8], tf.int64), SEVEN[1]]},
            "dense_defaults[0] must have the shape of the feature, but has 2 elements",
        ),
        (
            {"dense_defaults": [tf.constant(7, tf.int64), SEVEN[1]]},
            "dense_defaults[0] must have the shape of the feature, but has 1 elements",
        ),
        (
            {"dense_defaults": [SEVEN[0], tf.constant([7, 8], tf.int64)]},
            "dense_defaults[1] must be the one element that rows are filled with, but has 2",
        ),
        (
            {"names": tf.constant(["one"])},
            "names must be empty or of the shape of serialized: there are 1 for 2 Examples",
        ),
        (
            {"names": tf.constant([["one", "two"]])},
            "names must be empty or of the shape of serialized: there are 2 for 2 Examples",
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
    assert found.removeprefix("FusedParseExample: ") == text


def test_a_row_of_most_dimensions() -> None:
    """NumPy has no arrays of so many."""
    changed = {"dense_ranks": [253, 1], "dense_dims": [1] * 254}
    found = ops.fused_parse_example(**{**arguments(REQUIRED), **changed})
    assert found.dense_values[0].shape.rank == 254


def test_an_attr_that_python_refuses() -> None:
    with pytest.raises(ValueError, match="num_sparse must not be -1"):
        fused(CALL, num_sparse=-1)
