"""The native side of an upcall, on a thread of TensorFlow; see `service`."""

from __future__ import annotations

from numba import types

from fusion.runtime.layout import Words
from fusion.runtime.native.atomic import atomic_add, atomic_load, atomic_swap, atomic_swap_if
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_free, c_malloc, c_memcpy, call_at, store
from fusion.runtime.native.pointers import as_record, as_words, stack_words
from fusion.runtime.native.system import now, preemptions, processor_time
from fusion.runtime.upcalls.service import (
    ABANDONED,
    DONE,
    FUTEX,
    FUTEX_WAIT,
    OWNED,
    PATIENCE_NS_PER_BYTE,
    WAITING,
    RequestRecord,
    UpcallsRecord,
)

#: Nanoseconds between two probes of the lock.
_SLICE_NS = 100_000_000

#: A process is idle if it computes for less than 1/_IDLE of the time, and not because others use
#: the processors: it was not preempted since the lock was last free.
_IDLE = 20

#: While it is not idle, the lock's holder may be computing, or many threads may share the lock on
#: an overloaded machine: time without the lock then counts so many times less.
_BUSY = 10

_i32, _i64 = types.int32, types.int64
_c_syscall = types.ExternalFunction("syscall", _i64(_i64, _i64, _i64, _i64, _i64))
_c_pthread_create = types.ExternalFunction("pthread_create", _i32(_i64, _i64, _i64, _i64))
_c_pthread_self = types.ExternalFunction("pthread_self", _i64())
_c_pthread_detach = types.ExternalFunction("pthread_detach", _i32(_i64))


@jit
def new_request(server: int, data: int, length: int) -> int:
    """The address of a request to a server about a copy of some bytes; 0 if there is no memory."""
    request = as_record(RequestRecord, c_malloc(int64(8 * RequestRecord.SIZE)))
    copy = c_malloc(max(length, 1))
    if request == 0 or copy == 0:
        c_free(request)
        c_free(copy)
        return int64(0)
    for word in range(RequestRecord.SIZE):
        store(request, int64(word), int64(0))
    c_memcpy(copy, data, length)
    request.state = WAITING
    request.server = server
    request.input = copy
    request.input_length = length
    request.thread = _c_pthread_self()
    return request


@jit
def free_request(request: Words) -> None:
    """Releases a request and all its memory."""
    for field in OWNED:
        c_free(request[int64(field)])
    c_free(request)


@jit
def upcall(record: UpcallsRecord, request: RequestRecord, patience: int) -> bool:
    """Has Python serve a request; returns whether it did.

    Otherwise the request is no longer the caller's, and nothing of it may be used.

    Args:
      patience: nanoseconds without the lock after which the request is abandoned.
    """
    if not _is_initialized(record):
        free_request(as_words(request))
        return False
    if _i32(call_at(record.holds_lock)) != 0:
        # This thread has the lock itself: no other could have it before the call is over.
        call_at(record.serve, request)
        return True
    length = request.input_length
    atomic_add(record, UpcallsRecord.byte_count, length)
    if _start_thread(record.serve, request):
        served = _wait(record, request, patience)
    else:
        free_request(as_words(request))
        served = False
    atomic_add(record, UpcallsRecord.byte_count, -length)
    return served


@jit
def _wait(record: UpcallsRecord, request: int, patience: int) -> bool:
    """Waits until a request is served, or the lock has not been free for too long."""
    slice_spec = stack_words(2)
    slice_spec[0] = int64(0)
    slice_spec[1] = int64(_SLICE_NS)
    probed, waited = atomic_load(record, UpcallsRecord.probe_count), int64(0)
    last, last_cpu, preempted = now(), processor_time(), preemptions()
    while atomic_load(request, RequestRecord.state) == WAITING:
        _c_syscall(FUTEX, request + 8 * RequestRecord.state, FUTEX_WAIT, WAITING, slice_spec)
        time, cpu = now(), processor_time()
        # A process that was stopped for an hour has not been without the lock for an hour.
        passed = min(time - last, 2 * _SLICE_NS)
        is_idle = (cpu - last_cpu) * _IDLE < passed and preemptions() == preempted
        waited += passed if is_idle else passed // _BUSY
        last, last_cpu = time, cpu
        if atomic_load(record, UpcallsRecord.probe_count) != probed:
            probed, waited = atomic_load(record, UpcallsRecord.probe_count), int64(0)
            preempted = preemptions()
        limit = patience + PATIENCE_NS_PER_BYTE * atomic_load(record, UpcallsRecord.byte_count)
        if waited > limit or not _is_initialized(record):
            return atomic_swap(request, RequestRecord.state, int64(ABANDONED)) == DONE
        if atomic_load(request, RequestRecord.state) == WAITING:
            _probe(record)
    return True


@jit
def _probe(record: UpcallsRecord) -> None:
    """Has a thread try to get the lock, unless one does already."""
    if atomic_swap_if(record, UpcallsRecord.is_probing, int64(0), int64(1)) and not _start_thread(
        record.probe, int64(0)
    ):
        record.is_probing = int64(0)


@jit
def _start_thread(routine: int, argument: int) -> bool:
    """Calls a function on a new thread; returns whether one could be started."""
    handle = stack_words(1)
    if _c_pthread_create(handle, int64(0), routine, argument) != 0:
        return False
    _c_pthread_detach(handle[0])
    return True


@jit
def _is_initialized(record: UpcallsRecord) -> bool:
    """Whether Python is initialized; it is not when the process ends."""
    return _i32(call_at(record.is_initialized)) != 0
