"""Arguments of launches: a record is passed as an integer for each field, recursively."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, TypeAlias, get_type_hints

Argument: TypeAlias = int | tuple[Any, ...]


@cache
def fields_of(type_: Any) -> tuple[Any, ...]:
    """The types of a record's fields; none of an integer."""
    is_record = isinstance(type_, type) and issubclass(type_, tuple)
    return tuple(get_type_hints(type_).values()) if is_record else ()


def flat(arguments: Iterable[Argument]) -> Iterator[int]:
    """The integers of arguments."""
    for one in arguments:
        if isinstance(one, tuple):
            yield from flat(one)
        else:
            yield int(one)


def grouped(types: Iterable[Any], integers: Iterator[int]) -> list[Argument]:
    """Arguments of these types, from the next integers: the inverse of `flat`."""
    return [
        type_(*grouped(fields_of(type_), integers)) if fields_of(type_) else next(integers)
        for type_ in types
    ]
