"""Which embedding variable a table belongs to."""

from __future__ import annotations

import weakref
from typing import Any

#: Embedding variables by the identity of their table's handle, which lives as long as they do.
_KNOWN: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def register(variable: Any) -> None:
    """Has `embedding_variable_of` find an embedding variable by its table."""
    handle = _handle(variable.table)
    if handle is not None:
        _KNOWN[id(handle)] = variable


def embedding_variable_of(table: Any) -> Any:
    """The `EmbeddingVariable` whose table this is, or None.

    Args:
      table: a tf.Variable, what wraps one (a Keras 3 Variable, an AutoCastVariable), or any object.
    """
    handle = _handle(table)
    return None if handle is None else _KNOWN.get(id(handle))


def _handle(table: Any) -> Any:
    """The handle of a variable; None if it has none, or not here, as one of all replicas."""
    try:
        return table.handle
    except (AttributeError, ValueError):
        return None
