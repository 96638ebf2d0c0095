"""How many processors the process may use, as the system reports.

This module is imported only when something is compiled.
"""

from __future__ import annotations

from numba import types

from fusion.runtime.limits.control_groups import (
    NO_LIMIT,
    NUMBER_WORDS,
    address_after,
    first_number,
    min_limit,
    number_at,
    read_text,
)
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.pointers import stack_words
from fusion.runtime.native.text import Message, append_literal, literal

_i32, _i64 = types.int32, types.int64
_c_sched_getaffinity = types.ExternalFunction("sched_getaffinity", _i32(_i32, _i64, _i64))

#: Words of a `cpu_set_t` for 8,192 processors.
_SET_WORDS = 128

_SPACE = ord(" ")


@jit
def _limit_of_group(message: Message, is_old: bool) -> int:
    """The processors that a group may keep busy, rounded up; see `min_limit`."""
    quota, period = int64(NO_LIMIT), int64(0)
    if is_old:
        quota = first_number(message, literal("/cpu.cfs_quota_us"))
        period = first_number(message, literal("/cpu.cfs_period_us"))
    else:
        quota = first_number(message, literal("/cpu.max"))
        period = _second_number(message, literal("/cpu.max"))
    if quota == NO_LIMIT or period == NO_LIMIT or period == 0:
        return int64(NO_LIMIT)
    return max((quota + period - 1) // period, int64(1))


@jit
def _second_number(message: Message, name: int) -> int:
    """The second number in a file, see `first_number`; 0 if there is none."""
    text, length = stack_words(NUMBER_WORDS), message.length
    append_literal(message, name)
    read_text(message.start, text, int64(8 * NUMBER_WORDS))
    message.length = length
    return number_at(address_after(text, _SPACE))


_limit_of_groups = min_limit("cpu", _limit_of_group)


@jit
def processor_limit(root: int) -> int:
    """How many processors the process may keep busy: those that it may run on, or its quota.

    Args:
      root: the path of the folder that has /proc and /sys, a C string.
    """
    return min(_processor_count(), _limit_of_groups(root))


@jit
def _processor_count() -> int:
    """How many processors the process may run on."""
    processors, count = stack_words(_SET_WORDS), int64(0)
    for k in range(_SET_WORDS):
        processors[k] = 0
    _c_sched_getaffinity(_i32(0), int64(8 * _SET_WORDS), processors)
    for k in range(_SET_WORDS):
        word = processors[k]
        for bit in range(64):
            count += word >> bit & 1
    return max(count, int64(1))
