"""What a pass did: one line per segment reduction, fused or not, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from tensorflow.core.framework import graph_pb2

from fusion.passes.spec import LookupSpec


@dataclass(frozen=True)
class ColumnReport:
    """The verdict on one segment reduction, the heart of an embedding column.

    Attributes:
        name: for people: the table's variable name where known, else the segment node.
        function: the library function the node is in; "" is the main graph.
        anchor: the segment reduction's node name.
        fused: whether the column was (for explain: would be) rewritten.
        reason: why not; None for a fused column.
        node: the node at which recognition stopped; None for a fused column.
        spec: what the column computes, if all of it was understood.
    """

    name: str
    function: str
    anchor: str
    fused: bool
    reason: str | None = None
    node: str | None = None
    spec: LookupSpec | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns strings and a truth value, ready for JSON; the spec as it prints."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**plain, "spec": None if self.spec is None else str(self.spec)}


@dataclass(frozen=True)
class FusionReport:
    """All columns of a graph and its library, and the node counts of both sides."""

    columns: tuple[ColumnReport, ...] = ()
    nodes_before: int = 0
    nodes_after: int = 0

    @property
    def fused_count(self) -> int:
        """How many columns are fused."""
        return sum(column.fused for column in self.columns)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain dicts, lists, strings and numbers, ready for JSON."""
        return {
            "fused": self.fused_count,
            "total": len(self.columns),
            "nodes_before": self.nodes_before,
            "nodes_after": self.nodes_after,
            "columns": [column.to_dict() for column in self.columns],
        }

    def __str__(self) -> str:
        head = (
            f"{self.fused_count} of {len(self.columns)} columns fused, "
            f"{self.nodes_before} -> {self.nodes_after} nodes"
        )
        if not self.columns:
            return head
        return "\n".join([head, *_table(self.columns)])

    @staticmethod
    def merge(reports: Iterable[FusionReport]) -> FusionReport:
        """Returns one report over several graphs: columns in order, node counts added."""
        parts = tuple(reports)
        return FusionReport(
            columns=tuple(column for part in parts for column in part.columns),
            nodes_before=sum(part.nodes_before for part in parts),
            nodes_after=sum(part.nodes_after for part in parts),
        )


@dataclass(frozen=True)
class FusionResult:
    """A rewritten graph and what was done to it."""

    graph_def: graph_pb2.GraphDef
    report: FusionReport

    @property
    def modified(self) -> bool:
        """Whether any column was rewritten."""
        return self.report.fused_count > 0


def _table(columns: tuple[ColumnReport, ...]) -> list[str]:
    """Lines `name  verdict  why`, padded so that the verdicts stand below each other."""
    names = [f"{c.function}: {c.name}" if c.function else c.name for c in columns]
    width = max(len(name) for name in names)
    lines = []
    for name, column in zip(names, columns, strict=True):
        verdict = "fused " if column.fused else "stock "
        why = "" if column.fused else f"  {column.reason} (at {column.node})"
        lines.append(f"  {name:<{width}}  {verdict}{why}".rstrip())
    return lines
