"""Initial rows of sharded tables, made in blocks, so that no replica has all of them at once.

Blocks begin at the same rows for any number of replicas, so that the rows are the same. A replica
makes each block that has rows of its own, and takes these.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from fusion.distribute.layout import BLOCK_ROWS, positions

#: Makes the rows of a block from a first one up to another, [n, D].
MakeBlock = Callable[[int, int], tf.Tensor]

#: Initializers of these packages and classes, whose elements are independent of the shape.
_PACKAGES = ("keras", "tf_keras", "tensorflow")
_CLASSES = ("Zeros", "Ones", "Constant", "RandomUniform", "RandomNormal", "TruncatedNormal")


def rows_of_blocks(
    make_block: MakeBlock, dimension: int, dtype: tf.DType, rows: range
) -> tf.Tensor:
    """The rows of these numbers, [n, D].

    Args:
      make_block: makes those of the table.
      dimension, dtype: of the table.
      rows: their numbers, up to the table's end.
    """
    # Each block is written where it belongs: to join blocks takes all of their memory twice.
    result = tf.raw_ops.Empty(shape=[len(rows), dimension], dtype=dtype)
    for first in range(0, rows.stop, BLOCK_ROWS):
        stop = min(first + BLOCK_ROWS, rows.stop)
        if inside := positions(rows, range(first, stop)):
            own = make_block(first, stop)[rows[inside.start] - first :: rows.step]
            numbers = tf.range(inside.start, inside.stop)
            result = tf.raw_ops.InplaceUpdate(x=result, i=numbers, v=own)
    return result


def block_maker(
    initializer: Any, rows: int, dimension: int, dtype: tf.DType, seed: int
) -> MakeBlock:
    """The function that makes the blocks of a table; for the arguments see `ShardedTable`.

    Raises:
      TypeError: a name of an initializer.
      ValueError: an array of another shape; when a block is made, an initializer that returns one.
    """
    if initializer is None:
        return functools.partial(_truncated_normal, dimension, dtype, seed)
    if isinstance(initializer, str):
        raise TypeError(f"initializer must be an array or be called, got {initializer!r}")
    if _is_of_elements(initializer):
        return functools.partial(_elements, initializer, dimension, dtype, seed)
    if _makes_parts(initializer):
        return functools.partial(_part, initializer, rows, dimension, dtype)
    shape = [rows, dimension]
    if not callable(initializer):
        values = _checked(initializer, shape)
        return lambda first, stop: tf.cast(values[first:stop], dtype)
    # Made when it is needed: a process may have no rows.
    whole = functools.cache(lambda: _checked(initializer(shape, dtype=dtype), shape))
    return lambda first, stop: tf.cast(whole()[first:stop], dtype)


def _truncated_normal(
    dimension: int, dtype: tf.DType, seed: int, first: int, stop: int
) -> tf.Tensor:
    """A block of the default initializer."""
    seeds, deviation = [seed, first // BLOCK_ROWS], 1 / math.sqrt(dimension)
    shape = [stop - first, dimension]
    return tf.random.stateless_truncated_normal(shape, seeds, stddev=deviation, dtype=dtype)


def _is_of_elements(initializer: Any) -> bool:
    """Whether an initializer is one of those, with a number as its seed or none."""
    initializer_class = type(initializer)
    return (
        initializer_class.__module__.split(".")[0] in _PACKAGES
        and initializer_class.__name__ in _CLASSES
        and np.ndim(getattr(initializer, "value", 0)) == 0
        and isinstance(initializer.get_config().get("seed"), int | None)
    )


def _elements(
    initializer: Any, dimension: int, dtype: tf.DType, seed: int, first: int, stop: int
) -> tf.Tensor:
    """A block of the rows of an initializer; each block has its own seed.

    That of the first block is the initializer's: a table of one block has the rows that a variable
    would have.
    """
    config = initializer.get_config()
    if "seed" in config and (first or config["seed"] is None):
        words = [(seed if config["seed"] is None else config["seed"]) % 2**64, first]
        (config["seed"],) = map(int, np.random.SeedSequence(words).generate_state(1))
        initializer = type(initializer).from_config(config)
    return tf.cast(initializer([stop - first, dimension], dtype=dtype), dtype)


def _makes_parts(initializer: Any) -> bool:
    """Whether an initializer has the arguments by which TensorFlow asks for part of a variable."""
    try:
        parameters = inspect.signature(initializer).parameters
    except (TypeError, ValueError):  # not callable, or no signature is known
        return False
    return parameters.keys() >= {"partition_shape", "partition_offset"}


def _part(
    initializer: Any, rows: int, dimension: int, dtype: tf.DType, first: int, stop: int
) -> tf.Tensor:
    """A block as a part of a variable."""
    shape = [stop - first, dimension]
    block = initializer(
        [rows, dimension], dtype=dtype, partition_shape=shape, partition_offset=[first, 0]
    )
    return tf.cast(_checked(block, shape), dtype)


def _checked(values: Any, shape: list[int]) -> Any:
    """Values of a shape, an array or a Tensor."""
    if not isinstance(values, np.ndarray):  # that of a file may be larger than memory
        values = tf.convert_to_tensor(values)
    if values.shape != tuple(shape):
        raise ValueError(f"initializer must give the shape {shape}, got {tuple(values.shape)}")
    return values
