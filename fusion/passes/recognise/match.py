"""The two answers of a recogniser.

A recogniser explains one part of a lookup. It returns a `Match` with what it found, or a `NoMatch`
that says why not and where. Both are values; `NoMatch` is falsy, so callers write
`if isinstance(found, NoMatch): return found`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fusion.passes.graph.tensor import Tensor
from fusion.passes.recognise.spec import LookupSpec


class Stage(Enum):
    """Which of the emitted ops takes over a part of the lookup."""

    IDS = "ids"
    ROWS = "rows"
    OUTPUT = "output"


@dataclass(frozen=True)
class NoMatch:
    """A refusal.

    Attributes:
        reason: for people, without a full stop.
        node: the node at which the explanation broke off.
    """

    reason: str
    node: str

    def __bool__(self) -> bool:
        return False


@dataclass(frozen=True, kw_only=True)
class Match:
    """An explained part.

    Attributes:
        stage: the emitted op that computes this part from now on.
        nodes: nodes whose values vanish with the rewrite: they may have no other consumers.
        front: nodes that compute only the lookup's inputs. They may have other consumers, and are
            removed when they have none.
        reads: the tensors that the emitted ops read in addition to the lookup's inputs.
    """

    stage: Stage
    nodes: tuple[str, ...]
    front: tuple[str, ...] = ()
    reads: tuple[Tensor, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Whole(Match):
    """All of a lookup, explained at once.

    Attributes:
        spec: what it computes.
        of_ids: those of the nodes that compute with ids alone, which a gradient may do as well.
    """

    spec: LookupSpec
    of_ids: tuple[str, ...] = ()
