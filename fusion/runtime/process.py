"""Objects that exist once per process or graph, even if this package is copied or reloaded."""

from __future__ import annotations

import ctypes
import sys
import types
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

#: TensorFlow's registries live as long as the process; so do objects in `sys.modules`.
_MODULE = "_tf_embedding_fusion_process"

_NOTES = "_fusion_notes"


def single(name: str, make: Callable[[], T]) -> T:
    """Returns the process's object of that name; the first call makes it."""
    shared = sys.modules.setdefault(_MODULE, types.ModuleType(_MODULE, __doc__)).__dict__
    instance: T = shared[name] if name in shared else shared.setdefault(name, make())
    return instance


def existing(name: str) -> Any:
    """Returns the process's object of that name, or None if it has not been made yet."""
    shared = sys.modules.get(_MODULE)
    return None if shared is None else shared.__dict__.get(name)


def keep_forever(value: object) -> None:
    """Keeps an object alive even after its module is dropped from `sys.modules`."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def notes(graph: Any, name: str) -> list[Any]:
    """A named list that belongs to a graph of TensorFlow and lives as long as the graph.

    Collections would do, but TensorFlow writes them into MetaGraphDefs, or complains that it
    cannot.
    """
    if not hasattr(graph, _NOTES):
        setattr(graph, _NOTES, {})
    items: list[Any] = getattr(graph, _NOTES).setdefault(name, [])
    return items
