"""Embedding tables as a plan knows them: their sizes and how they are looked up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from fusion.runtime.tensorflow.dtypes import DTYPES, FLOATS
from fusion.schema.columns import COLUMN_COMBINERS
from fusion.tables.arguments import integer, one_of

_MAX_ROWS = 2**63 - 1


@dataclass(frozen=True)
class Table:
    """An embedding table.

    Attributes:
        name: of the table, different from those of the others.
        rows: how many there are.
        dimension: elements of a row, D.
        dtype: of the elements: "float16", "bfloat16", "float32" or "float64".
        combiner: of the bags of a sample, "sum", "mean", "sqrtn" or "max"; None where each id gives
            a row.
        hotness: how many ids of the table a sample has, on average.

    Raises:
        TypeError: a name that is no string, sizes that are no integers, another dtype.
        ValueError: sizes below 1, a hotness that is not above 0, another combiner.
    """

    name: str
    rows: int
    dimension: int
    dtype: str = "float32"
    combiner: str | None = None
    hotness: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"name must be a string, got {self.name!r}")
        if self.combiner not in (None, *COLUMN_COMBINERS):
            allowed = f"None or one of {COLUMN_COMBINERS}"
            raise ValueError(f"combiner of {self.name} must be {allowed}, got {self.combiner!r}")
        checked = {
            "rows": integer(f"rows of {self.name}", self.rows, most=_MAX_ROWS),
            "dimension": integer(f"dimension of {self.name}", self.dimension),
            "dtype": one_of(f"dtype of {self.name}", self.dtype, FLOATS).name,
            "hotness": number(f"hotness of {self.name}", self.hotness, above=0),
        }
        for attribute, value in checked.items():
            object.__setattr__(self, attribute, value)

    @property
    def elements(self) -> int:
        """Rows times dimension."""
        return self.rows * self.dimension

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return DTYPES[self.dtype].item_bytes


def as_tables(tables: Iterable[Table | Sequence[int]]) -> tuple[Table, ...]:
    """Tables, where pairs (rows, dimension) become tables named by their index.

    Raises:
        TypeError: something else is among them, or what `Table` raises.
        ValueError: there is none, two have one name, or what `Table` raises.
    """
    if isinstance(tables, str | bytes) or not isinstance(tables, Iterable):
        raise TypeError(f"tables must be a list of Table or of (rows, dimension), got {tables!r}")
    checked = tuple(_as_table(index, table) for index, table in enumerate(tables))
    if not checked:
        raise ValueError("tables must have at least one table, got none")
    seen: set[str] = set()
    for table in checked:
        if table.name in seen:
            raise ValueError(f"tables must have different names, got {table.name!r} twice")
        seen.add(table.name)
    return checked


def _as_table(index: int, table: Any) -> Table:
    if isinstance(table, Table):
        return table
    try:
        rows, dimension = table
    except (TypeError, ValueError):
        message = f"tables[{index}] must be a Table or a pair (rows, dimension), got {table!r}"
        raise TypeError(message) from None
    return Table(f"table_{index}", rows, dimension)


def number(name: str, value: Any, min_value: float = 0.0, above: float | None = None) -> float:
    """An argument that is a finite number.

    Args:
        name: of the argument.
        value: of the argument.
        min_value: the minimum; or `above`, an exclusive lower bound.

    Raises:
        TypeError: it is no number.
        ValueError: it is too small, infinite or NaN.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    result = float(value)
    if not math.isfinite(result) or (result < min_value if above is None else result <= above):
        bound = f"at least {min_value:g}" if above is None else f"above {above:g}"
        raise ValueError(f"{name} must be finite and {bound}, got {value!r}")
    return result
