"""The fused ops, as Python functions; the first that is asked for registers all of them.

Each function is named as the op in snake case, takes the op's inputs and attrs by name, and
returns a tensor or a named tuple of the op's outputs.
"""

from __future__ import annotations

from typing import Any

from fusion.printable import snake_case
from fusion.schema.names import OP_NAMES

_FUNCTIONS = frozenset(map(snake_case, OP_NAMES))


def __getattr__(name: str) -> Any:
    if name not in _FUNCTIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fusion.ops.registered import FUNCTIONS

    return globals().setdefault(name, FUNCTIONS[name])


def __dir__() -> list[str]:
    return sorted({*globals(), *_FUNCTIONS})
