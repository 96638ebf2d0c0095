"""Layers whose tables are gathered from, and `accelerate`, which puts them in a model of Keras 3.

Those for Keras 3 are for its TensorFlow backend. No Keras is imported before one of them is used.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusion.keras import layers
    from fusion.keras.acceleration import accelerate

__all__ = ["accelerate", "layers"]

# A Keras finds a layer in a file only if its class has been imported. Where one is in use,
# TensorFlow has imported it by now; other programs do not pay for it.
for _package, _module in (("keras", "keras3"), ("tf_keras", "tf_keras")):
    if _package in sys.modules:
        importlib.import_module(f"fusion.keras.{_module}")


def __getattr__(name: str) -> Any:
    if name == "layers":
        return importlib.import_module("fusion.keras.layers")
    if name == "accelerate":
        return importlib.import_module("fusion.keras.acceleration").accelerate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
