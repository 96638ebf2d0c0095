"""Memory layouts: records of 8-byte fields at an address, declared once, a field a line.

    class Job(Layout):
        '''A job that threads share.'''

        kernel: Address  # void (*)(job, 0)
        pool: Pool  # a pointer to a record
        task_count: Int64
        slots: Fields = fields(16)
        settings: Settings = record(Settings)  # an embedded record

`Job.task_count` is the index of a field: `load(job, Job.task_count)` in code for CPUs and GPUs,
`words[Job.task_count]` in Python. `Job.SIZE` is the number of fields, those of an array included.
As in C++ and in ctypes, the fields of a derived layout follow those of its base.

`LayoutOf` takes fields from a dataclass, so that they are declared there alone.

All of them are compile-time constants of Numba, see `fusion.runtime.native.memory`; this module
needs no Numba.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Mapping
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias, TypeVar, cast

#: Types of fields, which say what a field holds. That of the attribute is `int`, its index.
Address: TypeAlias = int
Int64: TypeAlias = int
#: 0 or 1.
Flag: TypeAlias = int
#: The bits of a double.
Float64: TypeAlias = int
#: Fields one after the other, see `fields`; the attribute is the index of the first.
Fields: TypeAlias = int


L = TypeVar("L", bound="Layout")


class _Length(int):
    """The length of an array in the declaration of a layout, and the layout of its records."""

    layout: LayoutType | None = None


def fields(length: int) -> Words:
    """Declares an array of `length` fields, 0 if its length varies from record to record."""
    return cast(Words, _Length(length))


def record(layout: type[L], count: int = 1) -> L:
    """Declares `count` embedded records; 0 if their number varies from record to record."""
    length = _Length(count * layout.SIZE)
    length.layout = layout
    return cast(L, length)


class Field(NamedTuple):
    """A field of a layout; `offset` counts words from the start of the record."""

    offset: int
    is_float: bool
    is_array: bool
    is_words: bool
    layout: LayoutType | None  # of an embedded record
    pointee: str | None  # the name of the layout of the record to which it points

    def target(self, owner: LayoutType) -> LayoutType | None:
        """The layout of the record that is embedded or pointed to; None for other fields."""
        if self.pointee is None:
            return self.layout
        for base in owner.__mro__:
            with suppress(AttributeError):
                return cast(LayoutType, attrgetter(self.pointee)(sys.modules[base.__module__]))
        raise NameError(f"{owner.__name__} points to {self.pointee}, which its module lacks")


def _name(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else str(annotation.__name__)


#: Annotations of fields that hold the bits of a double, in layouts and in dataclasses.
_FLOATS = ("Float64", "float")
#: Annotations of other fields that point to no record.
_PLAIN = ("Address", "Int64", "Flag", "Float64", "Fields")


class LayoutType(type):
    """The type of layouts."""

    SIZE: int
    FIELDS: Mapping[str, Field]


#: In compiled code a record is its address, with a type that has the fields.
if TYPE_CHECKING:
    from typing_extensions import Self

    _Address = int
else:
    _Address = object


class Words(_Address):
    """An array of 64-bit words: `words[k]` is an int64. A field of this type points to the array.

    A field that is declared with `fields` is the array itself.
    """

    if TYPE_CHECKING:

        def __getitem__(self, index: int) -> int: ...

        def __setitem__(self, index: int, value: int) -> None: ...


class Layout(_Address, metaclass=LayoutType):
    """The base of all layouts.

    Attributes:
      SIZE: the number of fields, of 8 bytes each.
      FIELDS: by their names, in their order.
    """

    if TYPE_CHECKING:

        def __getitem__(self, index: int) -> Self:
            """The record at an index of an array; this is its first record."""

    SIZE: ClassVar[int] = 0
    FIELDS: ClassVar[Mapping[str, Field]] = {}

    def __init_subclass__(cls, record: type | None = None) -> None:
        index, own = cls.SIZE, dict[str, Field]()
        types = {field.name: field.type for field in dataclasses.fields(record)} if record else {}
        for name, annotation in (types | inspect.get_annotations(cls)).items():
            length = cls.__dict__.get(name, 1)
            is_array, text = isinstance(length, _Length), _name(annotation)
            layout = getattr(length, "layout", None)
            is_plain = is_array or name in types or text in (*_PLAIN, "Words")
            pointee = None if is_plain else text
            own[name] = Field(index, text in _FLOATS, is_array, text == "Words", layout, pointee)
            setattr(cls, name, index)
            index += int(length)
        cls.SIZE, cls.FIELDS = index, {**cls.FIELDS, **own}


class _DerivedType(LayoutType):
    """The type of layouts that also have the fields of a dataclass."""

    if TYPE_CHECKING:

        def __getattr__(cls, name: str) -> int: ...


class LayoutOf(Layout, metaclass=_DerivedType):
    """The base of layouts whose first fields are those of a dataclass.

    class Column(LayoutOf, record=Attrs): ...
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...
