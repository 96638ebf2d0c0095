"""Optimizers that move only the rows of a table that the batch looked up.

`Adagrad`, `LazyAdam`, `LazyMomentum` and `LazyFtrl` are those of the Keras that `tf.keras` is:
Keras 3, or tf_keras under `TF_USE_LEGACY_KERAS=1`. Each is also importable from its own module,
`fusion.optimizers.keras3` and `fusion.optimizers.tf_keras`. `LazyAdamOptimizer` is for
`tf.compat.v1`. No Keras is imported before one of them is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fusion.lazy import keras_package

if TYPE_CHECKING:
    from fusion.optimizers.keras3 import Adagrad, LazyAdam, LazyFtrl, LazyMomentum
    from fusion.optimizers.v1 import LazyAdamOptimizer

__all__ = ["Adagrad", "LazyAdam", "LazyAdamOptimizer", "LazyFtrl", "LazyMomentum"]


def __getattr__(name: str) -> Any:
    if name in ("Adagrad", "LazyAdam", "LazyFtrl", "LazyMomentum"):
        module = "tf_keras" if keras_package() == "tf_keras" else "keras3"
    elif name == "LazyAdamOptimizer":
        module = "v1"
    else:
        raise AttributeError(f"module 'fusion.optimizers' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fusion.optimizers.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
