"""The ops that combine gathered rows into bags, of both families, against stock ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import tensorflow as tf

from fusion import ops
from tests import reference
from tests.bounds import Bounds, loss_factors
from tests.reference import assert_same_bits, assert_within

COMBINERS = ["sum", "mean", "sqrtn"]
HALVES = [np.float16, ml_dtypes.bfloat16]
DTYPES = [*HALVES, np.float32, np.float64]


class Family(NamedTuple):
    """How an op is called.

    Attributes:
        op: its function.
        batch: the inputs, of a seed, lengths of bags, and a width.
        fused: a call, weighted or not, and with attrs.
        small: the arguments of a call of three rows, of which the second is empty.
        given: attrs of `stock` that this op has by itself.
    """

    op: Callable[..., Any]
    batch: Callable[..., dict[str, Any]]
    fused: Callable[..., Any]
    small: Callable[[], dict[str, Any]]
    given: Mapping[str, Any] = {}

    def call(self, **changes: Any) -> Any:
        """A small call, with some arguments changed."""
        return self.op(**{**self.small(), **changes})

    def compare(
        self, mode: str, arrays: Any, exact: bool, weighted: bool = False, **attrs: Any
    ) -> None:
        """Compares the output and all gradients with those of stock ops."""
        attrs = {**attrs, **self.given}
        output, grads, weights = reference.run(mode, self.fused(weighted, **attrs), arrays)
        expected = reference.run(mode, stock(weighted=weighted, **attrs), arrays)
        if exact:
            assert_same_bits(output, expected[0])
            for ours, theirs in zip(grads, expected[1], strict=True):
                assert_same_bits(ours, theirs)
            return
        max_norm = attrs.get("max_norm", -1.0)
        bounds = Bounds(
            _whole_table(arrays),
            arrays["places"],
            arrays["indices"][:, 0],
            arrays["weights"] if weighted else None,
            attrs.get("combiner", "mean"),
            None if max_norm < 0 else max_norm,
            len(output),
        )
        top_grad = loss_factors(output.shape)
        assert_within(output, expected[0], bounds.output())
        bound = bounds.table_gradient(top_grad)
        for k, (ours, theirs) in enumerate(zip(grads, expected[1], strict=True)):
            assert_within(ours, theirs, bound[arrays["permutation"][:, 0] == k])
        if weighted:
            assert_within(weights, expected[2], bounds.weights_gradient(top_grad))


def stock(combiner="mean", weighted=False, max_norm=-1.0, fill_empty_row=False, default_id=-1):
    """The same from stock ops; the number of rows must be known."""

    def build(_, **tensors):
        segments, count = tensors["indices"][:, 0], tf.cast(tensors["shape"][0], tf.int32)
        dtype = tensors["shard0"].dtype
        computed = tf.float32 if dtype in (tf.float16, tf.bfloat16) else dtype

        def result_of(shards):
            starts = tf.cumsum([tf.shape(shard)[0] for shard in shards], exclusive=True)
            permutation = tensors["permutation"]
            places = tf.gather(starts, permutation[:, 0]) + permutation[:, 1]
            rows = tf.gather(tf.concat(shards, 0), places)
            if weighted or max_norm >= 0:
                rows = tf.cast(rows, computed)
            if max_norm >= 0:
                rows = tf.clip_by_norm(rows, max_norm, axes=[1])
            if weighted:
                result = weighted_bags(rows, tensors, segments, count)
            else:
                name = {"sum": "Sum", "mean": "Mean", "sqrtn": "SqrtN"}[combiner]
                segment = getattr(tf.raw_ops, f"SparseSegment{name}WithNumSegments")
                arguments = {"indices": tensors["places"], "segment_ids": segments}
                result = segment(data=rows, **arguments, num_segments=count)
            result = tf.cast(result, dtype)
            if fill_empty_row and default_id < 0:
                result = tf.where(tensors["empty"][:, None], tf.zeros_like(result), result)
            return result

        return _differentiated(result_of, tensors)

    def weighted_bags(rows, tensors, segments, count):
        weights = tf.cast(tensors["weights"], rows.dtype)[:, None]
        total = tf.math.unsorted_segment_sum(
            tf.gather(rows, tensors["places"]) * weights, segments, count
        )
        if combiner == "sum":
            return total
        power = 1 if combiner == "mean" else 2
        divisor = tf.math.unsorted_segment_sum(weights**power, segments, count)
        divisor = divisor if combiner == "mean" else tf.sqrt(divisor)
        return tf.math.divide_no_nan(total, divisor)

    return build


def _differentiated(result_of, tensors, row_count="dense_shape"):
    shards = [tensors[name] for name in sorted(tensors) if name.startswith("shard")]
    with tf.GradientTape() as tape:
        for source in (*shards, tensors["weights"]):
            tape.watch(source)
        result = result_of(shards)
        flat = tf.reshape(result, [-1])
        factors = tf.cos(tf.range(tf.size(flat), dtype=tf.float32))
        loss = tf.reduce_sum(flat * tf.cast(factors, flat.dtype))
    *grads, weights = tape.gradient(loss, [*shards, tensors["weights"]])
    grads = [tf.convert_to_tensor(g) for g in grads]
    return result, grads, tf.zeros([0]) if weights is None else tf.convert_to_tensor(weights)


def _whole_table(arrays):
    shards = [arrays[name] for name in sorted(arrays) if name.startswith("shard")]
    return np.stack([shards[shard][place] for shard, place in arrays["permutation"]])


def _batch_v2(seed, lengths, dim, n_shards=1, dtype=np.float32, unique=30, weights_dtype=None):
    """The inputs of the op: filled, sorted entries and the gathered rows of unique ids."""
    rng = np.random.default_rng(seed)
    entries = reference.sparse(rng, lengths, unique, np.int32)
    shard = rng.integers(0, n_shards, unique)
    place = np.zeros(unique, np.int64)
    for k in range(n_shards):
        place[shard == k] = np.arange((shard == k).sum())
    arrays = {
        f"shard{k}": rng.standard_normal(((shard == k).sum(), dim)).astype(dtype)
        for k in range(n_shards)
    }
    return arrays | {
        "permutation": np.stack([shard, place], 1).astype(np.int32),
        "shape": entries["dense_shape"],
        "indices": entries["indices"],
        "empty": rng.random(len(lengths)) < 0.3,
        "places": entries["values"],
        "weights": entries["weights"].astype(weights_dtype or dtype),
    }


def _fused_v2(weighted=False, **attrs):
    def build(_, **tensors):
        def result_of(shards):
            return ops.fused_embedding_sparse_post_look_up_v2(
                emb_shards=shards,
                partition_permutation=tensors["permutation"],
                sp_dense_shape=tensors["shape"],
                indices_before_unique=tensors["indices"],
                is_row_empty=tensors["empty"],
                unique_idxs=tensors["places"],
                sp_weights_values=tensors["weights"],
                use_sparse_weights=weighted,
                **attrs,
            ).emb_vectors

        return _differentiated(result_of, tensors)

    return build


def _small_v2():
    return {
        "emb_shards": [tf.constant([[1.0, 2.0], [3.0, 4.0]])],
        "partition_permutation": tf.zeros([1, 2], tf.int32),
        "sp_dense_shape": tf.constant([3, 9], tf.int64),
        "indices_before_unique": tf.constant([[0, 0], [2, 0], [0, 1]], tf.int64),
        "is_row_empty": tf.constant([False, False, False]),
        "unique_idxs": tf.constant([0, 1, 1]),
        "sp_weights_values": tf.constant([1.0]),
    }


def _batch_v1(seed, lengths, dim, n_shards=1, dtype=np.float32, **kw):
    """As for the v2 op, each entry having a row of its own; shards keep the entries' order."""
    total = sum(lengths)
    arrays = _batch_v2(seed, lengths, dim, n_shards, dtype, unique=total, **kw)
    return arrays | {"places": np.arange(total, dtype=np.int32)}


def _fused_v1(weighted=False, fill_empty_row=True, **attrs):
    """A call of the op; flagged rows are always taken for filled ones."""

    def build(_, permutation, shape, indices, empty, weights, places, **shards):
        names = sorted(shards)
        entries = [tf.where(tf.equal(permutation[:, 0], k))[:, 0] for k in range(len(names))]
        flags = tf.concat([tf.cast(empty, tf.int32), tf.ones_like(places)], 0)

        def result_of(shards):
            return ops.fused_embedding_sparse_post_look_up(
                emb_shards=shards,
                partitioned_indices=[tf.gather(indices, part) for part in entries],
                sp_dense_shape=shape,
                row_empty_and_invalid_flags=flags,
                partitioned_values=entries,
                partitioned_weights=[tf.gather(weights, part) for part in entries],
                use_sparse_weights=weighted,
                **attrs,
            ).emb_vectors

        return _differentiated(result_of, {**shards, "weights": weights})

    return build


def _small_v1():
    return {
        "emb_shards": [tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.constant([[5.0, 6.0]])],
        "partitioned_indices": [
            tf.constant([[0, 0], [2, 0]], tf.int64),
            tf.constant([[0, 1]], tf.int64),
        ],
        "sp_dense_shape": tf.constant([3, 9], tf.int64),
        "row_empty_and_invalid_flags": tf.constant([0, 0, 0, 1, 1, 1]),
        "partitioned_values": [tf.constant([7, 8]), tf.constant([9])],
        "partitioned_weights": [tf.constant([1.0, 2.0]), tf.constant([3.0])],
    }


FAMILIES = {
    "v1": Family(
        ops.fused_embedding_sparse_post_look_up,
        _batch_v1,
        _fused_v1,
        _small_v1,
        {"fill_empty_row": True},
    ),
    "v2": Family(ops.fused_embedding_sparse_post_look_up_v2, _batch_v2, _fused_v2, _small_v2),
}
