"""What the ops that make ids compute: by stock ops."""

from __future__ import annotations

import tensorflow as tf

from fusion.ops.bags.stock import Attrs, NoDefinition, Tensors


def grouped_ids(attrs: Attrs, inputs: Tensors) -> Tensors:
    """The definition, see `stock_definitions`.

    Raises:
        NoDefinition: ids are looked up in vocabularies: stock ops do not read the index.
    """
    if attrs["num_indices"]:
        raise NoDefinition("vocabularies are in an index, which stock ops do not read")
    results = []
    for index, values in enumerate(inputs):
        buckets, kind = attrs["num_buckets"][index], attrs["hashes"][index]
        if kind == "remainder":
            rests = tf.math.floormod(values, tf.constant(buckets, values.dtype))
            results.append(tf.cast(rests, tf.int64))
            continue
        text = values if values.dtype == tf.string else tf.strings.as_string(values)
        if kind == "fast":
            results.append(tf.strings.to_hash_bucket_fast(text, buckets))
        elif kind == "legacy":
            results.append(tf.raw_ops.StringToHashBucket(string_tensor=text, num_buckets=buckets))
        else:
            key = attrs["keys"][2 * index : 2 * index + 2]
            results.append(tf.strings.to_hash_bucket_strong(text, buckets, key))
    return results


def grouped_cross(attrs: Attrs, inputs: Tensors) -> Tensors:
    """The definition, see `stock_definitions`."""
    values = inputs[: len(attrs["feature_forms"])]
    rest, count = inputs[len(values) :], attrs["num_sparse"]
    indices, shapes = iter(rest[:count]), iter(rest[count:])
    results = []
    ignored = attrs["ignored"] or [0] * len(values)
    features = iter(zip(values, attrs["feature_forms"], ignored, strict=True))
    for index, count in enumerate(attrs["feature_counts"]):
        own = [next(features) for _ in range(count)]
        sparse = [
            _masked(value, number) if form == "masked" else (next(indices), value, next(shapes))
            for value, form, number in own
            if form in ("sparse", "masked")
        ]
        dense = [tf.expand_dims(value, 1) if form == "vector" else value for value, form, _ in own]
        dense = dense[len(sparse) :]
        crossed = _cross(attrs, index, sparse, [_widened(value) for value in dense])
        results.append(_in_form(attrs["forms"][index], *crossed))
    return [result for part in zip(*results, strict=True) for result in part]


def _widened(values: tf.Tensor) -> tf.Tensor:
    return values if values.dtype == tf.string else tf.cast(values, tf.int64)


def _masked(matrix: tf.Tensor, ignored: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The elements of a matrix that are not ignored: indices, values and dense shape."""
    none = "" if matrix.dtype == tf.string else tf.constant(ignored, matrix.dtype)
    indices = tf.where(tf.not_equal(matrix, none))
    return indices, tf.gather_nd(matrix, indices), tf.shape(matrix, tf.int64)


def _cross(
    attrs: Attrs, index: int, sparse: list[tuple[tf.Tensor, ...]], dense: list[tf.Tensor]
) -> tuple[tf.Tensor, ...]:
    """Indices, ids and dense shape of a cross."""
    indices, values, shapes = ([one[k] for one in sparse] for k in range(3))
    inputs = {"indices": indices, "values": [_widened(one) for one in values], "shapes": shapes}
    inputs |= {"dense_inputs": dense}
    buckets, kind = attrs["num_buckets"][index], attrs["hashes"][index]
    key = attrs["keys"][2 * index : 2 * index + 2]
    if kind != "seeded":
        result = tf.raw_ops.SparseCrossHashed(
            **inputs,
            num_buckets=tf.constant(buckets, tf.int64),
            strong_hash=tf.constant(kind == "strong"),
            salt=tf.constant(key, tf.int64),
        )
        return tuple(result)
    is_text = all(one.dtype == tf.string for one in (*values, *dense))
    result = tf.raw_ops.SparseCross(
        **inputs,
        hashed_output=True,
        num_buckets=buckets,
        hash_key=key[0],
        out_type=tf.int64,
        internal_type=tf.string if is_text else tf.int64,
    )
    return tuple(result)


def _in_form(
    form: str, indices: tf.Tensor, ids: tf.Tensor, shape: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    """Ids, rows and dense shape, as the fused op has them."""
    if form == "matrix":
        return tf.reshape(ids, shape), tf.zeros([0], tf.int64), shape
    if form == "row_splits":
        counts = tf.math.unsorted_segment_sum(tf.ones_like(ids), indices[:, 0], shape[0])
        return ids, tf.concat([[0], tf.cumsum(counts)], 0), shape
    return ids, indices, shape
