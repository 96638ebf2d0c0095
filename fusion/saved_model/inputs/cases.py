"""The batches that are generated: what is unusual about each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Ids(Enum):
    """What the ids of a batch, and the rows that they are in, are like."""

    IN_RANGE = "in range"
    """Inside their tables, and in all sparse inputs the same number of them in a row."""
    UNEQUAL = "unequal rows"
    """Inside their tables; each sparse input has rows of its own lengths."""
    NEGATIVE = "negative"
    """Some are negative."""
    BEYOND = "out of range"
    """Some are too large for their table, as far as it is known."""
    UNKNOWN = "unknown"
    """Some are not in the table of words, or of integers, that they are looked up in."""
    UNKNOWN_ELSEWHERE = "unknown elsewhere"
    """Likewise, but for inputs of whose answers the model asserts something."""
    MISSING = "missing"
    """There are none: sparse rows are empty, and dense ones hold -1 and ""."""


@dataclass(frozen=True)
class Case:
    """One batch to generate.

    Attributes:
        name: for messages.
        batch: the length of each unknown leading dimension.
        ids: what is unusual about it. One thing at a time, because a model that raises an error
            over one thing shows nothing of another.
    """

    name: str
    batch: int
    ids: Ids = Ids.IN_RANGE

    @property
    def may_raise(self) -> bool:
        """Whether a model may well raise an error over it, which is then what it answers."""
        return self.ids in (Ids.NEGATIVE, Ids.BEYOND, Ids.UNKNOWN, Ids.UNKNOWN_ELSEWHERE)


CASES = (
    Case("batch 1", 1),
    Case("batch 32", 32),
    Case("batch 32 of unequal rows", 32, Ids.UNEQUAL),
    Case("batch 32 with negative ids", 32, Ids.NEGATIVE),
    Case("batch 32 with ids out of range", 32, Ids.BEYOND),
    Case("batch 32 with unknown values", 32, Ids.UNKNOWN),
    Case("batch 32 with unknown values where none is asserted", 32, Ids.UNKNOWN_ELSEWHERE),
    Case("batch 32 of empty rows", 32, Ids.MISSING),
    Case("empty batch", 0),
)
