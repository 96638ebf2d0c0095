"""What the op that parses Examples computes: by a stock op."""

from __future__ import annotations

import tensorflow as tf

from fusion.ops.bags.stock import Attrs, Tensors


def parse_example(attrs: Attrs, inputs: Tensors) -> Tensors:
    """The definition, see `stock_definitions`."""
    serialized, names, *defaults = inputs
    shapes, first = [], 0
    for rank in attrs["dense_ranks"]:
        sizes = attrs["dense_dims"][first : first + rank]
        shapes.append([None if size < 0 else size for size in sizes])
        first += rank
    given, dense = iter(defaults), zip(attrs["Tdense"], attrs["required"], strict=True)
    keys = (
        [key.encode(errors="surrogateescape") for key in attrs[name]]
        for name in ("sparse_keys", "dense_keys", "ragged_keys")
    )
    sparse_keys, dense_keys, ragged_keys = keys
    result = tf.raw_ops.ParseExampleV2(
        serialized=serialized,
        names=names,
        sparse_keys=tf.constant(sparse_keys, tf.string, [len(sparse_keys)]),
        dense_keys=tf.constant(dense_keys, tf.string, [len(dense_keys)]),
        ragged_keys=tf.constant(ragged_keys, tf.string, [len(ragged_keys)]),
        dense_defaults=[
            tf.zeros([0], dtype) if required else next(given) for dtype, required in dense
        ],
        num_sparse=attrs["num_sparse"],
        sparse_types=attrs["sparse_types"],
        ragged_value_types=attrs["ragged_value_types"],
        ragged_split_types=attrs["ragged_split_types"],
        dense_shapes=shapes,
    )
    return [tensor for tensors in result for tensor in tensors]
