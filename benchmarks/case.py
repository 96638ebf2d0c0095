"""What is measured, as values: cases, and the rows of numbers that they give."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

Value: TypeAlias = "float | str | Mapping[str, float]"
"""A number, a text, or a number's "median", "low" and "high"."""

Key: TypeAlias = "Mapping[str, str | int | float]"
"""What was measured, by the headings of its columns."""

Option: TypeAlias = "bool | int | float | str | tuple[Any, ...]"

DETAILS = "Details of "
"""How captions of tables begin that are shown when they are measured, and are in no report."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of a result.

    Attributes:
        key: what was measured, by the headings of its columns; the same in every process.
        values: what was found, by heading.
        table: the caption of the table that has it.
        least, most: bounds of values.
        notes: what else is to be said.
        answers: a digest of what was computed, which all processes have in common; or "".
        failure: why there are no values, or why they do not count; or "".
    """

    key: Key
    values: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    table: str = ""
    least: Mapping[str, float] = dataclasses.field(default_factory=dict)
    most: Mapping[str, float] = dataclasses.field(default_factory=dict)
    notes: Sequence[str] = ()
    answers: str = ""
    failure: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it: what is empty is left out."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in found.items() if value or name == "key"}

    @property
    def title(self) -> str:
        """What was measured, in a few words."""
        return " ".join(map(str, self.key.values()))

    def number(self, name: str) -> float:
        """A value, or its median."""
        return middle(self.values[name])

    def verdicts(self) -> Iterator[tuple[str, str, bool]]:
        """Yields, for each value that has a bound, its name, the bound, and whether it is met."""
        for name, bound in self.least.items():
            if name in self.values:
                yield name, f"at least {bound:g}", self.number(name) >= bound
        for name, bound in self.most.items():
            if name in self.values:
                yield name, f"at most {bound:g}", self.number(name) <= bound


def middle(value: Value) -> float:
    """The number, or its median."""
    return float(value["median"] if isinstance(value, Mapping) else value)


def combined(rows: Iterable[Row]) -> list[Row]:
    """One row for each table and key: with medians and ranges, where several processes gave it.

    Raises:
        ValueError: the answers of processes differ.
    """
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault((row.table, *row.key.items()), []).append(row)
    return [_combined(same) for same in groups.values()]


def _combined(rows: Sequence[Row]) -> Row:
    if len({row.answers for row in rows}) > 1:
        raise ValueError(f"answers differ: {rows[0].title}")
    found: dict[str, list[Value]] = {}
    for row in rows:
        for name, value in row.values.items():
            found.setdefault(name, []).append(value)
    return dataclasses.replace(
        rows[0],
        values={name: _of_processes(values) for name, values in found.items()},
        notes=tuple(dict.fromkeys(note for row in rows for note in row.notes)),
        failure="; ".join(dict.fromkeys(row.failure for row in rows if row.failure)),
    )


def _of_processes(values: Sequence[Value]) -> Value:
    if isinstance(values[0], str):
        return "; ".join(dict.fromkeys(map(str, values)))
    if len(values) == 1:
        return values[0]
    numbers = [middle(one) for one in values]
    return {"median": statistics.median(numbers), "low": min(numbers), "high": max(numbers)}


@dataclasses.dataclass(frozen=True)
class Case:
    """Something to measure.

    Attributes:
        name: of the case and of the file of its result.
        about: what is compared, how its inputs are made.
        measure: "module:function" that yields rows, from the options by name.
        options: what the command line may change, with defaults. Of a tuple each element is
            measured in processes of its own.
        quick: options of a small run, to try it out.
        fixed: what `measure` is given besides, unless `quick` has another one.
        later: options of all processes but the first: what is costly is measured once.
        processes: how many measure the same, one after the other.
        environment: variables of the processes. A GPU would draw stock lookups to it.
        is_standard: whether it is measured if none is named.
    """

    name: str
    about: str
    measure: str
    options: Mapping[str, Option] = dataclasses.field(default_factory=dict)
    quick: Mapping[str, Option] = dataclasses.field(default_factory=dict)
    fixed: Mapping[str, Option] = dataclasses.field(default_factory=dict)
    later: Mapping[str, Option] = dataclasses.field(default_factory=dict)
    processes: int = 1
    environment: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: {"CUDA_VISIBLE_DEVICES": "-1"}
    )
    is_standard: bool = False

    def chosen(self, given: Mapping[str, Option], quick: bool) -> dict[str, Option]:
        """The options, of which some may be given."""
        own = {name: value for name, value in given.items() if name in self.options}
        return {**self.options, **(self.quick if quick else {}), **own}

    def parts(self, options: Mapping[str, Option]) -> Iterator[dict[str, Option]]:
        """Yields the options of each process, or of each few processes that measure the same."""
        names = [*options]
        lists = [one if isinstance(one, tuple) else (one,) for one in options.values()]
        for values in itertools.product(*lists):
            yield {**self.fixed, **dict(zip(names, values, strict=True))}

    def rows(self, part: Mapping[str, Option]) -> Iterator[Row]:
        """Measures, in this process."""
        module, _, function = self.measure.partition(":")
        found: Iterator[Row] = getattr(importlib.import_module(module), function)(**part)
        return found
