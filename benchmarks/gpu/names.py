"""Steps and workloads by the beginnings of their names."""

from __future__ import annotations

from collections.abc import Sequence


def is_chosen(name: str, beginnings: Sequence[str] | None) -> bool:
    """Whether a name starts with one of some beginnings; None chooses all."""
    return beginnings is None or name.startswith(tuple(beginnings))
