"""Arguments of embedding variables, checked."""

from __future__ import annotations

import operator
from typing import Any

import tensorflow as tf

from fusion.tables.frozen import fingerprints

#: Dtypes of keys.
KEY_DTYPES = (tf.int64, tf.int32, tf.string)


def integer(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """An argument that is an integer.

    Args:
      name: of the argument.
      value: what was given.
      least, most: what it may be; None for any that is large.

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
        found = tf.as_dtype(dtype)
    except TypeError:
        raise TypeError(f"{name} must be one of {allowed}, got {dtype!r}") from None
    if found.name not in allowed:
        raise TypeError(f"{name} must be one of {allowed}, got {found.name}")
    return found


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
