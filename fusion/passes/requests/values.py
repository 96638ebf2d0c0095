"""How a tensor of candidates is made of parts that are computed for requests and for candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusion.passes.graph.tensor import Tensor

Sizes = tuple[int, ...]
"""Static sizes of a tensor; that of the axis of rows is `ROWS` times the elements of a row."""

ROWS = -1


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
    """

    size: int
    terms: tuple[Term, ...]

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
    """

    sizes: Sizes
    axis: int
    parts: tuple[Part, ...]

    @property
    def is_plain(self) -> bool:
        """Whether it is a tensor of candidates, which is there."""
        terms = self.parts[0].terms
        one = len(self.parts) == 1 and len(terms) == 1
        return one and not terms[0].of_request and terms[0].sizes == self.sizes


def plain(term: Term) -> Assembled:
    """Returns a tensor that is there."""
    return Assembled(term.sizes, 0, (Part(0, (term,)),))


def summed(sizes: Sizes, terms: Sequence[Term]) -> Assembled:
    """Returns a sum of tensors."""
    return Assembled(sizes, 0, (Part(0, tuple(terms)),))
