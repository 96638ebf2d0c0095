"""What compiled code asks of the system: memory, files and time (Linux, x86-64 and arm64).

This module is imported only when something is compiled.
"""

from __future__ import annotations

from numba import types

from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import load_as
from fusion.runtime.native.pointers import stack_words
from fusion.runtime.native.text import literal

_i32, _i64 = types.int32, types.int64
_mmap = types.ExternalFunction("mmap", _i64(_i64, _i64, _i32, _i32, _i32, _i64))
_munmap = types.ExternalFunction("munmap", _i32(_i64, _i64))
_madvise = types.ExternalFunction("madvise", _i32(_i64, _i64, _i32))
_mincore = types.ExternalFunction("mincore", _i32(_i64, _i64, _i64))
_sysconf = types.ExternalFunction("sysconf", _i64(_i32))
_dlsym = types.ExternalFunction("dlsym", _i64(_i64, _i64))
_open = types.ExternalFunction("open", _i32(_i64, _i32))
_close = types.ExternalFunction("close", _i32(_i32))
_lseek = types.ExternalFunction("lseek", _i64(_i32, _i64, _i32))
_pread = types.ExternalFunction("pread", _i64(_i32, _i64, _i64, _i64))
_errno = types.ExternalFunction("__errno_location", _i64())
_strerror = types.ExternalFunction("strerror", _i64(_i32))
_clock_gettime = types.ExternalFunction("clock_gettime", _i32(_i32, _i64))
_getrusage = types.ExternalFunction("getrusage", _i32(_i32, _i64))

#: Of a large page of memory, and of a small one.
LARGE_PAGE, PAGE = 1 << 21, 1 << 12

#: PROT_READ | PROT_WRITE; MAP_PRIVATE | MAP_NORESERVE, and the same with MAP_ANONYMOUS.
_READ_WRITE, _OF_FILE, _ON_DEMAND = 3, 0x4002, 0x4022

#: MADV_RANDOM, MADV_DONTNEED and MADV_HUGEPAGE (asm-generic/mman-common.h).
_RANDOM, _DROP, _HUGE = 1, 4, 14

#: _SC_PAGESIZE and _SC_PHYS_PAGES of the GNU C library.
_PAGE_BYTES, _MACHINE_PAGES = 30, 85

#: O_RDONLY | O_CLOEXEC, SEEK_END, EINTR.
_FOR_READING, _TO_END, _INTERRUPTED = 0o2000000, 2, 4

#: So many bytes are read at once: the system reads a little less than 2**31 at most.
_READ_BYTES = 1 << 30

#: CLOCK_MONOTONIC and CLOCK_PROCESS_CPUTIME_ID of clock_gettime(2).
_MONOTONIC, _PROCESS_CPU_TIME = 1, 2

#: RUSAGE_SELF of getrusage(2); the words of its struct, and which of them is ru_nivcsw.
_SELF, _RUSAGE_WORDS, _PREEMPTIONS = 0, 18, 17


@jit
def map_memory(size: int) -> int:
    """The address of zeros that take memory when they are written; 0 if there is none.

    They begin with a large page. Large pages are only faster: lookups are all over the memory, and
    there are more small ones than the processor remembers.
    """
    mapped = (size + PAGE - 1) // PAGE * PAGE
    nowhere, flags = int64(0), _i32(_ON_DEMAND)
    start = _mmap(nowhere, mapped + LARGE_PAGE, _i32(_READ_WRITE), flags, _i32(-1), nowhere)
    if start == -1:
        return int64(0)
    address = (start + LARGE_PAGE - 1) // LARGE_PAGE * LARGE_PAGE
    if address > start:
        _munmap(start, address - start)
    _munmap(address + mapped, start + LARGE_PAGE - address)
    use_large_pages(address, mapped)
    return address


@jit
def use_large_pages(address: int, size: int) -> None:
    """Asks for large pages."""
    _madvise(address, size, _i32(_HUGE))


@jit
def read_no_further(address: int, size: int) -> None:
    """Has the system read a page of mapped memory when it is used, and none of those behind it."""
    _madvise(address, size, _i32(_RANDOM))


@jit
def machine_bytes() -> int:
    """The memory of the machine."""
    return _sysconf(_i32(_MACHINE_PAGES)) * page_bytes()


@jit
def page_bytes() -> int:
    """The size of the system's small pages."""
    return _sysconf(_i32(_PAGE_BYTES))


@jit
def drop_pages(address: int, size: int) -> bool:
    """Makes pages zeros, which take no memory; whether they can be dropped."""
    return _madvise(address, size, _i32(_DROP)) == 0


@jit
def unmap(address: int, size: int) -> None:
    """Gives mapped memory back."""
    _munmap(address, size)


@jit
def unmapper() -> int:
    """The address of a deallocator of tensors (data, size, argument) that unmaps them.

    munmap(2) finds what it needs in the first two arguments.
    """
    return _dlsym(int64(0), literal("munmap"))


@jit
def are_mapped(first: int, size: int, pages: int) -> bool:
    """Whether memory from the start of a page on is mapped.

    Args:
      pages: memory of a byte for each page.
    """
    return _mincore(first, size, pages) == 0


@jit
def open_file(path: int) -> int:
    """A file to be read, by its path, a C string; -1 if it cannot be opened."""
    return int64(_open(path, _i32(_FOR_READING)))


@jit
def close_file(file: int) -> None:
    """Closes a file; what is mapped of it stays."""
    _close(_i32(file))


@jit
def file_bytes(file: int) -> int:
    """The size of a file; -1 if it has none."""
    return _lseek(_i32(file), int64(0), _i32(_TO_END))


@jit
def map_file(file: int, size: int) -> int:
    """The address of the content of a file in memory; 0 if that fails.

    All processes share the pages, but those that one writes, which are its own from then on.
    """
    nowhere = int64(0)
    address = _mmap(nowhere, size, _i32(_READ_WRITE), _i32(_OF_FILE), _i32(file), nowhere)
    return address if address != -1 else nowhere


@jit
def read_at(file: int, address: int, size: int, offset: int) -> int:
    """Reads into memory up to so many bytes of a file; how many, 0 at its end, -1 if it cannot."""
    return _pread(_i32(file), address, size, offset)


@jit
def read_file(file: int, size: int) -> int:
    """The address of the content of a file, in mapped memory; 0 if it cannot be read."""
    address, done = map_memory(size), int64(0)
    while address != 0 and done < size:
        count = read_at(file, address + done, min(size - done, int64(_READ_BYTES)), done)
        if count > 0:
            done += count
        elif count == 0 or error_number() != _INTERRUPTED:
            _munmap(address, size)
            address = int64(0)
    return address


@jit
def error_number() -> int:
    """The number of the error that a call has ended with."""
    return int64(load_as(_errno(), int64(0), _i32))


@jit
def error_text() -> int:
    """The address of what the system says of it, a C string."""
    return _strerror(_i32(error_number()))


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
    _clock_gettime(_i32(number), spec)
    return spec[0] * 1_000_000_000 + spec[1]


@jit
def preemptions() -> int:
    """How often a processor was taken from a thread of the process that could have gone on."""
    usage = stack_words(_RUSAGE_WORDS)
    _getrusage(_i32(_SELF), usage)
    return usage[_PREEMPTIONS]
