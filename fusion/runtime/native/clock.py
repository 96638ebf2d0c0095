"""What the system says of the process's time, in compiled code."""

from __future__ import annotations

from numba import types

from fusion.runtime.native.jit import jit
from fusion.runtime.native.pointers import stack_words

#: CLOCK_MONOTONIC and CLOCK_PROCESS_CPUTIME_ID of clock_gettime(2).
_MONOTONIC, _PROCESS_CPU_TIME = 1, 2

#: RUSAGE_SELF of getrusage(2); the words of its struct, and which of them is ru_nivcsw.
_SELF, _RUSAGE_WORDS, _PREEMPTIONS = 0, 18, 17

_i32, _i64 = types.int32, types.int64
_c_clock_gettime = types.ExternalFunction("clock_gettime", _i32(_i32, _i64))
_c_getrusage = types.ExternalFunction("getrusage", _i32(_i32, _i64))


@jit
def now() -> int:
    """Nanoseconds since some time."""
    return _clock(_MONOTONIC)


@jit
def processor_time() -> int:
    """Nanoseconds that all threads of the process have run."""
    return _clock(_PROCESS_CPU_TIME)


@jit
def _clock(number: int) -> int:
    spec = stack_words(2)
    _c_clock_gettime(_i32(number), spec)
    return spec[0] * 1_000_000_000 + spec[1]


@jit
def preemptions() -> int:
    """How often a processor was taken from a thread of the process that could have gone on."""
    usage = stack_words(_RUSAGE_WORDS)
    _c_getrusage(_i32(_SELF), usage)
    return usage[_PREEMPTIONS]
