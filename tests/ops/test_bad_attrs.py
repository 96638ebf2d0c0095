"""Bad attrs of a raw op: the error's class, and that it names the attr and the value."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from tests.ops.test_bad_input import (
    RUN_TIME,
    arguments_of,
    post,
    post_v1_inputs,
    pre_inputs,
    prune,
)


def partition(**changes):
    arguments = {"input": tf.constant([1, 2]), "partition_shapes": [[5, 2], [5, 2]]}
    return ops.partition_with_permutation(**{**arguments, **changes})


def post_v1(**changes):
    tensors = {name: tf.constant(value) for name, value in post_v1_inputs().items()}
    return ops.fused_embedding_sparse_post_look_up(**{**arguments_of(tensors), **changes})


def pre(**changes):
    tensors = {name: tf.constant(value) for name, value in pre_inputs().items()}
    return ops.fused_embedding_sparse_pre_look_up(**{**arguments_of(tensors), **changes})


def unique(**changes):
    return ops.unique_with_counts_v3(**{"input": tf.constant([1, 2]), **changes})


BAD_ATTRS = [
    (partition, {"partition_strategy": "modulo"}, "partition_strategy .*'modulo'"),
    (partition, {"partition_axis": 1}, "partition_axis .*1"),
    (partition, {"partition_axis": -1}, "partition_axis .*-1"),
    (partition, {"num_partitions": 3}, "num_partitions is 3, but partition_shapes has 2"),
    (partition, {"partition_shapes": [[5, 2]]}, "partition_shapes must have at least 2, not 1"),
    (partition, {"partition_shapes": []}, "partition_shapes must have at least 2, not 0"),
    (partition, {"Tid": tf.int64}, "Tid is .*int64.*, but input .*int32"),
    (post, {"combiner": "max"}, "combiner .*'max'"),
    (post, {"row_count": "all"}, "row_count .*'all'"),
    (post, {"num_partitions": 1}, "num_partitions is 1, but emb_shards has 2"),
    (post, {"T": tf.float64}, "T is .*float64.*, but emb_shards .*float32"),
    (post, {"Tw": tf.float64}, "Tw is .*float64.*, but sp_weights_values .*float32"),
    (post, {"emb_shards": []}, "emb_shards must have at least 1, not 0"),
    (prune, {"Tid": tf.int32}, "Tid is .*int32.*, but sp_values .*int64"),
    (pre, {"partition_strategy": "mod_ev"}, "partition_strategy .*'mod_ev'"),
    (pre, {"partition_axis": 1}, "partition_axis .*1"),
    (pre, {"num_partitions": 3}, "num_partitions is 3, but partition_shapes has 2"),
    (pre, {"partition_shapes": []}, "partition_shapes must have at least 1, not 0"),
    (pre, {"row_count": "all"}, "row_count .*'all'"),
    (pre, {"entry_order": "sorted"}, "entry_order .*'sorted'"),
    (pre, {"Tid": tf.int32}, "Tid is .*int32.*, but sp_values .*int64"),
    (post_v1, {"combiner": "max"}, "combiner .*'max'"),
    (post_v1, {"num_partitions": 1}, "num_partitions is 1, but emb_shards has 2"),
    (post_v1, {"partitioned_indices": [[[0, 0], [2, 0]]]}, "_indices has 1 .* emb_shards 2"),
    (post_v1, {"emb_shards": []}, "emb_shards must have at least 1, not 0"),
    (post_v1, {"Tid": tf.int32}, "Tid is .*int32.*, but partitioned_values .*int64"),
    (post_v1, {"T": tf.float64}, "T is .*float64.*, but emb_shards .*float32"),
    (unique, {"Tid": tf.int64}, "Tid is .*int64.*, but input .*int32"),
    (prune, {"default_id": 2**63}, f"default_id must not be {2**63}"),
    (prune, {"default_id": -(2**63) - 1}, f"default_id must not be {-(2**63) - 1}"),
]


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize(("call", "changes", "message"), BAD_ATTRS)
def test_a_bad_attr(graph, call, changes, message):
    scope = tf.Graph().as_default() if graph else tf.init_scope()
    with scope, pytest.raises(ValueError, match=message):
        call(**changes)


@pytest.mark.parametrize("value", ["many", 1.5])
def test_an_int_attr_that_is_none(value):
    with pytest.raises(TypeError, match=f"default_id must be an integer.*{value}"):
        prune(default_id=value)


@pytest.mark.parametrize(
    ("call", "inferred"),
    [
        (partition, {"num_partitions": 2, "Tid": tf.int32}),
        (post, {"num_partitions": 2, "T": tf.float32, "Tw": "float32"}),
        (prune, {"Tid": tf.int64, "Tw": np.float32}),
        (unique, {"Tid": "int32"}),
        (pre, {"num_partitions": 2, "Tid": tf.int64, "Tw": "float32"}),
        (post_v1, {"num_partitions": 2, "T": "float32", "Tw": tf.float32, "Tid": tf.int64}),
    ],
)
def test_inferred_attrs_may_be_given(call, inferred):
    tf.nest.map_structure(np.testing.assert_array_equal, tuple(call(**inferred)), tuple(call()))


def test_an_attr_that_no_kernel_takes_is_refused_in_a_graph_from_elsewhere():
    with tf.Graph().as_default() as graph:
        ids = tf.constant([1, 2], tf.int64, name="ids")
        shapes = [tf.constant([2, 1], tf.int64, name=f"shape{p}") for p in range(2)]
        ops.partition_with_permutation(ids, shapes, name="split")
        definition = graph.as_graph_def()
    (node,) = (node for node in definition.node if node.op == "PartitionWithPermutation")
    node.attr["partition_axis"].i = 1
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(definition, name="")
        with tf.compat.v1.Session() as session, pytest.raises(RUN_TIME, match=r"partition_axis.*1"):
            session.run("split:0")
