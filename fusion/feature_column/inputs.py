"""What a layer of feature columns takes: a dict of tensors, lists also as values and offsets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from fusion.runtime.tensorflow.private import FeatureColumn, control_flow_util

#: Suffixes of the two tensors that a list feature may be given as.
VALUES, OFFSETS = "__values", "__offsets"


def walk(column: Any) -> Iterator[Any]:
    """A column, what it is made from, and so on down to the names of features (str)."""
    yield column
    if isinstance(column, FeatureColumn):
        for parent in column.parents:
            yield from walk(parent)


def feature_names(columns: Iterable[Any]) -> tuple[str, ...]:
    """Names of the features that columns are made from, sorted."""
    parts = (part for column in columns for part in walk(column))
    return tuple(sorted({part for part in parts if isinstance(part, str)}))


def check_names(features: Any, names: Iterable[str]) -> None:
    """Checks that each feature is given once, whatever it is given as.

    Raises:
      ValueError: `features` is no dict; a feature is missing, given twice or by half.
    """
    if not isinstance(features, Mapping):
        raise ValueError(
            f"features must be a dict of tensors by name, got {type(features).__name__}"
        )
    for name in names:
        pair = [name + part for part in (VALUES, OFFSETS)]
        parts = [part for part in pair if part in features]
        if name in features and parts == pair:
            raise ValueError(f"feature {name!r} is given twice: as itself and as {pair}")
        if name in features or parts == pair:
            continue
        have = sorted(map(str, features))
        if parts:
            (missing,) = set(pair) - set(parts)
            raise ValueError(f"feature {name!r} has {parts[0]!r} but no {missing!r}, given: {have}")
        raise ValueError(f"feature {name!r} is missing, given: {have}")


def check_not_compiled(layer_name: str) -> None:
    """Checks that no layer is called where XLA compiles it.

    Raises:
      ValueError: it is.
    """
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise ValueError(
            f"layer {layer_name!r} cannot be compiled by XLA: its ops have results of unknown "
            "shape. Leave out jit_compile=True"
        )


def batch_size(shapes: Mapping[str, Any], names: Iterable[str]) -> int | None:
    """The static number of rows, from the shapes of what is given; None if it is not known."""
    for name in names:
        if name in shapes:
            return shapes[name][0]
        if len(shapes[name + OFFSETS]) == 2:
            return shapes[name + OFFSETS][0]
    return None


def as_tensors(
    features: Mapping[str, Any], names: Iterable[str]
) -> dict[str, tf.Tensor | tf.SparseTensor | tf.RaggedTensor]:
    """The named features, lists as ragged tensors.

    A feature `name` is given as a Tensor, a SparseTensor or a RaggedTensor of that name, or as
    `<name>__values` [n] or [n, 1] with `<name>__offsets`, the index in values where each row
    starts: int32 or int64 [B, 1], or [B], or [B + 1] with n at its end. [B] and [B + 1] are
    distinguished by the number of rows of the other features; without any, they are [B].

    Raises:
      ValueError: what `check_names` says; shapes or dtypes that no pair can have.
      tf.errors.InvalidArgumentError: at run time, offsets that are no row starts.
    """
    check_names(features, names)
    single = {name: _as_tensor(features[name]) for name in names if name in features}
    lists = {
        name: (features[name + VALUES], features[name + OFFSETS])
        for name in names
        if name not in single
    }
    for name, (values, offsets) in lists.items():
        vector = _as_vector(values, name + VALUES, "[n] or [n, 1]")
        lists[name] = vector, _converted(offsets, name + OFFSETS)
    if not lists:
        return single
    rows = _rows(single, (offsets for _, offsets in lists.values()))
    return single | {
        name: _as_ragged(name, values, offsets, rows) for name, (values, offsets) in lists.items()
    }


def as_stock(feature: tf.Tensor | tf.SparseTensor | tf.RaggedTensor) -> tf.Tensor | tf.SparseTensor:
    """A feature as stock columns take it, which is not ragged."""
    return feature.to_sparse() if isinstance(feature, tf.RaggedTensor) else feature


def _as_tensor(feature: Any) -> tf.Tensor | tf.SparseTensor | tf.RaggedTensor:
    if isinstance(feature, tf.SparseTensor | tf.RaggedTensor):
        return feature
    return tf.convert_to_tensor(feature)


def _converted(tensor: Any, name: str) -> tf.Tensor:
    if isinstance(tensor, tf.SparseTensor | tf.RaggedTensor):
        raise ValueError(f"{name!r} must be a Tensor, got {type(tensor).__name__}")
    return tf.convert_to_tensor(tensor)


def _as_vector(tensor: Any, name: str, shapes: str) -> tf.Tensor:
    """[n], from [n] or [n, 1]; `shapes` are those that the tensor may have, for errors."""
    tensor = _converted(tensor, name)
    shape = tensor.shape
    if shape.rank == 1:
        return tensor
    if shape.rank is None or not shape.is_compatible_with([None, 1]):
        raise ValueError(f"{name!r} must have shape {shapes}, got {shape}")
    return tf.reshape(tf.ensure_shape(tensor, [None, 1]), [-1])


def _rows(single: Mapping[str, Any], offsets: Iterable[tf.Tensor]) -> tf.Tensor | None:
    """The number of rows, int64 [], or None if it only depends on offsets [?]."""
    for name, tensor in single.items():
        if isinstance(tensor, tf.SparseTensor):
            return tensor.dense_shape[0]
        if isinstance(tensor, tf.RaggedTensor):
            return tensor.nrows(tf.int64)
        if tensor.shape.rank == 0:
            raise ValueError(f"feature {name!r} must have a row for each example, got a scalar")
        return tf.shape(tensor, out_type=tf.int64)[0]
    for tensor in offsets:
        if tensor.shape.rank == 2:
            return tf.shape(tensor, out_type=tf.int64)[0]
    return None


def _as_ragged(
    name: str, values: tf.Tensor, offsets: tf.Tensor, rows: tf.Tensor | None
) -> tf.RaggedTensor:
    """[rows, length of each], from values [n] and row starts."""
    if not offsets.dtype.is_integer:
        raise ValueError(f"{name + OFFSETS!r} must be integers, got {offsets.dtype.name}")
    starts = tf.cast(_as_vector(offsets, name + OFFSETS, "[B], [B, 1] or [B + 1]"), tf.int64)
    count, starts_count = tf.size(values, tf.int64), tf.size(starts, tf.int64)
    rows = starts_count if rows is None else rows
    ends = tf.concat([starts, [count]], 0)[: rows + 1]
    rising = (ends[0] == 0) & (ends[-1] == count) & tf.reduce_all(ends[1:] >= ends[:-1])
    # Without quotes, which TensorFlow would escape.
    subject = f"feature {name}: {name + OFFSETS} must"
    checks = [
        tf.debugging.Assert(
            (starts_count == rows) | (starts_count == rows + 1),
            [f"{subject} have a start per row, or one more. Rows, starts:", rows, starts_count],
        ),
        tf.debugging.Assert(
            rising,
            [f"{subject} rise from 0 to the number of values. Values, starts:", count, starts],
        ),
    ]
    # None in eager mode, where a failed check has raised.
    with tf.control_dependencies([check for check in checks if check is not None]):
        splits = tf.identity(ends)
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False)
