"""The start of a library's pool of threads, in native code; see `pool` for that of Python."""

from __future__ import annotations

import numpy as np
from numba import types

from fusion.runtime.native.atomic import atomic_load, atomic_store, atomic_swap_if
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load, load_as, stack_words, store
from fusion.runtime.native.text import literal
from fusion.runtime.threads.layout import MOST_THREADS, THREADS_VARIABLE, Pool

_i32, _i64 = types.int32, types.int64
_c_getenv = types.ExternalFunction("getenv", _i64(_i64))
_c_sched_getaffinity = types.ExternalFunction("sched_getaffinity", _i32(_i32, _i64, _i64))
_c_sched_yield = types.ExternalFunction("sched_yield", _i32())
_c_sem_init = types.ExternalFunction("sem_init", _i32(_i64, _i32, _i32))
_c_pthread_create = types.ExternalFunction("pthread_create", _i32(_i64, _i64, _i64, _i64))
_c_pthread_detach = types.ExternalFunction("pthread_detach", _i32(_i64))

#: Words of a set of processors, for 8,192 of them.
_SET_WORDS = 128


@jit
def threads_setting() -> int:
    """The address of what `FUSION_NUM_THREADS` is, 0 if it is not set."""
    return _c_getenv(literal(THREADS_VARIABLE))


@jit
def thread_count() -> int:
    """How many threads may work on one op; 0 if `FUSION_NUM_THREADS` is no positive number."""
    setting, count = threads_setting(), int64(0)
    if setting == 0:
        return min(_processor_count(), int64(MOST_THREADS))
    index = int64(0)
    while load_as(setting, index, np.uint8) != 0:
        digit = int64(load_as(setting, index, np.uint8)) - 48
        if digit < 0 or digit > 9:
            return int64(0)
        count = min(10 * count + digit, int64(MOST_THREADS))
        index += 1
    return count


@jit
def _processor_count() -> int:
    processors, count = stack_words(_SET_WORDS), int64(0)
    for k in range(_SET_WORDS):
        store(processors, k, 0)
    _c_sched_getaffinity(_i32(0), int64(8 * _SET_WORDS), processors)
    for k in range(_SET_WORDS):
        word = load(processors, k)
        for bit in range(64):
            count += word >> bit & 1
    return max(count, int64(1))


@jit
def start(pool: int, threads: int) -> None:
    """Lets a pool have its threads, once, for so many to work on one op."""
    if not atomic_swap_if(pool, Pool.is_starting, int64(0), int64(1)):
        while atomic_load(pool, Pool.is_ready) == 0:
            _c_sched_yield()
        return
    _c_sem_init(pool, _i32(0), _i32(0))
    started, handle = int64(0), stack_words(1)
    for _ in range(threads - 1):
        if _c_pthread_create(handle, int64(0), load(pool, Pool.serve), pool) != 0:
            break
        _c_pthread_detach(load(handle, 0))
        started += 1
    store(pool, Pool.thread_count, started)
    atomic_store(pool, Pool.is_ready, int64(1))


def forget_threads(pool: int) -> None:
    """Lets a pool in a child of a fork be as if it had never been started."""
    for word in range(Pool.serve):
        store(pool, int64(word), 0)
