"""Arguments of embedding variables, checked."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike, NDArray

#: Dtypes of keys.
KEY_DTYPES = (tf.int64, tf.int32, tf.string)


def integer(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """An argument that is an integer.

    Args:
      name: of the argument.
      value: the argument.
      least, most: its bounds; None for no upper one.

    Raises:
      TypeError: it is no integer.
      ValueError: it is too small or too large.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    if most is not None and number > most:
        raise ValueError(f"{name} must be at most {most}, got {number}")
    return number


def one_of(name: str, dtype: Any, allowed: tuple[str, ...]) -> tf.DType:
    """A dtype.

    Raises:
      TypeError: it is none of these names.
    """
    try:
        result = tf.as_dtype(dtype)
    except TypeError:
        raise TypeError(f"{name} must be one of {allowed}, got {dtype!r}") from None
    if result.name not in allowed:
        raise TypeError(f"{name} must be one of {allowed}, got {result.name}")
    return result


def key_array(keys: ArrayLike, dtype: Any, what: str) -> NDArray[Any]:
    """Keys of any integer dtype as an array of another one; none of them changes its value.

    Args:
      keys: integers, of any shape.
      dtype: of the array, int32 or int64.
      what: the argument, for errors.

    Raises:
      TypeError: they are no integers; bools are none.
      ValueError: one is too small or too large for the dtype.
    """
    array, wanted = np.asarray(keys), np.dtype(dtype)
    if array.size == 0:
        return array.astype(wanted)
    if array.dtype.kind not in "iu":
        first = array.reshape(-1)[0]
        raise TypeError(f"{what} must be {wanted.name}, got {array.dtype.name}: {first!r}")
    if not np.can_cast(array.dtype, wanted):
        limits = np.iinfo(wanted)
        for extreme in (int(array.min()), int(array.max())):
            if not limits.min <= extreme <= limits.max:
                raise ValueError(f"{what} must be {wanted.name}, got {extreme}")
    return array.astype(wanted, copy=False)


def is_key_dtype(dtype: tf.DType) -> bool:
    """Whether all integers of a dtype are keys, which are int64."""
    return bool(dtype.is_integer) and dtype != tf.uint64


def key_tensor(keys: Any, key_dtype: tf.DType, name: str) -> tf.Tensor:
    """Keys as a tensor: those of a tensor have its dtype, all others that of the keys.

    TensorFlow makes integers of arrays of anything, and lets large ones wrap around.

    Args:
      keys: a tensor, or what `key_array` takes, or strings.
      key_dtype: int64, int32 or string.
      name: of the table.

    Raises:
      TypeError, ValueError: as `key_array`; or they are no strings.
    """
    has_tensors = isinstance(keys, list | tuple) and any(map(tf.is_tensor, tf.nest.flatten(keys)))
    if tf.is_tensor(keys) or has_tensors:
        return tf.convert_to_tensor(keys)
    what = f"keys of {name}"
    if key_dtype != tf.string:
        return tf.convert_to_tensor(key_array(keys, key_dtype.as_numpy_dtype, what))
    if hasattr(keys, "dtype") and np.asarray(keys).dtype.kind not in "SUOT":
        raise TypeError(f"{what} must be string, got {keys.dtype}")
    return tf.convert_to_tensor(keys, tf.string)


def fingerprints(keys: tf.Tensor) -> tf.Tensor:
    """What stands for string keys: int64 of their shape, 63 bits of a fingerprint."""
    return tf.strings.to_hash_bucket_fast(keys, 2**63 - 1)


def as_ids(keys: tf.Tensor, key_dtype: tf.DType, name: str) -> tf.Tensor:
    """Keys as an index has them, int32 or int64.

    Raises:
      TypeError: keys of another dtype than `key_dtype`, those of a variable of this name.
    """
    is_string = keys.dtype == tf.string
    if is_string != (key_dtype == tf.string) or keys.dtype not in KEY_DTYPES:
        raise TypeError(f"keys of {name} must be {key_dtype.name}, got {keys.dtype.name}")
    return fingerprints(keys) if is_string else keys


def module_name(name: str) -> str:
    """A name that `tf.Module` takes, which are identifiers."""
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in f"{name}") or "_"


def check_eager(what: str) -> None:
    """Checks that there is no graph.

    Raises:
      RuntimeError: there is one.
    """
    if not tf.executing_eagerly():
        raise RuntimeError(f"{what} runs eagerly, and not in a graph")
