"""Public names of a package that are imported when they are first asked for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns a package's `__getattr__`.

    Args:
      package: its name.
      modules: for each public name the module that has it. A public name that is itself a module
        has that module.
    """

    def find(name: str) -> Any:
        path = modules.get(name)
        if path is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(path)
        found = module if path == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, found)
        return found

    return find


def keras_package() -> str:
    """The package that `tf.keras` is: "keras", which is Keras 3, or "tf_keras".

    Layers and optimizers of either have one public name.
    """
    import tensorflow as tf

    package: str = tf.keras.layers.Layer.__module__.partition(".")[0]
    return package
