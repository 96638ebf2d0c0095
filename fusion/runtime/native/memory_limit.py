"""Whether something fits into the memory that the process may use, as /proc and /sys tell.

A control group (cgroup) may limit it to less than the machine has. So may all groups above it, of
which a container with a namespace of its own sees the lowest alone, as the root.

This module is imported only when something is compiled.
"""

from __future__ import annotations

import numpy as np

from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_memcmp, load, stack_words, store, store_as
from fusion.runtime.native.system import (
    close_file,
    machine_bytes,
    open_file,
    page_bytes,
    read_at,
)
from fusion.runtime.native.text import (
    Message,
    append_byte,
    append_literal,
    begin,
    byte,
    literal,
)

#: Of a path, and of a file that is read.
_PATH_WORDS, _TEXT_WORDS, _NUMBER_WORDS = 1 << 9, 1 << 11, 1 << 3

_NO_LIMIT = 2**63 - 1

_LINE_FEED, _COLON, _SLASH, _SPACE, _DIGIT_0, _DIGIT_9 = map(ord, "\n:/ 09")


@jit
def fits_into_memory(size: int) -> bool:
    """Whether there may be room for so many bytes beside what the process has in memory."""
    root = literal("")
    return size <= memory_limit(root) - resident_bytes(root)


@jit
def resident_bytes(root: int) -> int:
    """What the process has in memory.

    Args:
      root: the path below which /proc is, a C string.
    """
    path, text = stack_words(_PATH_WORDS), stack_words(_NUMBER_WORDS)
    message = stack_words(Message.SIZE)
    begin(message, path, int64(8 * _PATH_WORDS))
    append_literal(message, root)
    append_literal(message, literal("/proc/self/statm"))
    _read_text(path, text, int64(8 * _NUMBER_WORDS))
    return _number_at(_behind(text, _SPACE)) * page_bytes()  # behind what is mapped


@jit
def memory_limit(root: int) -> int:
    """The bytes of memory that the process may use: the machine's, or what its cgroups allow.

    Args:
      root: the path below which /proc and /sys are, a C string.
    """
    limit, line = machine_bytes(), stack_words(_TEXT_WORDS)
    path, message = stack_words(_PATH_WORDS), stack_words(Message.SIZE)
    begin(message, path, int64(8 * _PATH_WORDS))
    append_literal(message, root)
    append_literal(message, literal("/proc/self/cgroup"))
    _read_text(path, line, int64(8 * _TEXT_WORDS))
    while byte(line) != 0:  # ID:CONTROLLERS:GROUP; those of version 2 have no list of controllers
        controllers = _behind(line, _COLON)
        group = _behind(controllers, _COLON)
        line = _behind(group, _LINE_FEED)
        end = line - int64(byte(line - 1) == _LINE_FEED)
        mount, name = literal("/sys/fs/cgroup"), literal("/memory.max")
        if byte(controllers) != _COLON:
            if c_memcmp(controllers, literal("memory:"), int64(7)) != 0:
                continue
            mount, name = literal("/sys/fs/cgroup/memory"), literal("/memory.limit_in_bytes")
        begin(message, path, int64(8 * _PATH_WORDS))
        append_literal(message, root)
        append_literal(message, mount)
        limit = min(limit, _limit_of_group(message, group, end, name))
    return limit


@jit
def _limit_of_group(message: int, group: int, end: int, name: int) -> int:
    """The least limit of a group and those above it.

    Args:
      message: the path of the folder of all groups, a `Message`.
      group, end: where the path of the group below it begins and ends.
      name: of the files with limits, a C string.
    """
    limit, mount_bytes = int64(_NO_LIMIT), load(message, Message.length)
    while True:
        store(message, Message.length, mount_bytes)
        for at in range(group, end):
            append_byte(message, byte(at))
        append_literal(message, name)
        limit = min(limit, _limit_in(load(message, Message.start)))
        if end <= group:
            return limit
        end -= 1
        while end > group and byte(end) != _SLASH:
            end -= 1


@jit
def _limit_in(path: int) -> int:
    """The number in a file; no limit if there is none."""
    text = stack_words(_NUMBER_WORDS)
    _read_text(path, text, int64(8 * _NUMBER_WORDS))
    return _number_at(text) if _DIGIT_0 <= byte(text) <= _DIGIT_9 else int64(_NO_LIMIT)


@jit
def _read_text(path: int, text: int, size: int) -> None:
    """Reads a file, what is in memory of so many bytes, as a C string; it is "" if it cannot."""
    file, length = open_file(path), int64(0)
    if file >= 0:
        # The system gives a page of such a file at a time.
        count = read_at(file, text, size - 1, int64(0))
        while count > 0:
            length += count
            count = read_at(file, text + length, size - 1 - length, length)
        close_file(file)
    store_as(text, length, np.uint8(0), np.uint8)


@jit
def _behind(text: int, value: int) -> int:
    """The address behind the next byte of a value, or of the end of a C string."""
    while byte(text) != value and byte(text) != 0:
        text += 1
    return text + int64(byte(text) != 0)


@jit
def _number_at(text: int) -> int:
    """The number that a text begins with."""
    number = int64(0)
    while _DIGIT_0 <= byte(text) <= _DIGIT_9:
        number = 10 * number + byte(text) - _DIGIT_0
        text += 1
    return number
