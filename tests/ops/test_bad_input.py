"""Every bad input of a raw op: the error's class, and that it names the argument and the value."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from tests import reference
from tests.reference import MODES

RUN_TIME = tf.errors.InvalidArgumentError


def prune_inputs():
    return {
        "sp_values": np.array([1, 2, 3], np.int64),
        "sp_indices": np.array([[0, 0], [1, 0], [1, 1]], np.int64),
        "sp_dense_shape": np.array([2, 2], np.int64),
        "sp_weights_values": np.array([1, 2, 3], np.float32),
    }


def pre_inputs():
    return prune_inputs() | {
        "partition_shapes_0": np.array([5, 2], np.int64),
        "partition_shapes_1": np.array([5, 2], np.int64),
    }


def post_v1_inputs():
    return {
        "emb_shards_0": np.array([[1, 2], [3, 4]], np.float32),
        "emb_shards_1": np.array([[5, 6]], np.float32),
        "partitioned_indices_0": np.array([[0, 0], [2, 0]], np.int64),
        "partitioned_indices_1": np.array([[0, 1]], np.int64),
        "sp_dense_shape": np.array([3, 9], np.int64),
        "row_empty_and_invalid_flags": np.array([0, 1, 0, 1, 1, 1], np.int32),
        "partitioned_values_0": np.array([7, 8], np.int64),
        "partitioned_values_1": np.array([1], np.int64),
        "partitioned_weights_0": np.array([1, 2], np.float32),
        "partitioned_weights_1": np.array([3], np.float32),
    }


def grad_v1_inputs():
    inputs = post_v1_inputs()
    for name in ("sp_dense_shape", "partitioned_values_0", "partitioned_values_1"):
        del inputs[name]
    return inputs | {
        "top_grad": np.ones((3, 2), np.float32),
        "feature_nums": np.array([2, 0, 1], np.int32),
    }


def post_inputs():
    return {
        "emb_shards_0": np.array([[1, 2], [3, 4]], np.float32),
        "emb_shards_1": np.array([[5, 6]], np.float32),
        "partition_permutation": np.array([[0, 0], [1, 0], [0, 1]], np.int32),
        "sp_dense_shape": np.array([3, 9], np.int64),
        "indices_before_unique": np.array([[0, 0], [2, 0], [0, 1]], np.int64),
        "is_row_empty": np.array([False, True, False]),
        "unique_idxs": np.array([0, 1, 2], np.int32),
        "sp_weights_values": np.array([1, 2, 3], np.float32),
    }


def grad_inputs():
    inputs = post_inputs()
    del inputs["sp_dense_shape"]
    return inputs | {
        "top_grad": np.ones((3, 2), np.float32),
        "feature_nums": np.array([2, 0, 1], np.int32),
    }


def argument_of(name):
    """The argument that an input is, or is one of: the names of those of lists end in a number."""
    return re.sub(r"_\d$", "", name)


def arguments_of(tensors):
    """Arguments by name, from inputs by name."""
    result = {}
    for name, tensor in tensors.items():
        if argument_of(name) == name:
            result[name] = tensor
        else:
            result.setdefault(argument_of(name), []).append(tensor)
    return result


def weighted(op):
    def call(_, **tensors):
        return tf.nest.flatten(op(**arguments_of(tensors), use_sparse_weights=True))

    return call


def call_unique(_, ids):
    return tuple(ops.unique_with_counts_v3(ids))


CALLS = {
    "prune": (weighted(ops.prune_invalid_and_fill_empty_rows), prune_inputs),
    "post": (weighted(ops.fused_embedding_sparse_post_look_up_v2), post_inputs),
    "grad": (weighted(ops.fused_embedding_sparse_post_look_up_v2_grad), grad_inputs),
    "pre": (weighted(ops.fused_embedding_sparse_pre_look_up), pre_inputs),
    "post_v1": (weighted(ops.fused_embedding_sparse_post_look_up), post_v1_inputs),
    "grad_v1": (weighted(ops.fused_embedding_sparse_post_look_up_grad), grad_v1_inputs),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op", CALLS)
def test_the_inputs_are_good_as_they_are(mode, op):
    call, inputs = CALLS[op]
    reference.run(mode, call, inputs())


#: op, argument, bad value, and what the message says at run time.
BAD_VALUES = [
    ("prune", "sp_dense_shape", [-1, 2], r"sp_dense_shape .*\[-1, 2\]"),
    ("prune", "sp_dense_shape", [2, -7], r"sp_dense_shape .*\[2, -7\]"),
    ("prune", "sp_dense_shape", [2, 2**62], r"2\*\*63 elements or more: it is \[2, 4611"),
    ("prune", "sp_indices", [[0, 0], [2, 0], [1, 1]], r"sp_indices\[1, 0\] = 2 .*\[0, 2\)"),
    ("prune", "sp_indices", [[0, 0], [1, 0], [-4, 1]], r"sp_indices\[2, 0\] = -4 .*\[0, 2\)"),
    ("prune", "sp_indices", [[0, 0], [2**62, 0], [1, 1]], rf"sp_indices\[1, 0\] = {2**62}"),
    ("post", "unique_idxs", [0, 3, 0], r"unique_idxs\[1\] = 3 .*\[0, 3\)"),
    ("post", "unique_idxs", [0, 0, -1], r"unique_idxs\[2\] = -1 .*\[0, 3\)"),
    (
        "post",
        "indices_before_unique",
        [[0, 0], [3, 0], [0, 0]],
        r"indices.*\[1, 0\] = 3 .*\[0, 3\)",
    ),
    ("post", "indices_before_unique", [[-1, 0], [0, 0], [0, 0]], r"indices.*\[0, 0\] = -1"),
    ("post", "partition_permutation", [[0, 0], [1, 1], [0, 1]], r"permutation\[1\] = \[1, 1\]"),
    ("post", "partition_permutation", [[0, 0], [1, 0], [2, 0]], r"permutation\[2\] = \[2, 0\]"),
    ("post", "partition_permutation", [[-1, 0], [1, 0], [0, 1]], r"permutation\[0\] = \[-1, 0\]"),
    ("post", "partition_permutation", [[0, -9], [1, 0], [0, 1]], r"permutation\[0\] = \[0, -9\]"),
    ("post", "partition_permutation", [[0, 0]], r"permutation has 1 rows, but .* 3"),
    ("post", "partition_permutation", [[0, 0], [1, 0], [0, 0]], r"\[2\] = \[0, 0\] stands.*twice"),
    ("post", "sp_dense_shape", [4, 9], r"is_row_empty has 3 rows, but sp_dense_shape says 4"),
    ("post", "sp_dense_shape", [-3, 9], r"is_row_empty has 3 rows, but sp_dense_shape says -3"),
    ("grad", "unique_idxs", [0, 3, 0], r"unique_idxs\[1\] = 3 .*\[0, 3\)"),
    (
        "grad",
        "indices_before_unique",
        [[0, 0], [3, 0], [0, 0]],
        r"indices.*\[1, 0\] = 3 .*\[0, 3\)",
    ),
    ("grad", "partition_permutation", [[0, 0], [1, 1], [0, 1]], r"permutation\[1\] = \[1, 1\]"),
    ("grad", "partition_permutation", [[0, 0]], r"permutation has 1 rows, but .* 3"),
    ("grad", "partition_permutation", [[1, 0], [0, 1], [0, 1]], r"\[2\] = \[0, 1\] stands.*twice"),
    ("pre", "sp_dense_shape", [-1, 2], r"sp_dense_shape .*\[-1, 2\]"),
    ("pre", "sp_dense_shape", [2, 2**62], r"2\*\*63 elements or more: it is \[2, 4611"),
    ("pre", "sp_dense_shape", [2, -7], r"sp_dense_shape .*\[2, -7\]"),
    ("pre", "sp_indices", [[0, 0], [2, 0], [1, 1]], r"sp_indices\[1, 0\] = 2 .*\[0, 2\)"),
    ("pre", "sp_indices", [[0, 0], [1, 0], [-4, 1]], r"sp_indices\[2, 0\] = -4 .*\[0, 2\)"),
    (
        "pre",
        "sp_values",
        [1, 10, 3],
        r"sp_values\[1\] = 10 is not an id of a table of 10",
    ),
    (
        "pre",
        "sp_values",
        [1, 2, -3],
        r"sp_values\[2\] = -3 is not an id of a table of 10",
    ),
    ("pre", "partition_shapes_1", [-3, 2], r"partition_shapes\[1\] has -3 rows"),
    ("post_v1", "partitioned_indices_0", [[0, 0], [3, 0]], r"indices\[0\]\[1, 0\] = 3 .*\[0, 3\)"),
    ("post_v1", "partitioned_indices_1", [[-1, 0]], r"indices\[1\]\[0, 0\] = -1 .*\[0, 3\)"),
    ("post_v1", "partitioned_indices_1", [[2**62, 0]], rf"indices\[1\]\[0, 0\] = {2**62} "),
    ("post_v1", "sp_dense_shape", [-3, 9], r"sp_dense_shape must not be negative, but has -3 rows"),
    ("post_v1", "sp_dense_shape", [7, 9], r"flags has 6 elements, but there are 7 rows"),
    ("post_v1", "sp_dense_shape", [2**62, 9], rf"flags has 6 elements, but there are {2**62} rows"),
    ("post_v1", "row_empty_and_invalid_flags", [0, 0], r"has 2 elements, but there are 3 rows"),
    ("grad_v1", "partitioned_indices_0", [[3, 0], [0, 0]], r"indices\[0\]\[0, 0\] = 3 .*\[0, 3\)"),
    ("grad_v1", "partitioned_indices_1", [[-1, 0]], r"indices\[1\]\[0, 0\] = -1 .*\[0, 3\)"),
    ("grad_v1", "row_empty_and_invalid_flags", [], r"has 0 elements, but there are 3 rows"),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("op", "argument", "value", "message"), BAD_VALUES)
def test_a_bad_value_raises_at_run_time(mode, op, argument, value, message):
    call, inputs = CALLS[op]
    arrays = inputs()
    arrays[argument] = np.array(value, arrays[argument].dtype)
    with pytest.raises(RUN_TIME, match=message):
        reference.run(mode, call, arrays)


#: op, argument and a value whose size disagrees with that of another argument.
BAD_SIZES = [
    ("prune", "sp_values", [1, 2]),
    ("prune", "sp_indices", [[0, 0]]),
    ("prune", "sp_indices", [[0], [1], [1]]),
    ("prune", "sp_indices", [[0, 0, 0], [1, 0, 0], [1, 1, 0]]),
    ("prune", "sp_dense_shape", [2, 2, 2]),
    ("prune", "sp_weights_values", [1.0, 2.0]),
    ("prune", "sp_weights_values", [1.0] * 4),
    ("post", "emb_shards_1", [[1.0, 2.0, 3.0]]),
    ("post", "unique_idxs", [0, 1]),
    ("post", "indices_before_unique", [[0, 0]]),
    ("post", "sp_weights_values", [1.0]),
    ("post", "partition_permutation", [[0], [1], [0]]),
    ("grad", "top_grad", [[1.0, 1.0]]),
    ("grad", "top_grad", [[1.0]] * 3),
    ("grad", "feature_nums", [1, 1]),
    ("grad", "unique_idxs", [0, 1]),
    ("grad", "sp_weights_values", [1.0]),
    ("pre", "sp_values", [1, 2]),
    ("pre", "sp_indices", [[0, 0]]),
    ("pre", "sp_indices", [[0], [1], [1]]),
    ("pre", "sp_dense_shape", [2, 2, 2]),
    ("pre", "sp_weights_values", [1.0, 2.0]),
    ("pre", "partition_shapes_0", [5]),
    ("pre", "partition_shapes_1", [5, 2, 2]),
    ("post_v1", "emb_shards_0", [[1.0, 2.0]]),
    ("post_v1", "emb_shards_1", [[1.0, 2.0, 3.0]]),
    ("post_v1", "partitioned_indices_0", [[0, 0]]),
    ("post_v1", "partitioned_indices_1", [[0]]),
    ("post_v1", "partitioned_values_1", [1, 2]),
    ("post_v1", "partitioned_weights_0", [1.0]),
    ("post_v1", "partitioned_weights_1", [1.0, 2.0]),
    ("post_v1", "sp_dense_shape", [3]),
    ("grad_v1", "top_grad", [[1.0, 1.0]]),
    ("grad_v1", "top_grad", [[1.0]] * 3),
    ("grad_v1", "feature_nums", [1, 1]),
    ("grad_v1", "emb_shards_1", [[1.0, 2.0]] * 2),
    ("grad_v1", "partitioned_indices_1", [[0, 1], [0, 1]]),
    ("grad_v1", "partitioned_weights_0", [1.0, 2.0, 3.0]),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("op", "argument", "value"), BAD_SIZES)
def test_sizes_that_disagree(mode, op, argument, value):
    call, inputs = CALLS[op]
    arrays = inputs()
    arrays[argument] = np.array(value, arrays[argument].dtype)
    # In eager mode everything is static.
    error = ValueError if mode == "eager" else RUN_TIME
    with pytest.raises(error, match=r"(has|must have|with) (shape|size)"):
        reference.run(mode, call, arrays)


#: op, argument and a value of another rank.
BAD_RANKS = [
    ("prune", "sp_values", [[1, 2, 3]]),
    ("prune", "sp_indices", [0, 1, 1]),
    ("prune", "sp_dense_shape", 2),
    ("prune", "sp_weights_values", [[1.0, 2.0, 3.0]]),
    ("post", "emb_shards_0", [1.0, 2.0]),
    ("post", "unique_idxs", 1),
    ("post", "is_row_empty", [[False, True, False]]),
    ("post", "partition_permutation", [0, 0]),
    ("grad", "top_grad", [1.0, 2.0]),
    ("pre", "partition_shapes_1", 3),
    ("pre", "sp_indices", [0, 1, 1]),
    ("post_v1", "partitioned_indices_1", [0, 1]),
    ("post_v1", "row_empty_and_invalid_flags", [[0, 1, 0]]),
    ("post_v1", "partitioned_values_0", 7),
    ("post_v1", "partitioned_weights_1", [[3.0]]),
    ("grad_v1", "emb_shards_1", [5.0, 6.0]),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("op", "argument", "value"), BAD_RANKS)
def test_a_wrong_rank(mode, op, argument, value):
    call, inputs = CALLS[op]
    arrays = inputs()
    arrays[argument] = np.array(value, arrays[argument].dtype)
    with pytest.raises(ValueError, match=f"{argument_of(argument)} must have shape"):
        reference.run(mode, call, arrays)


@pytest.mark.parametrize("op", CALLS)
def test_a_wrong_rank_that_is_not_known_statically(op):
    call, inputs = CALLS[op]
    arrays = inputs()
    for argument, value in arrays.items():
        name = argument_of(argument)
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            feeds = {k: tf.compat.v1.placeholder(v.dtype) for k, v in arrays.items()}
            result = call(None, **feeds)
            bad = {**arrays, argument: value[None]}
            with pytest.raises(RUN_TIME, match=f"{name} must have rank {value.ndim}, but has rank"):
                session.run(result, {feeds[k]: v for k, v in bad.items()})


#: op, argument and a dtype that it does not take.
BAD_DTYPES = [
    ("prune", "sp_values", np.float32, TypeError),
    ("prune", "sp_values", np.int16, TypeError),
    ("prune", "sp_indices", np.int32, TypeError),
    ("prune", "sp_dense_shape", np.int32, TypeError),
    ("prune", "sp_weights_values", np.int64, TypeError),
    ("post", "unique_idxs", np.int64, TypeError),
    ("post", "is_row_empty", np.int32, TypeError),
    ("post", "emb_shards_1", np.float64, TypeError),
    ("grad", "top_grad", np.float64, TypeError),
    ("pre", "partition_shapes_0", np.int32, TypeError),
    ("pre", "sp_values", np.int16, TypeError),
    ("pre", "sp_weights_values", np.int64, TypeError),
    ("post_v1", "emb_shards_1", np.float64, TypeError),
    ("post_v1", "partitioned_indices_0", np.int32, TypeError),
    ("post_v1", "partitioned_values_1", np.int32, TypeError),
    ("post_v1", "partitioned_weights_1", np.float64, TypeError),
    ("post_v1", "row_empty_and_invalid_flags", np.int64, TypeError),
    ("grad_v1", "top_grad", np.float64, TypeError),
    ("grad_v1", "feature_nums", np.int64, TypeError),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("op", "argument", "dtype", "error"), BAD_DTYPES)
def test_a_wrong_dtype(mode, op, argument, dtype, error):
    call, inputs = CALLS[op]
    arrays = inputs()
    arrays[argument] = arrays[argument].astype(dtype)
    name = "emb_shards" if argument == "top_grad" else argument_of(argument)
    with pytest.raises(error, match=f"{name} .*{np.dtype(dtype).name}"):
        reference.run(mode, call, arrays)


@pytest.mark.parametrize("mode", MODES)
def test_unique_of_a_matrix_or_of_floats(mode):
    with pytest.raises(ValueError, match="input must have shape"):
        reference.run(mode, call_unique, {"ids": np.zeros((2, 2), np.int64)})
    with pytest.raises(TypeError, match="input must be int32 or int64, not float64"):
        reference.run(mode, call_unique, {"ids": np.zeros(2)})


def post(**changes):
    tensors = {name: tf.constant(value) for name, value in post_inputs().items()}
    return ops.fused_embedding_sparse_post_look_up_v2(**{**arguments_of(tensors), **changes})


def prune(**changes):
    return ops.prune_invalid_and_fill_empty_rows(**{**prune_inputs(), **changes})


def test_a_list_takes_the_dtype_that_is_given():
    assert ops.unique_with_counts_v3(input=[1, 2], Tid=tf.int64).unique_keys.dtype == tf.int64
    with pytest.raises((TypeError, ValueError), match="input"):
        ops.unique_with_counts_v3(input=["a"], Tid=tf.int64)


def test_a_tensor_where_a_list_is_expected():
    with pytest.raises(TypeError, match="emb_shards must be a list"):
        post(emb_shards=tf.ones([3, 2]))


def test_an_unknown_argument():
    with pytest.raises(TypeError, match="default"):
        prune(default=3)


def test_a_huge_batch_is_an_error_not_a_crash():
    for batch in (2**50, 2**62, 2**63 - 1):
        with pytest.raises(tf.errors.ResourceExhaustedError, match=f"{batch}"):
            prune(sp_dense_shape=[batch, 1])


@pytest.mark.parametrize("row", [2**61, 2**62, 2**63 - 2, 2**63 - 1])
def test_a_huge_last_row_is_an_error_not_a_crash(row):
    with pytest.raises(tf.errors.ResourceExhaustedError):
        post(indices_before_unique=[[0, 0], [0, 0], [row, 0]], row_count="last_row")


@pytest.mark.parametrize("row", [2**61, 2**62, 2**63 - 2, 2**63 - 1])
def test_a_huge_last_row_of_the_v1_ops(row):
    one = tf.ones([1])
    with pytest.raises(tf.errors.ResourceExhaustedError):
        ops.fused_embedding_sparse_pre_look_up(
            partition_shapes=[[9, 2]],
            sp_values=tf.constant([3], tf.int64),
            sp_indices=[[row, 0]],
            sp_dense_shape=[1, 1],
            sp_weights_values=one,
            row_count="last_row",
        )
    with pytest.raises(tf.errors.OpError):  # the flags are too few, or the memory is
        ops.fused_embedding_sparse_post_look_up(
            emb_shards=[one[None]],
            partitioned_indices=[[[row, 0]]],
            sp_dense_shape=[1, 1],
            row_empty_and_invalid_flags=[0, 1],
            partitioned_values=[tf.constant([3], tf.int64)],
            partitioned_weights=[one],
            row_count="last_row",
        )


@pytest.mark.parametrize("row", [-1, -2, -5, -(2**63)])
def test_a_negative_last_row(row):
    with pytest.raises(RUN_TIME, match=rf"indices_before_unique\[0, 0\] = {row} "):
        post(indices_before_unique=[[row, 0]] * 3, row_count="last_row")
