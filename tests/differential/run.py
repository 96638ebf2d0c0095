"""Running a lookup on the numbers of a case, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable

from tests import reference, tables
from tests.differential.case import Case, split

Array = Any

#: A lookup as a case describes it: (case, table, ids, weights) -> result.
Lookup = Callable[[Case, Any, Any, Any], tf.Tensor]

_MAKERS: dict[str, Callable[[Case], Any]] = {
    "variable": lambda case: tf.Variable(case.arrays.table),
    "tensor": lambda case: tf.constant(case.arrays.table),
    "ref": lambda case: tables.ref(case.arrays.table),
    "variables": lambda case: [tf.Variable(shard) for shard in split(case)],
    "tensors": lambda case: [tf.constant(shard) for shard in split(case)],
    "mixed": lambda case: [
        (tf.constant if place % 2 else tf.Variable)(shard)
        for place, shard in enumerate(split(case))
    ],
    "sharded": lambda case: ShardedVariable([tf.Variable(shard) for shard in split(case)]),
    "partitioned": lambda case: tables.partitioned(case.arrays.table, case.shards),
    "fed": lambda case: None,
}


@dataclass(frozen=True)
class Outcome:
    """What a lookup gave.

    Attributes:
      output: [..., D].
      table: the gradient with respect to the table [rows, D].
      ids: of each shard, the ids of its gradient.
      weights: the gradient with respect to the weights [nnz].
    """

    output: Array
    table: Array
    ids: list[Array]
    weights: Array

    def to_bytes(self) -> tuple[bytes, ...]:
        """All bits."""
        return tuple(part.tobytes() for part in (self.output, self.table, *self.ids, self.weights))


def outcome(case: Case, lookup: Lookup, run: Callable[..., Any] = reference.run) -> Outcome:
    """Runs a lookup in the case's mode, with `run` as `reference.run` does.

    Raises:
      ValueError, TypeError, tf.errors.OpError: what the lookup raises.
    """

    def build(table: Any, top_grad: Any, weights: Any, **tensors: Any) -> Any:
        if table is None:
            table = [tensors.pop(f"shard{place}") for place in range(case.shards)]
        shards = reference.sources(table)
        with tf.GradientTape() as tape:
            sources = [*shards, *([weights] if case.trains_weights else [])]
            for source in sources if case.mode != "session" else ():
                tape.watch(source)
            ids = _ids(case, **tensors)
            result = lookup(case, table, ids, weights if case.weights else None)
            top_grad = tf.reshape(top_grad, tf.shape(result))
        if case.mode == "session":  # tapes do not watch a v1 graph's ref variables
            gradients = tf.compat.v1.gradients(result, sources, top_grad)
        else:
            gradients = tape.gradient(result, sources, top_grad)
        of_shards, of_weights = gradients[: len(shards)], [*gradients[len(shards) :], None][0]
        slices = [_slices(*pair) for pair in zip(of_shards, shards, strict=True)]
        of_weights = tf.zeros_like(weights) if of_weights is None else of_weights
        return result, slices, tf.convert_to_tensor(of_weights)

    make = lambda: _MAKERS[case.table](case)  # noqa: E731
    output, slices, weights = run(case.mode, build, _feeds(case), make)
    return Outcome(output, _joined(case, slices), [ids for ids, _ in slices], weights)


def _feeds(case: Case) -> dict[str, Array]:
    """The inputs of the lookup's graph."""
    arrays = case.arrays
    feeds = {"values": arrays.values, "weights": arrays.weights, "top_grad": arrays.top_grad}
    if case.ids == "ragged":
        feeds["row_splits"] = np.cumsum([0, *case.lengths])
    else:
        feeds |= {"indices": arrays.indices, "dense_shape": arrays.dense_shape}
    if case.table == "fed":
        feeds |= {f"shard{place}": shard for place, shard in enumerate(split(case))}
    return feeds


def _ids(case: Case, values: Any, **tensors: Any) -> Any:
    if case.ids == "ragged":
        return tf.RaggedTensor.from_row_splits(values, tensors["row_splits"], validate=False)
    indices, dense_shape = tensors["indices"], tensors["dense_shape"]
    if case.known_rank:
        rank = len(case.arrays.dense_shape)
        indices.set_shape([None, rank])
        dense_shape.set_shape([rank])
    return tf.SparseTensor(indices, values, dense_shape)


def like(ids: Any, weights: Any) -> Any:
    """Weights as a tensor of the ids' kind."""
    if isinstance(ids, tf.RaggedTensor):
        return ids.with_values(weights)
    return tf.SparseTensor(ids.indices, weights, ids.dense_shape)


def _slices(gradient: Any, shard: Any) -> tuple[Any, Any]:
    """(ids, rows) of a gradient."""
    if gradient is None:
        return tf.zeros([0], tf.int64), tf.zeros([0, *shard.shape[1:]], shard.dtype.base_dtype)
    if isinstance(gradient, tf.IndexedSlices):
        return gradient.indices, gradient.values
    return tf.range(tf.shape(gradient)[0]), gradient


def _joined(case: Case, slices: list[tuple[Array, Array]]) -> Array:
    """The gradients of the shards as that of the whole table."""
    dense = [np.zeros_like(shard) for shard in split(case)]
    for gradient, (ids, rows) in zip(dense, slices, strict=True):
        np.add.at(gradient, ids, rows)
    return tables.joined(dense, case.strategy)
