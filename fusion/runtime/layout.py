"""Memory layouts: records of 8-byte fields at an address, declared once, a field a line.

    class Job(Layout):
        '''A job that threads share.'''

        kernel: Address  # void (*)(job, 0)
        task_count: Int64
        slots: Fields = fields(16)

`Job.task_count` is the index of a field: `load(job, Job.task_count)` in code for CPUs and GPUs,
`words[Job.task_count]` in Python. `Job.SIZE` is the number of fields, those of an array included.
As in C++ and in ctypes, the fields of a derived layout follow those of its base.

All of them are compile-time constants of Numba, see `fusion.runtime.native.memory`; this module
needs no Numba.
"""

from __future__ import annotations

import inspect
from typing import ClassVar, TypeAlias

#: Types of fields, which say what a field holds. That of the attribute is `int`, its index.
Address: TypeAlias = int
Int64: TypeAlias = int
#: 0 or 1.
Flag: TypeAlias = int
#: The bits of a double.
Float64: TypeAlias = int
#: Fields one after the other, see `fields`; the attribute is the index of the first.
Fields: TypeAlias = int


class _Length(int):
    """The length of an array in the declaration of a layout."""


def fields(length: int) -> int:
    """Declares an array of `length` fields, 0 if its length varies from record to record."""
    return _Length(length)


class LayoutType(type):
    """The type of layouts."""


class Layout(metaclass=LayoutType):
    """The base of all layouts.

    Attributes:
      SIZE: the number of fields, of 8 bytes each.
    """

    SIZE: ClassVar[int] = 0

    def __init_subclass__(cls) -> None:
        index = cls.SIZE
        for name in inspect.get_annotations(cls):
            length = cls.__dict__.get(name, 1)
            setattr(cls, name, index)
            index += int(length)
        cls.SIZE = index
