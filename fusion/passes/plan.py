"""Which lookups become which ops: recognised columns, grouped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fusion.passes.recognise import Recognition


@dataclass(frozen=True)
class Group:
    """Lookups that one set of fused ops computes together."""

    lookups: tuple[Recognition, ...]

    def __str__(self) -> str:
        return "group " + " ".join(lookup.anchor for lookup in self.lookups)


@dataclass(frozen=True)
class Plan:
    """All groups of a graph, in the order in which they are emitted."""

    groups: tuple[Group, ...]

    def __str__(self) -> str:
        return "\n".join(str(group) for group in self.groups)


def plan_per_column(lookups: Iterable[Recognition]) -> Plan:
    """Returns a plan with one group per lookup."""
    return Plan(tuple(Group((lookup,)) for lookup in lookups))
