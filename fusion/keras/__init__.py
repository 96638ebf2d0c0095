"""Layers for Keras 3 whose tables are gathered from, and `accelerate`, which puts them in a model.

They are for TensorFlow's backend of Keras 3. No Keras is imported before one of them is used.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusion.keras import layers
    from fusion.keras.acceleration import accelerate

__all__ = ["accelerate", "layers"]

# Keras finds a layer in a file only if its class has been imported. Where Keras 3 is in use,
# TensorFlow has imported it by now; nobody else pays for it.
if "keras" in sys.modules:
    importlib.import_module("fusion.keras.layers")


def __getattr__(name: str) -> Any:
    if name == "layers":
        return importlib.import_module("fusion.keras.layers")
    if name == "accelerate":
        return importlib.import_module("fusion.keras.acceleration").accelerate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
