"""What the op that makes ids computes: by stock ops."""

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
