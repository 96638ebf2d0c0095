"""How many threads there are, and the start of those of a library; see `pool` for Python's."""

from __future__ import annotations

from numba import types

from fusion.runtime.limits.processors import processor_limit
from fusion.runtime.native.atomic import atomic_load, atomic_store, atomic_swap_if
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import store
from fusion.runtime.native.pointers import stack_words
from fusion.runtime.native.text import byte, literal
from fusion.runtime.threads.layout import INTRA_OP_VARIABLE, MAX_THREADS, THREADS_VARIABLE, Pool

_i32, _i64 = types.int32, types.int64
_c_getenv = types.ExternalFunction("getenv", _i64(_i64))
_c_sched_yield = types.ExternalFunction("sched_yield", _i32())
_c_sem_init = types.ExternalFunction("sem_init", _i32(_i64, _i32, _i32))
_c_pthread_create = types.ExternalFunction("pthread_create", _i32(_i64, _i64, _i64, _i64))
_c_pthread_detach = types.ExternalFunction("pthread_detach", _i32(_i64))

_DIGIT_0 = ord("0")


@jit
def threads_setting() -> int:
    """The address of the value of `FUSION_NUM_THREADS`, 0 if it is not set."""
    return _c_getenv(literal(THREADS_VARIABLE))


@jit
def positive_number(text: int) -> int:
    """The number in a C string, at most MAX_THREADS; 0 if it is not a positive number."""
    count = int64(0)
    if text == 0:
        return count
    while byte(text) != 0:
        digit = byte(text) - _DIGIT_0
        if digit < 0 or digit > 9:
            return int64(0)
        count = min(10 * count + digit, int64(MAX_THREADS))
        text += 1
    return count


@jit
def thread_count(chosen: int) -> int:
    """How many threads may work on one op.

    Args:
      chosen: TensorFlow's intra-op setting; 0 leaves it to the environment.
    """
    count = positive_number(threads_setting())
    if count > 0:
        return count
    limit = min(processor_limit(literal("")), int64(MAX_THREADS))
    if chosen <= 0:
        chosen = positive_number(_c_getenv(literal(INTRA_OP_VARIABLE)))
    return min(chosen, limit) if chosen > 0 else limit


def write_thread_count(chosen: int, count: int) -> None:
    """Sets the word at `count` to `thread_count(chosen)`."""
    store(count, 0, thread_count(chosen))


@jit
def start(pool: Pool, threads: int) -> None:
    """Starts the threads of a pool, once, so that `threads` can work on one op."""
    if not atomic_swap_if(pool, Pool.is_starting, int64(0), int64(1)):
        while atomic_load(pool, Pool.is_ready) == 0:
            _c_sched_yield()
        return
    _c_sem_init(pool, _i32(0), _i32(0))
    started, handle = int64(0), stack_words(1)
    for _ in range(threads - 1):
        if _c_pthread_create(handle, int64(0), pool.serve, pool) != 0:
            break
        _c_pthread_detach(handle[0])
        started += 1
    pool.thread_count = started
    atomic_store(pool, Pool.is_ready, int64(1))


def forget_threads(pool: int) -> None:
    """Resets a pool in a child of a fork, as if it had never been started."""
    for word in range(Pool.serve):
        store(pool, int64(word), 0)
