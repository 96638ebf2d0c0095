"""What is noted about a graph, for as long as it is there.

Collections would do, but TensorFlow writes them into MetaGraphDefs, or complains that it cannot.
"""

from __future__ import annotations

from typing import Any

_ATTRIBUTE = "_fusion_notes"


def notes(graph: Any, name: str) -> list[Any]:
    """The list of a name that belongs to a graph; what is added to it stays."""
    if not hasattr(graph, _ATTRIBUTE):
        setattr(graph, _ATTRIBUTE, {})
    found: list[Any] = getattr(graph, _ATTRIBUTE).setdefault(name, [])
    return found
