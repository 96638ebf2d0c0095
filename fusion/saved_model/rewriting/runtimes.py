"""The TensorFlow releases that a rewritten model loads in."""

from __future__ import annotations

from typing import NamedTuple

from fusion.schema.op_history import Release
from fusion.version import TENSORFLOW


class Runtimes(NamedTuple):
    """The TensorFlow releases that a rewritten model loads in.

    Attributes:
        first: the first one.
        last: the last one; None if all newer ones do.
        need_source: whether the source may have what `first` lacks: then it is what was written
            that `first` knows, and whether the model loads there depends on the rest.
    """

    first: Release
    last: Release | None = None
    need_source: bool = False

    def __str__(self) -> str:
        end = "and newer" if self.last is None else f"to {self.last}"
        condition = ", where the source loads" if self.need_source else ""
        return f"TensorFlow {self.first} {end}{condition}"


FUSED_RUNTIMES = Runtimes(Release.parse(TENSORFLOW[0]), Release.parse(TENSORFLOW[1]))
"""Those that have the fused ops."""
