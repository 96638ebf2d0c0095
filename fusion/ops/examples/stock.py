"""What the ops that parse Examples compute: by stock ops."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tensorflow as tf

from fusion.ops.bags.stock import Attrs, Tensors


def _keys(keys: Sequence[str]) -> tf.Tensor:
    texts = [key.encode(errors="surrogateescape") for key in keys]
    return tf.constant(texts, tf.string, [len(texts)])


def _shapes(ranks: Sequence[int], dims: Sequence[int]) -> list[list[int | None]]:
    rest = iter(dims)
    sizes = ([next(rest) for _ in range(rank)] for rank in ranks)
    return [[None if size < 0 else size for size in shape] for shape in sizes]


def _defaults(
    dtypes: Sequence[Any], required: Sequence[bool], defaults: Tensors
) -> list[tf.Tensor]:
    """Returns a default for each dense feature; one without elements is none."""
    rest = iter(defaults)
    dense = zip(dtypes, required, strict=True)
    return [
        tf.constant([], dtype, [0]) if is_required else next(rest) for dtype, is_required in dense
    ]


def parse_example(attrs: Attrs, inputs: Tensors) -> Tensors:
    """The definition, see `stock_definitions`."""
    serialized, names, *defaults = inputs
    kinds = {"sparse": "sparse_types", "dense": "Tdense", "ragged": "ragged_value_types"}
    buckets = {kind: attrs[f"{kind}_buckets"] for kind in kinds}
    dtypes = {
        kind: [
            tf.string if count else dtype for dtype, count in zip(attrs[key], counts, strict=True)
        ]
        for (kind, key), counts in zip(kinds.items(), buckets.values(), strict=True)
    }
    result = tf.raw_ops.ParseExampleV2(
        serialized=serialized,
        names=names,
        sparse_keys=_keys(attrs["sparse_keys"]),
        dense_keys=_keys(attrs["dense_keys"]),
        ragged_keys=_keys(attrs["ragged_keys"]),
        dense_defaults=_defaults(dtypes["dense"], attrs["required"], defaults),
        num_sparse=attrs["num_sparse"],
        sparse_types=dtypes["sparse"],
        ragged_value_types=dtypes["ragged"],
        ragged_split_types=attrs["ragged_split_types"],
        dense_shapes=_shapes(attrs["dense_ranks"], attrs["dense_dims"]),
    )
    values = {
        kind: [_hashed(*one) for one in zip(getattr(result, f"{kind}_values"), counts, strict=True)]
        for kind, counts in buckets.items()
    }
    return [
        *result.sparse_indices,
        *values["sparse"],
        *result.sparse_shapes,
        *_side_by_side(values["dense"], attrs, tf.shape(serialized)),
        *values["ragged"],
        *result.ragged_row_splits,
    ]


def _side_by_side(rows: Tensors, attrs: Attrs, batch: tf.Tensor) -> Tensors:
    """Returns the outputs of dense features; `batch` is the shape of the Examples."""
    shapes, numbers = _shapes(attrs["dense_ranks"], attrs["dense_dims"]), attrs["dense_outputs"]
    outputs: list[dict[int, tf.Tensor]] = [{} for _ in attrs["Tvalues"]]
    each = zip(rows, numbers, shapes, attrs["dense_columns"], strict=True)
    for tensor, number, shape, column in each:
        is_joined = numbers.count(number) > 1
        outputs[number][column] = _flat(tensor, batch, shape) if is_joined else tensor
    parts = ([one[column] for column in sorted(one)] for one in outputs)
    return [one[0] if len(one) == 1 else tf.concat(one, -1) for one in parts]


def _flat(rows: tf.Tensor, batch: tf.Tensor, shape: Sequence[int | None]) -> tf.Tensor:
    return tf.reshape(rows, tf.concat([batch, [prod(size or 0 for size in shape)]], 0))


def _hashed(values: tf.Tensor, buckets: int) -> tf.Tensor:
    return tf.strings.to_hash_bucket_fast(values, buckets) if buckets else values


def parse_sequence_example(attrs: Attrs, inputs: Tensors) -> Tensors:
    """The definition, see `stock_definitions`."""
    serialized, names, *defaults = inputs
    required = attrs["feature_list_required"]
    list_shapes = _shapes(attrs["feature_list_dense_ranks"], attrs["feature_list_dense_dims"])
    result = tf.raw_ops.ParseSequenceExampleV2(
        serialized=serialized,
        debug_name=names,
        context_sparse_keys=_keys(attrs["context_sparse_keys"]),
        context_dense_keys=_keys(attrs["context_dense_keys"]),
        context_ragged_keys=_keys(attrs["context_ragged_keys"]),
        feature_list_sparse_keys=_keys(attrs["feature_list_sparse_keys"]),
        feature_list_dense_keys=_keys(attrs["feature_list_dense_keys"]),
        feature_list_ragged_keys=_keys(attrs["feature_list_ragged_keys"]),
        feature_list_dense_missing_assumed_empty=tf.constant(
            [not is_required for is_required in required], tf.bool, [len(required)]
        ),
        context_dense_defaults=_defaults(
            attrs["Tcontext_dense"], attrs["context_required"], defaults
        ),
        Ncontext_sparse=attrs["num_context_sparse"],
        context_sparse_types=attrs["context_sparse_types"],
        context_ragged_value_types=attrs["context_ragged_value_types"],
        context_ragged_split_types=attrs["context_ragged_split_types"],
        context_dense_shapes=_shapes(attrs["context_dense_ranks"], attrs["context_dense_dims"]),
        Nfeature_list_sparse=attrs["num_feature_list_sparse"],
        Nfeature_list_dense=attrs["num_feature_list_dense"],
        feature_list_dense_types=attrs["Tfeature_list_dense"],
        feature_list_sparse_types=attrs["feature_list_sparse_types"],
        feature_list_ragged_value_types=attrs["feature_list_ragged_value_types"],
        feature_list_ragged_split_types=attrs["feature_list_ragged_split_types"],
        feature_list_dense_shapes=[shape[1:] for shape in list_shapes],
    )
    return [tensor for tensors in result for tensor in tensors]
