"""The columns of a report as their user counts them."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fusion.passes.report import ColumnReport, FusionReport
    from fusion.passes.spec import LookupSpec


@dataclass(frozen=True)
class Column:
    """A column as a user counts it: one, though a model may hold several traces of its function.

    Attributes:
        name: the table's name.
        copies: its lookups, one in each trace.
    """

    name: str
    copies: tuple[ColumnReport, ...]

    @property
    def refusal(self) -> ColumnReport | None:
        """The first copy that is not fused, if there is one."""
        return next((copy for copy in self.copies if not copy.fused), None)

    @property
    def spec(self) -> LookupSpec | None:
        """What it computes, if that was understood of any copy."""
        return next((copy.spec for copy in self.copies if copy.spec is not None), None)

    @property
    def limit(self) -> ColumnReport | None:
        """The first copy that is not fused, or else whose forward alone is."""
        return self.refusal or next((copy for copy in self.copies if copy.reason), None)


def distinct_columns(report: FusionReport) -> tuple[Column, ...]:
    """Groups the traces of one column: same table, same place among that table's lookups."""
    groups: dict[tuple[str, int], list[ColumnReport]] = defaultdict(list)
    seen: Counter[tuple[str, str]] = Counter()
    for column in report.columns:
        groups[column.name, seen[column.function, column.name]].append(column)
        seen[column.function, column.name] += 1
    return tuple(Column(name, tuple(copies)) for (name, _), copies in groups.items())
