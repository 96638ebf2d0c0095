"""What the op that hashes values computes: by stock ops."""

from __future__ import annotations

import tensorflow as tf

from fusion.ops.bags.stock import Attrs, Tensors


def grouped_hash(attrs: Attrs, inputs: Tensors) -> Tensors:
    """The definition, see `stock_definitions`."""
    results = []
    for index, values in enumerate(inputs):
        text = values if values.dtype == tf.string else tf.strings.as_string(values)
        buckets, kind = attrs["num_buckets"][index], attrs["hashes"][index]
        if kind == "fast":
            results.append(tf.strings.to_hash_bucket_fast(text, buckets))
        elif kind == "legacy":
            results.append(tf.raw_ops.StringToHashBucket(string_tensor=text, num_buckets=buckets))
        else:
            key = attrs["keys"][2 * index : 2 * index + 2]
            results.append(tf.strings.to_hash_bucket_strong(text, buckets, key))
    return results
