"""Which embedding variable, or which sharded table, a variable belongs to."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

from fusion.runtime.process import single

# Functions of TensorFlow and Keras that a first copy of this package has replaced look up here what
# the next one makes.

#: Embedding variables by the identity of their table's handle, which lives as long as they do.
_KNOWN: WeakValueDictionary[int, Any] = single("embedding variables", WeakValueDictionary)

#: Sharded tables likewise, by the handle of each shard, with the shard's number.
_SHARDS: WeakValueDictionary[int, Any] = single("shards", WeakValueDictionary)


def register_shard(variable: Any, shard: Any) -> None:
    """Has `shard_of` find what is known of a shard by its variable."""
    _SHARDS[id(_handle(variable))] = shard


def shard_of(variable: Any) -> Any:
    """What was registered of a variable, or of what wraps one, or None."""
    handle = _handle(variable)
    return None if handle is None else _SHARDS.get(id(handle))


def register(variable: Any) -> None:
    """Has `embedding_variable_of` find an embedding variable by its table."""
    handle = _handle(variable.table)
    if handle is not None:
        _KNOWN[id(handle)] = variable


def embedding_variables() -> list[Any]:
    """All that are alive."""
    return list(_KNOWN.values())


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
