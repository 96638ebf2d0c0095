"""Whether something fits into the memory that the process may use, read from /proc and /sys.

This module is imported only when something is compiled.
"""

from __future__ import annotations

from fusion.runtime.limits.control_groups import (
    NUMBER_WORDS,
    PATH_WORDS,
    address_after,
    first_number,
    min_limit,
    number_at,
    read_text,
)
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.pointers import stack_record, stack_words
from fusion.runtime.native.system import machine_bytes, page_bytes
from fusion.runtime.native.text import Message, append_literal, begin, literal

_SPACE = ord(" ")


@jit
def _limit_of_group(message: Message, is_old: bool) -> int:
    """The bytes that a group may use, see `min_limit`."""
    name = literal("/memory.limit_in_bytes") if is_old else literal("/memory.max")
    return first_number(message, name)


_limit_of_groups = min_limit("memory", _limit_of_group)


@jit
def fits_into_memory(size: int) -> bool:
    """Whether the process may allocate `size` bytes more within its memory limit."""
    root = literal("")
    return size <= memory_limit(root) - resident_bytes(root)


@jit
def resident_bytes(root: int) -> int:
    """The resident memory of the process, in bytes.

    Args:
      root: the path of the folder that has /proc, a C string.
    """
    path, text = stack_words(PATH_WORDS), stack_words(NUMBER_WORDS)
    message = stack_record(Message)
    begin(message, path, int64(8 * PATH_WORDS))
    append_literal(message, root)
    append_literal(message, literal("/proc/self/statm"))
    read_text(path, text, int64(8 * NUMBER_WORDS))
    return number_at(address_after(text, _SPACE)) * page_bytes()  # after the mapped pages


@jit
def memory_limit(root: int) -> int:
    """The bytes of memory that the process may use: the machine's, or what its cgroups allow.

    Args:
      root: the path of the folder that has /proc and /sys, a C string.
    """
    return min(machine_bytes(), _limit_of_groups(root))
