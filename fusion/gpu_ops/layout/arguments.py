"""How a launch passes records: an integer for each field, which may be a record, too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, TypeAlias, get_type_hints

Argument: TypeAlias = int | tuple[Any, ...]


@cache
def fields_of(kind: Any) -> tuple[Any, ...]:
    """The types of a record's fields; none of an integer."""
    is_record = isinstance(kind, type) and issubclass(kind, tuple)
    return tuple(get_type_hints(kind).values()) if is_record else ()


def flat(arguments: Iterable[Argument]) -> Iterator[int]:
    """The integers of arguments."""
    for one in arguments:
        if isinstance(one, tuple):
            yield from flat(one)
        else:
            yield int(one)


def grouped(kinds: Iterable[Any], integers: Iterator[int]) -> list[Argument]:
    """Arguments of these types, from the next integers: the inverse of `flat`."""
    return [
        kind(*grouped(fields_of(kind), integers)) if fields_of(kind) else next(integers)
        for kind in kinds
    ]
