"""The limits of the process's control groups (cgroups), from /proc and /sys, in compiled code.

All groups above that of a process may have limits. A container with a namespace of its own sees
only the lowest group, as the root. Each version of control groups has files of its own.

This module is imported only when something is compiled.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import store_as
from fusion.runtime.native.pointers import address_of, stack_record, stack_words
from fusion.runtime.native.system import close_file, open_file, read_at
from fusion.runtime.native.text import Message, append_byte, append_literal, begin, byte, literal

#: The sizes of buffers for a path, and for a file with a number.
PATH_WORDS, NUMBER_WORDS = 1 << 9, 1 << 3
_TEXT_WORDS = 1 << 11

NO_LIMIT = 2**63 - 1

_LINE_FEED, _COLON, _COMMA, _SLASH, _DIGIT_0, _DIGIT_9 = map(ord, "\n:,/09")


def min_limit(controller: str, limit_of: Any) -> Any:
    """A jitted function (root) that returns the minimum limit of the process's groups.

    `root` is the path of the folder that has /proc and /sys, a C string.

    Args:
      controller: the name of the controller in version 1, and of the folder of its groups.
      limit_of: a jitted function (path of the group's folder, a `Message`; whether the group is of
        version 1) that returns its limit, NO_LIMIT for none.
    """
    folder = f"/sys/fs/cgroup/{controller}"

    @jit
    def min_of(message: Message, group: int, end: int, is_old: bool) -> int:
        """The minimum limit of a group and its ancestors.

        Args:
          message: the path of the folder of all groups, a `Message`.
          group, end: the start and the end of the group's path below that folder.
        """
        limit, mount_bytes = int64(NO_LIMIT), message.length
        while True:
            message.length = mount_bytes
            for at in range(group, end):
                append_byte(message, byte(at))
            limit = min(limit, limit_of(message, is_old))
            if end <= group:
                return limit
            end -= 1
            while end > group and byte(end) != _SLASH:
                end -= 1

    @jit
    def min_of_groups(root: int) -> int:
        limit, text = int64(NO_LIMIT), stack_words(_TEXT_WORDS)
        path, message = stack_words(PATH_WORDS), stack_record(Message)
        begin(message, path, int64(8 * PATH_WORDS))
        append_literal(message, root)
        append_literal(message, literal("/proc/self/cgroup"))
        read_text(path, text, int64(8 * _TEXT_WORDS))
        line = address_of(text)
        while byte(line) != 0:  # ID:CONTROLLERS:GROUP; those of version 2 have no controllers
            controllers = address_after(line, _COLON)
            group = address_after(controllers, _COLON)
            line = address_after(group, _LINE_FEED)
            end = line - int64(byte(line - 1) == _LINE_FEED)
            is_old = byte(controllers) != _COLON
            if is_old and not _is_in(literal(controller), controllers):
                continue
            begin(message, path, int64(8 * PATH_WORDS))
            append_literal(message, root)
            append_literal(message, literal(folder) if is_old else literal("/sys/fs/cgroup"))
            limit = min(limit, min_of(message, group, end, is_old))
        return limit

    return min_of_groups


@jit
def _is_in(name: int, controllers: int) -> bool:
    """Whether a C string is in a list that is separated by commas and ends with a colon."""
    while True:
        at = name
        while byte(at) != 0 and byte(at) == byte(controllers):
            at += 1
            controllers += 1
        if byte(at) == 0 and (byte(controllers) == _COMMA or byte(controllers) == _COLON):
            return True
        while byte(controllers) != _COMMA:
            if byte(controllers) == _COLON or byte(controllers) == 0:
                return False
            controllers += 1
        controllers += 1


@jit
def first_number(message: Message, name: int) -> int:
    """The number at the start of a file in a folder; NO_LIMIT if there is none.

    Args:
      message: the path of the folder, a `Message`.
      name: the name of the file after a slash, a C string.
    """
    text, length = stack_words(NUMBER_WORDS), message.length
    append_literal(message, name)
    read_text(message.start, text, int64(8 * NUMBER_WORDS))
    message.length = length
    return number_at(text) if _DIGIT_0 <= byte(text) <= _DIGIT_9 else int64(NO_LIMIT)


@jit
def read_text(path: int, text: int, size: int) -> None:
    """Reads the first `size` - 1 bytes of a file as a C string; "" if it cannot be read."""
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
def address_after(text: int, value: int) -> int:
    """The address after the next byte of a value, or of the end of a C string."""
    while byte(text) != value and byte(text) != 0:
        text += 1
    return text + int64(byte(text) != 0)


@jit
def number_at(text: int) -> int:
    """The number at the start of a text."""
    number = int64(0)
    while _DIGIT_0 <= byte(text) <= _DIGIT_9:
        number = 10 * number + byte(text) - _DIGIT_0
        text += 1
    return number
