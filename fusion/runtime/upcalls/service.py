"""Upcalls: calls of Python by TensorFlow's threads, which end though Python's lock never comes.

A thread that holds Python's lock (the GIL) may be waiting for the one that asks for it. So the
Python function runs on a thread of its own, and the caller waits for it without the lock, in
`native`. Every tenth of a second of that it has a *probe* made: a thread that takes the
lock, counts, and ends. When no probe has had the lock for as long as the caller allows, the call is
given up. So a function may take its time, but no caller waits for a lock that is never free. How
long that is depends on whether the process is idle meanwhile, as it is where threads wait for each
other, or busy.

A *request* is memory from malloc, with copies of all that the function is to know, because what
TensorFlow passes is valid during the call only. The last side to set its state owns it then.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import Protocol

from fusion.runtime.layout import Address, Fields, Flag, Int64, Layout, fields
from fusion.runtime.native import objects
from fusion.runtime.process import keep_forever, single


class UpcallsRecord(Layout):
    """What all upcalls share."""

    serve: Address  # serves a request, for `pthread_create`
    probe: Address  # for `pthread_create`
    holds_lock: Address  # PyGILState_Check of CPython
    is_initialized: Address  # Py_IsInitialized of CPython
    probe_count: Int64  # probes that have had the lock
    is_probing: Flag  # whether one is on its way
    byte_count: Int64  # of all requests under way


class RequestRecord(Layout):
    """A request. All addresses are of memory from malloc that belongs to it."""

    state: Int64  # see below
    server: Int64  # who serves it
    input: Address
    input_length: Int64
    first_names: NameList  # 0 for none
    second_names: NameList
    result: Address
    result_length: Int64
    code: Int64  # the server's own
    thread: Int64  # that asks


#: The memory of a request.
OWNED = (
    RequestRecord.input,
    RequestRecord.first_names,
    RequestRecord.second_names,
    RequestRecord.result,
)


class NameList(Layout):
    """A list of names: as many addresses, then as many lengths."""

    count: Int64
    names: Fields = fields(0)


#: The states of a request.
WAITING, DONE, ABANDONED = range(3)

#: Nanoseconds without the lock that are allowed on top for each byte of the requests under way: to
#: parse and to write a graph are calls that keep the lock.
PATIENCE_NS_PER_BYTE = 16

#: The system call by which threads wait for a change of a word: futex(2).
FUTEX, FUTEX_WAIT, FUTEX_WAKE = 202, 128, 129

#: At the end of the process, so many seconds are given to functions that run.
_FAREWELL_S = 10.0

_SWAP = """
define i64 @swap(ptr %word, i64 %new) {
  %old = atomicrmw xchg ptr %word, i64 %new seq_cst
  ret i64 %old
}
"""

_START_ROUTINE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


class Request:
    """What a thread of TensorFlow asks.

    Attributes:
        when_abandoned: is called when the caller no longer waits for the answer.
    """

    def __init__(self, address: int) -> None:
        self.address = address
        self.when_abandoned: Callable[[], None] = lambda: None
        self._words = (ctypes.c_int64 * RequestRecord.SIZE).from_address(address)

    @property
    def server(self) -> int:
        """Who is asked: what `Upcalls.add` gave."""
        return self._words[RequestRecord.server]

    @property
    def is_abandoned(self) -> bool:
        """Whether the caller no longer waits for an answer."""
        return self._words[RequestRecord.state] == ABANDONED

    @property
    def thread(self) -> int:
        """The thread that asks, as `threading.get_ident` has it."""
        return self._words[RequestRecord.thread]

    def input(self) -> bytes:
        """What is asked about."""
        return ctypes.string_at(
            self._words[RequestRecord.input], self._words[RequestRecord.input_length]
        )

    def names(self, field: int) -> frozenset[str] | None:
        """The list of names `first_names` or `second_names` of `RequestRecord`; None for none."""
        address = self._words[field]
        if not address:
            return None
        count = ctypes.c_int64.from_address(address).value
        words = (ctypes.c_int64 * (2 * count)).from_address(address + 8 * NameList.names)
        pairs = zip(words[:count], words[count:], strict=True)
        return frozenset(ctypes.string_at(start, length).decode() for start, length in pairs)

    def answer(self, data: bytes, code: int = 0) -> bool:
        """Sets what it comes to; False when there is no memory for that."""
        memory = _libc.malloc(max(len(data), 1))
        if not memory:
            return False
        ctypes.memmove(memory, data, len(data))
        _libc.free(self._words[RequestRecord.result])
        self._words[RequestRecord.result] = memory
        self._words[RequestRecord.result_length] = len(data)
        self._words[RequestRecord.code] = code
        return True

    def free(self) -> None:
        """Releases its memory."""
        for field in OWNED:
            _libc.free(self._words[field])
        _libc.free(self.address)


class Server(Protocol):
    """Who answers requests, on threads of their own."""

    def serve(self, request: Request) -> None:
        """Answers a request, or leaves it without an answer."""

    def too_late(self) -> None:
        """Takes note of an abandoned request: the lock came too late."""


class Upcalls:
    """The words that all upcalls share, and what they lead to. There is one in a process."""

    def __init__(self) -> None:
        self.words = (ctypes.c_int64 * UpcallsRecord.SIZE)()
        self._servers: list[Server] = []
        self._renew()
        os.register_at_fork(after_in_child=self._renew)
        (swap,) = objects.load_ir(_SWAP, ["swap"])
        self._swap = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(swap)
        for word, function in (
            (UpcallsRecord.serve, self._serve),
            (UpcallsRecord.probe, self._probe),
        ):
            routine = _START_ROUTINE(function)
            keep_forever(routine)
            self.words[word] = _address(routine)
        self.words[UpcallsRecord.holds_lock] = _address(ctypes.pythonapi.PyGILState_Check)
        self.words[UpcallsRecord.is_initialized] = _address(ctypes.pythonapi.Py_IsInitialized)
        keep_forever(self.words)

    def _renew(self) -> None:
        """Resets the state in a child of a fork, which lacks the threads of its parent."""
        self._idle, self._running = threading.Condition(), 0
        self.words[UpcallsRecord.is_probing] = self.words[UpcallsRecord.byte_count] = 0

    @property
    def address(self) -> int:
        """The address of the words."""
        return ctypes.addressof(self.words)

    def add(self, server: Server) -> int:
        """Returns the number by which requests name a server, from now on."""
        self._servers.append(server)
        return len(self._servers) - 1

    def wait_for_all(self) -> None:
        """Waits for the functions that run, for a while: what is cut short at exit may crash."""
        with self._idle:
            self._idle.wait_for(lambda: self._running == 0, _FAREWELL_S)

    def _serve(self, address: int) -> None:
        request = Request(address)
        server = self._servers[request.server]
        with self._idle:
            self._running += 1
        try:
            if not request.is_abandoned:
                server.serve(request)
        finally:
            if self._swap(address + 8 * RequestRecord.state, DONE) == ABANDONED:
                request.free()
                request.when_abandoned()
                server.too_late()
            else:
                _libc.syscall(FUTEX, address + 8 * RequestRecord.state, FUTEX_WAKE, 1)
            with self._idle:
                self._running -= 1
                self._idle.notify_all()

    def _probe(self, _: int | None) -> None:
        self.words[UpcallsRecord.probe_count] += 1
        self.words[UpcallsRecord.is_probing] = 0


def upcalls() -> Upcalls:
    """The upcalls of this process."""
    return single("upcalls", Upcalls)


def _address(function: object) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


def _load_libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
    libc.syscall.restype = ctypes.c_long
    libc.syscall.argtypes = [ctypes.c_long, ctypes.c_void_p, ctypes.c_long, ctypes.c_long]
    return libc


_libc = _load_libc()
