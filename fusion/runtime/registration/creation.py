"""What the native code that makes the kernel of a node shares with Python (`native_creation`).

It makes a kernel's state by an upcall, or from one that was *prepared*: a node that a graph
optimizer has put into a graph carries the number of a state that is ready. Then nothing of Python
is needed once the graph is there. The numbers are secret, so that no graph from elsewhere has one.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import threading
from typing import Any

from tensorflow.core.framework import node_def_pb2
from tensorflow.python.framework import dtypes

from fusion.runtime.layout import Address, Int64, Layout
from fusion.runtime.process import keep_forever, single
from fusion.runtime.tensorflow.spec import Attr

#: The attr of a node with the number of a prepared state.
STATE_ATTR = "_fusion_state"


class KernelsRecord(Layout):
    """The kernels of an op for a type of device."""

    server_number: Int64  # who serves the requests for their states
    upcalls: Address  # `UpcallsRecord`
    patience_ns: Int64  # nanoseconds without Python's lock after which a node fails
    too_late: Address  # what it says then, a C string
    no_memory: Address  # what it says without memory
    attr_name: Address  # `STATE_ATTR`
    prepared: Address  # `PreparedRecord`


class PreparedRecord(Layout):
    """The prepared states of a process."""

    count: Int64
    entries: Address  # `PreparedEntry` [count]


class PreparedEntry(Layout):
    """A prepared state."""

    number: Int64
    owner: Address  # `KernelsRecord` of the kernels that it is for
    state: Address
    state_bytes: Int64


#: A node fails only where nothing in an idle process can have Python's lock for so long.
PATIENCE_NS = 20_000_000_000

_FIRST_CAPACITY = 64


class Prepared:
    """The prepared states of a process; they stay."""

    def __init__(self) -> None:
        self.words = (ctypes.c_int64 * PreparedRecord.SIZE)()
        keep_forever(self.words)
        self._entries: ctypes.Array[ctypes.c_int64] = (ctypes.c_int64 * 0)()
        self._reserve(_FIRST_CAPACITY)
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Makes states anew: those of a parent process know of its threads."""
        self._lock = threading.Lock()
        self._numbers: dict[tuple[int, tuple[int, ...]], int] = {}

    def number(self, owner: int, state: list[int]) -> int:
        """The number of a state for the kernels whose words have that address."""
        key = owner, tuple(state)
        with self._lock:
            if key not in self._numbers:
                self._numbers[key] = self._add(owner, state)
            return self._numbers[key]

    def _add(self, owner: int, state: list[int]) -> int:
        count = self.words[PreparedRecord.count]
        if count == self._capacity:
            self._reserve(2 * count)
        memory = (ctypes.c_int64 * len(state))(*state)
        keep_forever(memory)
        number = secrets.randbits(62) + 1
        address, size = ctypes.addressof(memory), ctypes.sizeof(memory)
        first = count * PreparedEntry.SIZE
        self._entries[first : first + PreparedEntry.SIZE] = [number, owner, address, size]
        self.words[PreparedRecord.count] = count + 1
        return number

    def _reserve(self, capacity: int) -> None:
        """Moves the entries; native code may still read the old ones, which stay."""
        entries = (ctypes.c_int64 * (capacity * PreparedEntry.SIZE))()
        keep_forever(entries)
        ctypes.memmove(entries, self._entries, ctypes.sizeof(self._entries))
        self._entries, self._capacity = entries, capacity
        self.words[PreparedRecord.entries] = ctypes.addressof(entries)


def prepared() -> Prepared:
    """The prepared states of this process."""
    return single("prepared_states", Prepared)


def c_string(text: str) -> int:
    """The address of a C string that stays."""
    memory = ctypes.create_string_buffer(text.encode())
    keep_forever(memory)
    return ctypes.addressof(memory)


#: The fields of an AttrValue.
_FIELDS = {"type": "type", "int": "i", "float": "f", "bool": "b", "string": "s"}


def attr_value(node: node_def_pb2.NodeDef, attr: Attr) -> Any:
    """The value of an attr: a dtype's name, an int, a float, a bool, a string, or a list of them.

    Raises:
      ValueError: the node does not have the attr; an int above the attr's maximum.
    """
    if attr.name not in node.attr and attr.default is not None:
        return list(attr.default) if isinstance(attr.default, tuple) else attr.default
    if attr.name not in node.attr:
        raise ValueError(f"{node.name} has no attr {attr.name}")
    value, field = node.attr[attr.name], _FIELDS[attr.element]
    values = list(getattr(value.list, field)) if attr.is_list else [getattr(value, field)]
    if attr.element == "int" and attr.maximum is not None and max(values, default=0) > attr.maximum:
        raise ValueError(f"{attr.name} must be at most {attr.maximum}, not {max(values)}")
    if attr.element == "type":
        values = [str(dtypes.as_dtype(value).name) for value in values]
    elif attr.element == "string":
        # A file may hold anything.
        values = [value.decode(errors="backslashreplace") for value in values]
    return values if attr.is_list else values[0]
