"""What the fused ops around a gather, and their gradients, compute: by stock ops.

A definition is given an op's inputs and attrs, and returns its outputs. Gradients are those that
TensorFlow has of the stock ops. Ops that are not here, or that are used otherwise than lookups do,
have no definition.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from fusion.ops.bags.stock import (
    Attrs,
    Bags,
    NoDefinition,
    Tensors,
    combined,
    entry_counts,
    gradients,
    or_default,
    pruned,
    pruned_matrix,
    shard_of,
    sorted_bags,
)
from fusion.ops.columns.stock import dense_sum, grouped_post, grouped_post_grad, grouped_pre
from fusion.ops.examples.stock import parse_example
from fusion.ops.ids.stock import grouped_ids
from fusion.schema.columns import Column
from fusion.schema.names import (
    GROUPED_IDS,
    GROUPED_POST,
    GROUPED_POST_GRAD,
    GROUPED_PRE,
    PARSE_EXAMPLE,
    SINGLE,
)
from fusion.schema.row_formats import PLAIN

Definition = Callable[[Attrs, Tensors], Tensors]


def _prune(attrs: Attrs, inputs: Tensors) -> Tensors:
    ids, indices, shape, weights = inputs
    used_weights = weights if attrs["use_sparse_weights"] else None
    entries = pruned(attrs, ids, indices, shape[0], used_weights)
    pairs = tf.stack([entries.rows, entries.columns], 1)
    return entries.ids, pairs, or_default(entries, attrs, weights.dtype), entries.is_row_empty


def _prune_dense(attrs: Attrs, inputs: Tensors) -> Tensors:
    (matrix,) = inputs
    entries, shape = pruned_matrix(attrs, matrix, attrs["Tid"])
    return entries.ids, tf.stack([entries.rows, entries.columns], 1), entries.is_row_empty, shape


def _unique(attrs: Attrs, inputs: Tensors) -> Tensors:
    keys, index, counts = tf.unique_with_counts(inputs[0])
    return keys, index, counts


def _partition(attrs: Attrs, inputs: Tensors) -> Tensors:
    ids, *shapes = inputs
    shard, local = shard_of(attrs, ids, shapes)
    parts = tf.dynamic_partition(local, shard, len(shapes))
    positions = tf.dynamic_partition(tf.range(tf.size(ids)), shard, len(shapes))
    inside = tf.dynamic_stitch(positions, [tf.range(tf.size(part)) for part in parts])
    inside = tf.reshape(inside, tf.shape(ids))
    return *parts, tf.stack([shard, inside], 1)


def _in_order(shards: Tensors, permutation: tf.Tensor) -> tf.Tensor:
    if len(shards) == 1:
        return shards[0]
    firsts = tf.cumsum(tf.stack([tf.shape(shard)[0] for shard in shards]), exclusive=True)
    return tf.gather(tf.concat(shards, 0), tf.gather(firsts, permutation[:, 0]) + permutation[:, 1])


def _masked(attrs: Attrs, flags: tf.Tensor) -> tf.Tensor | None:
    fills = attrs.get("fill_empty_row", True) and attrs["row_count"] == "dense_shape"
    return flags if fills and attrs["default_id"] < 0 else None


def _post(attrs: Attrs, inputs: Tensors) -> Tensors:
    shards = inputs[: attrs["num_partitions"]]
    permutation, shape, indices, flags, positions, weights = inputs[len(shards) :]
    bags = _bags(attrs, indices[:, 0], flags, positions, weights, shape[0])
    return combined(attrs, _in_order(shards, permutation), bags), entry_counts(bags)


def _bags(
    attrs: Attrs,
    rows: tf.Tensor,
    flags: tf.Tensor,
    positions: tf.Tensor,
    weights: tf.Tensor,
    count: tf.Tensor,
) -> Bags:
    used_weights = weights if attrs["use_sparse_weights"] else None
    counted = None if attrs["row_count"] == "last_row" else count
    return sorted_bags(positions, rows, used_weights, counted, _masked(attrs, flags))


def _post_grad(attrs: Attrs, inputs: Tensors) -> Tensors:
    top, *rest = inputs
    shards = rest[: attrs["num_partitions"]]
    permutation, _, indices, positions, flags, weights = rest[len(shards) :]
    count = tf.shape(top, out_type=tf.int64)[0]
    bags = _bags(attrs, indices[:, 0], flags, positions, weights, count)
    bags = bags._replace(count=count)
    result = combined(attrs, _in_order(shards, permutation), bags)
    if attrs["use_sparse_weights"]:
        return gradients(result, [*shards, weights], top)
    return *gradients(result, shards, top), tf.zeros([0], weights.dtype)


def _pre_v1(attrs: Attrs, inputs: Tensors) -> Tensors:
    number = attrs["num_partitions"]
    shapes, (ids, indices, shape, weights) = inputs[:number], inputs[number:]
    if attrs["row_count"] == "last_row":
        raise NoDefinition
    prune_attrs = {**attrs, "prune": attrs["prune_invalid_id"], "num_buckets": 0}
    used_weights = weights if attrs["use_sparse_weights"] else None
    entries = pruned(prune_attrs, ids, indices, shape[0], used_weights)
    weights = or_default(entries, attrs, weights.dtype)
    pairs = tf.stack([entries.rows, entries.columns], 1)
    ids = entries.ids
    if attrs["entry_order"] == "row":
        order = tf.argsort(entries.rows, stable=True)
        ids, pairs, weights = (tf.gather(tensor, order) for tensor in (ids, pairs, weights))
    shard, local = shard_of(attrs, ids, shapes)
    parts = [tf.dynamic_partition(tensor, shard, number) for tensor in (local, pairs, weights)]
    empty, flags = tf.cast(entries.is_row_empty, tf.int32), tf.cast(entries.mask, tf.int32)
    return *parts[0], *parts[1], tf.concat([empty, flags], 0), *parts[2]


def _bags_v1(
    attrs: Attrs, pairs: Tensors, flags: tf.Tensor, weights: Tensors, count: tf.Tensor
) -> Bags:
    if attrs["row_count"] == "last_row":
        raise NoDefinition
    rows = tf.concat(pairs, 0)
    positions = tf.range(tf.shape(rows)[0])
    joined = tf.concat(weights, 0)
    if len(pairs) > 1:
        order = tf.argsort(rows[:, 1], stable=True)
        rows, positions, joined = (tf.gather(tensor, order) for tensor in (rows, positions, joined))
    masked = flags[: tf.cast(count, tf.int32)] > 0 if attrs["default_id"] < 0 else None
    used_weights = joined if attrs["use_sparse_weights"] else None
    return sorted_bags(positions, rows[:, 0], used_weights, count, masked)


def _post_v1(attrs: Attrs, inputs: Tensors) -> Tensors:
    number = attrs["num_partitions"]
    shards, pairs = inputs[:number], inputs[number : 2 * number]
    shape, flags, weights = inputs[2 * number], inputs[2 * number + 1], inputs[-number:]
    bags = _bags_v1(attrs, pairs, flags, weights, shape[0])
    return combined(attrs, tf.concat(shards, 0), bags), entry_counts(bags)


def _post_v1_grad(attrs: Attrs, inputs: Tensors) -> Tensors:
    number = attrs["num_partitions"]
    top, *rest = inputs
    shards, pairs = rest[:number], rest[number : 2 * number]
    flags, weights = rest[2 * number + 1], rest[-number:]
    bags = _bags_v1(attrs, pairs, flags, weights, tf.shape(top, out_type=tf.int64)[0])
    result = combined(attrs, tf.concat(shards, 0), bags)
    if attrs["use_sparse_weights"]:
        return gradients(result, [*shards, *weights], top)
    empty = [tf.zeros([0], tensor.dtype) for tensor in weights]
    return *gradients(result, shards, top), *empty


def _single(attrs: Attrs, inputs: Tensors) -> Tensors:
    if attrs["row_format"] != PLAIN:
        raise NoDefinition
    return (dense_sum(Column.of(attrs), inputs),)


DEFINITIONS: dict[str, Definition] = {
    "UniqueWithCountsV3": _unique,
    "PruneInvalidAndFillEmptyRows": _prune,
    "PruneDenseAndFillEmptyRows": _prune_dense,
    "PartitionWithPermutation": _partition,
    "FusedEmbeddingSparsePostLookUpV2": _post,
    "FusedEmbeddingSparsePostLookUpV2Grad": _post_grad,
    "FusedEmbeddingSparsePreLookUp": _pre_v1,
    "FusedEmbeddingSparsePostLookUp": _post_v1,
    "FusedEmbeddingSparsePostLookUpGrad": _post_v1_grad,
    SINGLE: _single,
    GROUPED_PRE: grouped_pre,
    GROUPED_POST: grouped_post,
    GROUPED_POST_GRAD: grouped_post_grad,
    PARSE_EXAMPLE: parse_example,
    GROUPED_IDS: grouped_ids,
}
"""By the name of the op."""
