"""What stock TensorFlow gives is computed once for all that is compared with it."""

from __future__ import annotations

import dataclasses
import types
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

R = TypeVar("R")

#: Tests that share a result follow one another, so that few have to be remembered.
_MOST = 64
_results: OrderedDict[Any, Any] = OrderedDict()


def computed_once(function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """Returns `function(*args, **kwargs)`, which nobody may change.

    Arguments are the same if their types and contents are, and functions of tests if their code is
    and what they refer to outside of modules. What is neither is the same as itself only.
    """
    key = identity((function, args, kwargs))
    if key not in _results:
        _results[key] = function(*args, **kwargs)
    _results.move_to_end(key)
    while len(_results) > _MOST:
        _results.popitem(last=False)
    return _results[key]


def identity(value: Any) -> Any:
    """What can be hashed, and is equal for values that are the same."""
    if isinstance(value, np.ndarray):
        content = value.tolist() if value.dtype == object else value.tobytes()
        return np.ndarray, str(value.dtype), value.shape, identity(content)
    if isinstance(value, tf.Tensor) and hasattr(value, "numpy"):
        return tf.Tensor, identity(value.numpy())
    if isinstance(value, tf.SparseTensor | tf.RaggedTensor):
        return type(value), identity(tf.nest.flatten(value, expand_composites=True))
    if isinstance(value, partial):
        return partial, identity((value.func, value.args, value.keywords))
    if isinstance(value, types.FunctionType) and value.__module__.startswith("tests."):
        cells = tuple(cell.cell_contents for cell in value.__closure__ or ())
        outside = cells, value.__defaults__, value.__kwdefaults__
        return value.__module__, value.__code__, identity(outside)
    if isinstance(value, Mapping):
        return type(value), tuple((key, identity(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return type(value), tuple(map(identity, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value), identity(vars(value))
    return value if isinstance(value, str | bytes) else (type(value), value)
