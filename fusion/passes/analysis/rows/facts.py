"""What is known of the rows of a tensor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, Flag

from fusion.passes.analysis.rows.counts import Elements
from fusion.passes.graph.tensor import Shape


class Side(Flag):
    """What the rows of a tensor depend on; REQUEST | CANDIDATE is both."""

    NEITHER = 0
    REQUEST = 1
    CANDIDATE = 2


class Kind(Enum):
    """How the batch lies in a tensor."""

    CONSTANT = "no rows"
    ROWS = "an axis of rows"
    SIZES = "integers that depend on the number of rows alone, as shapes do"
    SUMMARY = "the same however often a row is repeated, as the largest element is"
    ENTRIES = "values of a sparse or ragged tensor"
    INDICES = "indices of a sparse tensor, the row first"
    ROW_NUMBERS = "the row of each entry"
    SPLITS = "row splits of a ragged tensor"
    SPARSE_SHAPE = "the dense shape of a sparse tensor, the rows first"
    LIST = "a list of tensors with an axis of rows each"
    INSIDE = "a part of a lookup that is understood as a whole"
    MIXED = "of several rows at once, or not known"


@dataclass(frozen=True)
class Fact:
    """What is known of a tensor.

    Attributes:
        kind: how the batch lies in it.
        side: what its rows depend on.
        axis: the axis of rows.
        factor: how many elements of that axis each row has, one after the other; 0 if that is only
            known at run time.
        blocks: how often that axis has all rows, one block after the other.
        reason: why nothing is known.
        node: the first node of which nothing is known.
        elements: of sizes, how each depends on the number of rows.
        source: which sparse or ragged tensor it is a part of.
        shape: of a list, how many elements it has and their sizes, None along the axis of rows; of
            what was just read of it, the sizes.
    """

    kind: Kind
    side: Side = Side.NEITHER
    axis: int = 0
    factor: int = 1
    reason: str = ""
    node: str = ""
    blocks: int = 1
    elements: Elements = None
    source: str = ""
    shape: Shape = ()

    @property
    def has_rows(self) -> bool:
        """Whether it depends on rows in any way."""
        return self.kind is not Kind.CONSTANT

    @property
    def is_empty_list(self) -> bool:
        """Whether it is a list that nothing was put into yet."""
        return self.kind is Kind.LIST and self.axis < 0

    def moved(self, axis: int) -> Fact:
        """Returns the same with another axis of rows."""
        return replace(self, axis=axis)

    @property
    def layout(self) -> tuple[int, int]:
        """How often each row is there along its axis: blocks, and elements of it in each."""
        return self.blocks, self.factor


CONSTANT = Fact(Kind.CONSTANT)


def rows(side: Side, axis: int = 0, factor: int = 1, blocks: int = 1) -> Fact:
    """Returns the fact of a tensor with an axis of rows."""
    return Fact(Kind.ROWS, side, axis, factor, blocks=blocks)


def empty_list(length: int | None) -> Fact:
    """Returns the fact of a list that nothing was put into yet."""
    return Fact(Kind.LIST, axis=-1, shape=(length,))


def joined(facts: Iterable[Fact]) -> Side:
    """Returns what all of some tensors depend on."""
    side = Side.NEITHER
    for fact in facts:
        side |= fact.side
    return side


class Mixes(Exception):
    """A rule cannot prove that an op keeps rows apart; the text says why."""
