"""How a tensor of candidates is made of parts that are computed for requests and for candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusion.passes.graph.tensor import Tensor

Sizes = tuple[int, ...]
"""Static sizes of a tensor; that of the axis of rows is `ROWS` times the elements of a row."""

ROWS, UNKNOWN = -1, -2


@dataclass(frozen=True)
class Term:
    """One of the tensors that are added up, which are broadcast against each other.

    Attributes:
        tensor: in the new graph.
        of_request: whether it has a row for each request; else it has one for each candidate.
        sizes: of the tensor, of the rank of the sum; 1 where it is broadcast.
    """

    tensor: Tensor
    of_request: bool
    sizes: Sizes


@dataclass(frozen=True)
class Part:
    """A part of a tensor along an axis: a sum.

    Attributes:
        size: along that axis.
        terms: what is added up.
        places: of its elements along that axis, where parts do not lie side by side; then all
            parts of the tensor have some.
    """

    size: int
    terms: tuple[Term, ...]
    places: tuple[int, ...] = ()

    @property
    def of_request(self) -> bool:
        """Whether it depends on the request alone."""
        return all(term.of_request for term in self.terms)


@dataclass(frozen=True)
class Assembled:
    """A tensor that is not there: its parts are.

    Attributes:
        sizes: of the tensor.
        axis: along which the parts lie side by side; of no meaning for one part.
        parts: these.
        factor: how many elements of the axis of rows each row has.
        is_flat: whether the tensor has one axis in place of all but the last.
    """

    sizes: Sizes
    axis: int
    parts: tuple[Part, ...]
    factor: int = 1
    is_flat: bool = False

    @property
    def layout(self) -> tuple[int, int]:
        """How its rows lie along their axis, see `Fact`: never in several blocks."""
        return 1, self.factor

    @property
    def row_axis(self) -> int:
        """The axis of rows."""
        return self.sizes.index(ROWS)

    def part_sizes(self, part: Part) -> Sizes:
        """Returns the sizes of a part."""
        if len(self.parts) == 1:
            return self.sizes
        return (*self.sizes[: self.axis], part.size, *self.sizes[self.axis + 1 :])

    @property
    def is_in_order(self) -> bool:
        """Whether parts lie side by side."""
        return not any(part.places for part in self.parts)

    @property
    def terms(self) -> tuple[Term, ...]:
        """What is added up, if there is one part."""
        return self.parts[0].terms if len(self.parts) == 1 else ()

    @property
    def has_request(self) -> bool:
        """Whether a part of it is computed for requests."""
        return any(term.of_request for part in self.parts for term in part.terms)

    @property
    def is_whole(self) -> bool:
        """Whether no term has to be broadcast."""
        return all(t.sizes == self.part_sizes(p) for p in self.parts for t in p.terms)

    @property
    def is_plain(self) -> bool:
        """Whether it is a tensor of candidates, which is there."""
        return len(self.terms) == 1 and not self.has_request and self.is_whole


def plain(term: Term, factor: int) -> Assembled:
    """Returns a tensor that is there."""
    return Assembled(term.sizes, 0, (Part(0, (term,)),), factor)


def joined_sizes(all_sizes: Sequence[Sizes]) -> Sizes:
    """Returns the sizes of what tensors are that are broadcast against each other."""
    return tuple(
        next((n for n in of_axis if n != 1), 1) for of_axis in zip(*all_sizes, strict=True)
    )
