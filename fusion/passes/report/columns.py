"""The columns of a report as their user counts them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from fusion.passes.analysis.variables import Variable, VariableSearch, shards_name, source_variables
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.spec import LookupSpec
from fusion.passes.report.report import ColumnReport, FusionReport


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
    def is_fused_already(self) -> bool:
        """Whether all copies have fused ops already, and keep them."""
        return all(copy.is_fused_already for copy in self.copies)

    @property
    def spec(self) -> LookupSpec | None:
        """What it computes, if that was understood of any copy."""
        return next((copy.spec for copy in self.copies if copy.spec is not None), None)

    @property
    def limit(self) -> ColumnReport | None:
        """The first copy that is not fused, or else whose forward alone is."""
        return self.refusal or next((copy for copy in self.copies if copy.reason), None)


def distinct_columns(report: FusionReport) -> tuple[Column, ...]:
    """Groups the traces of each column."""
    return traces_joined(report.columns)


def traces_joined(columns: Iterable[ColumnReport]) -> tuple[Column, ...]:
    """Groups the traces of one column: same table, same index among that table's lookups."""
    groups: dict[tuple[str, int], list[ColumnReport]] = defaultdict(list)
    seen: Counter[tuple[str, str]] = Counter()
    for column in columns:
        groups[column.name, seen[column.function, column.name]].append(column)
        seen[column.function, column.name] += 1
    return tuple(Column(name, tuple(copies)) for (name, _), copies in groups.items())


def named_columns(report: FusionReport, search: VariableSearch) -> FusionReport:
    """Returns a report with the names and sizes of variables that the pass did not know."""
    columns = (
        named_column(search.view(column.function), column, search.known)
        if column.tables
        else column
        for column in report.columns
    )
    return replace(report, columns=tuple(columns))


def named_column(
    view: GraphView, column: ColumnReport, known: Mapping[tuple[str, str], Variable]
) -> ColumnReport:
    """Returns a column with the names and sizes of the variables behind function arguments."""
    sources = source_variables(view, column.tables, known)
    variables = [variable for variable in sources if variable and len(variable.shape) in (1, 2)]
    if not variables or len(variables) != len(sources):
        return column
    name = shards_name([variable.name for variable in variables])
    if column.spec is None:
        return replace(column, name=name)
    table = column.spec.table
    shards = tuple(
        replace(
            shard,
            rows=variable.shape[0],
            dim=shard.dim if column.spec.column.is_packed else (*variable.shape, 1)[1],
        )
        for shard, variable in zip(table.shards, variables, strict=True)
    )
    table = replace(table, name=name, shards=shards)
    return replace(column, name=name, spec=replace(column.spec, table=table))
