"""What host code needs to launch kernels on GPUs: addresses, in words that a process has once.

Host code calls the CUDA driver by the addresses of its functions, on the stream of TensorFlow that
the op's context has (`stream`). Kernels are loaded when they are first launched on a GPU: then host
code asks for them by `LOAD`. Without a GPU another set of functions can take the driver's place.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from fusion.runtime.process import keep_forever, single

#: The words: functions of the driver; a function (context) -> its stream, 0 if there is none; one
#: (kernel, GPU) -> the kernel's handle on that GPU, 0 if there is none; what the last of those that
#: gave 0 says, a C string; zeros that stand for words that could not be read; whether every op
#: waits for its kernels; the number of kernels, and the handles that were given, int64 [GPUs,
#: kernels].
(
    LAUNCH,
    COPY_IN,
    COPY_OUT,
    FILL,
    WAIT,
    STREAM_CONTEXT,
    PUSH,
    POP,
    CONTEXT_DEVICE,
    STREAM,
    LOAD,
    REASON,
    ZEROS,
    WAITS,
    KERNEL_COUNT,
    HANDLES,
) = range(16)
_WORDS = 16

#: The driver's functions, by word (CUDA Driver API; those with a suffix are what its header means).
FUNCTIONS = {
    LAUNCH: "cuLaunchKernel",
    COPY_IN: "cuMemcpyHtoDAsync_v2",
    COPY_OUT: "cuMemcpyDtoHAsync_v2",
    FILL: "cuMemsetD8Async",
    WAIT: "cuStreamSynchronize",
    STREAM_CONTEXT: "cuStreamGetCtx",
    PUSH: "cuCtxPushCurrent_v2",
    POP: "cuCtxPopCurrent_v2",
    CONTEXT_DEVICE: "cuCtxGetDevice",
}

#: Words that a node's kernels tell of trouble in.
TROUBLE_WORDS = 4
_TROUBLE_PAGE = 1 << 16
_REASON_BYTES = 400
#: More than an op reads at once.
_ZERO_BYTES = 1 << 20

_ASKED = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
_ASKED_FOR_KERNEL = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


class Gpus(Protocol):
    """The GPUs of a machine, or what stands for them."""

    @property
    def functions(self) -> Mapping[int, int]:
        """The addresses of `FUNCTIONS`."""

    @property
    def number(self) -> int:
        """How many GPUs there are."""

    @property
    def kernels(self) -> int:
        """How many kernels there are."""

    @property
    def waits(self) -> bool:
        """Whether every op waits for its kernels."""

    def stream(self, context: int) -> tuple[int, int]:
        """The stream of an op's context, and the address of a C function that finds it.

        Raises:
          RuntimeError: it cannot be found.
        """

    def load(self, kernel: int, gpu: int) -> int:
        """The handle of a kernel, by number, on a GPU.

        Raises:
          RuntimeError: there is none.
        """

    def shared_memory(self, size: int) -> int:
        """The address of zeroed memory of the host that kernels of all GPUs can write to."""


class Launcher:
    """The words, and the Python functions that they lead to."""

    def __init__(self, gpus: Gpus) -> None:
        self.gpus, self.words = gpus, (ctypes.c_int64 * _WORDS)()
        self._lock, self._free = threading.Lock(), range(0)
        self._reason = ctypes.create_string_buffer(_REASON_BYTES)
        handles = (ctypes.c_int64 * (gpus.number * gpus.kernels))()
        find_stream, load = _ASKED(self._find_stream), _ASKED_FOR_KERNEL(self._load)
        for place, address in gpus.functions.items():
            self.words[place] = address
        self.words[STREAM] = _address(find_stream)
        self.words[LOAD] = _address(load)
        self.words[REASON] = ctypes.addressof(self._reason)
        zeros = (ctypes.c_int64 * (_ZERO_BYTES // 8))()
        self.words[ZEROS] = ctypes.addressof(zeros)
        self.words[WAITS] = int(gpus.waits)
        self.words[KERNEL_COUNT] = gpus.kernels
        self.words[HANDLES] = ctypes.addressof(handles)
        self._handles = handles
        for thing in (self.words, self._reason, handles, zeros, find_stream, load):
            keep_forever(thing)

    @property
    def address(self) -> int:
        """The address of the words."""
        return ctypes.addressof(self.words)

    def trouble_words(self) -> int:
        """The address of `TROUBLE_WORDS` zeros for a new node's kernels.

        Nodes go without a word, so it is never given back.
        """
        with self._lock:
            if not self._free:
                page = self.gpus.shared_memory(_TROUBLE_PAGE)
                self._free = range(page, page + _TROUBLE_PAGE, 8 * TROUBLE_WORDS)
            first, self._free = self._free[0], self._free[1:]
            return first

    def _find_stream(self, context: int) -> int:
        """Finds the first stream; from then on compiled code does."""

        def find() -> int:
            stream, self.words[STREAM] = self.gpus.stream(context)
            return stream

        return self._tried(find)

    def _load(self, kernel: int, gpu: int) -> int:
        def load() -> int:
            with self._lock:
                place = gpu * self.gpus.kernels + kernel
                if not self._handles[place]:
                    self._handles[place] = self.gpus.load(kernel, gpu)
                return self._handles[place]

        return self._tried(load)

    def _tried(self, attempt: Callable[[], int]) -> int:
        try:
            return attempt()
        except Exception as error:  # nothing may be raised into C
            text = f"{type(error).__name__}: {error}".encode()[: _REASON_BYTES - 1]
            self._reason.value = text
            return 0


def _address(function: object) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


class _Chosen:
    """The launcher of this process, once a kernel needs it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.launcher: Launcher | None = None


_chosen = single("launcher", _Chosen)


def launcher(find: Callable[[], Gpus]) -> Launcher:
    """The launcher of the process, for the GPUs that `find` gives whoever asks first."""
    with _chosen.lock:
        if _chosen.launcher is None:
            _chosen.launcher = Launcher(find())
        return _chosen.launcher
