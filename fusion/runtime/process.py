"""What there is once per process, whatever the number of copies or reloads of this package."""

from __future__ import annotations

import ctypes
import sys
import types
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

#: TensorFlow's registries live as long as the process; so does what lies in `sys.modules`.
_MODULE = "_tf_embedding_fusion_process"


def single(name: str, make: Callable[[], T]) -> T:
    """Returns the process's object of that name; the first call makes it."""
    shared = sys.modules.setdefault(_MODULE, types.ModuleType(_MODULE, __doc__)).__dict__
    found: T = shared[name] if name in shared else shared.setdefault(name, make())
    return found


def existing(name: str) -> Any:
    """Returns the process's object of that name, or None if it has not been made yet."""
    shared = sys.modules.get(_MODULE)
    return None if shared is None else shared.__dict__.get(name)


def keep_forever(thing: object) -> None:
    """Keeps `thing` even after the module that made it is dropped from `sys.modules`."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
