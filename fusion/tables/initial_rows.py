"""What the rows of an embedding variable begin with."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from fusion import ops
from fusion.runtime.tensorflow.private import colocate_with

#: Rows that an initializer makes, from which the elements of new rows are taken.
SAMPLE_COUNT = 4096

#: The classes of initializers, of TensorFlow and of both Keras, that give equal rows.
_EQUAL_ROWS = frozenset({"Zeros", "Ones", "Constant"})

#: More than enough for a row of an index, in bytes.
_INDEX_ROW_BYTES = 96


class ZerosOnDemand:
    """An initializer of zeros that take memory when they are written."""

    #: Identifies it among initializers: a second copy of this package has a class of its own.
    is_on_demand = True

    def __call__(self, shape: Any, dtype: Any = None, **_: Any) -> tf.Tensor:
        """Zeros of a shape [rows, D], float32 if no dtype is given."""
        dtype = tf.as_dtype(dtype or tf.float32)
        zeros = ops.zeros_on_demand(shape=tf.cast(shape, tf.int64), T=dtype)
        zeros.set_shape(tf.TensorShape(shape))
        return zeros

    def get_config(self) -> dict[str, Any]:
        """The arguments: none."""
        return {}


class DefaultInitializer:
    """That of embedding columns, truncated normal of deviation 1/sqrt(D), for a seed."""

    def __init__(self, dimension: int, seed: int) -> None:
        self._deviation, self._seed = 1 / math.sqrt(dimension), seed

    def __call__(self, shape: Any, dtype: Any = tf.float32) -> tf.Tensor:
        """Random numbers, always the same of a seed."""
        return tf.random.stateless_truncated_normal(
            shape, [self._seed, 0], stddev=self._deviation, dtype=dtype
        )


def initial_rows(
    initializer: Callable[..., Any], default: Any, dimension: int, dtype: tf.DType, count: int
) -> tf.Tensor:
    """The default row, then the rows that the elements of new ones are taken from.

    Args:
      initializer: called with a shape [count, D], or [1, D] if all rows are equal.
      default: a number, or D of them.
      dimension, dtype: of the rows.
      count: how many rows the initializer makes.

    Returns:
      [1 + count, D]
    """
    if type(initializer).__name__ in _EQUAL_ROWS:
        count = 1
    samples = tf.cast(initializer([count, dimension], dtype=dtype), dtype)
    if not samples.shape.is_compatible_with([count, dimension]):
        raise ValueError(
            f"initializer must give the shape {[count, dimension]} that it is called with, got "
            f"{samples.shape}"
        )
    first = tf.cast(tf.broadcast_to(default, [1, dimension]), dtype)
    return tf.concat([first, tf.reshape(samples, [count, dimension])], 0)


def forget_at_initialization(variable: Any) -> None:
    """Has the initializer of a variable in a graph create it again, even if it is in use.

    TensorFlow assigns to a variable that had sparse updates by copying the value, the whole
    capacity of it. So the variable is destroyed before.
    """
    if tf.executing_eagerly():
        return
    assign = getattr(variable, "_primary", variable).initializer  # of a strategy's the one
    if assign is None or assign.type != "AssignVariableOp":
        return
    handle = assign.inputs[0]
    with assign.graph.as_default(), tf.control_dependencies(None), colocate_with(handle.op):
        destroyed = tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)
    assign._add_control_input(destroyed)


def checked_default(default: Any, dimension: int) -> Any:
    """A default value as numbers, 0 for None.

    Raises:
      ValueError: it is neither a number nor D of them.
    """
    try:
        numbers = np.asarray(0.0 if default is None else default, np.float64)
    except (TypeError, ValueError):
        numbers = np.full(1, np.nan)
    if numbers.shape not in ((), (dimension,)) or not np.isfinite(numbers).all():
        raise ValueError(
            f"default_value must be a finite number or {dimension} of them, got {default!r}"
        )
    return numbers


def max_rows(row_bytes: int) -> int:
    """As many rows as memory may hold.

    Their memory is not taken before they are used; but the system refuses to promise more at once
    than it has.
    """
    return min(memory_bytes() // max(row_bytes, _INDEX_ROW_BYTES), 2**31 - 2)


def takes_too_much(capacity: int, row_bytes: int) -> bool:
    """Whether rows of keys take too much memory if all that there may be are read or written.

    That is a quarter of the machine's, or what a default capacity makes of it.
    """
    return capacity >= max_rows(row_bytes) or capacity * row_bytes > memory_bytes() // 4


@functools.cache
def memory_bytes() -> int:
    """The memory of this machine."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        return 1024 * int(next(line for line in lines if line.startswith("MemTotal")).split()[1])
