"""The launcher of kernels on GPUs, one in a process; see `layout`.

Host code calls the CUDA driver by the addresses of its functions, on the stream of TensorFlow that
the op's context has (`stream`). Kernels are loaded when they are first launched on a GPU: then host
code asks for them by `LauncherRecord.load`. Without a GPU another set of functions can take the
driver's place.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from fusion.runtime.cuda.layout import (
    ERROR_SLOTS,
    SLOT_BYTES,
    SLOT_COUNT,
    CopySlot,
    ErrorSlot,
    GpuRecord,
    LauncherRecord,
)
from fusion.runtime.process import keep_forever, single
from fusion.runtime.tensorflow.layout import State

#: The driver's functions, by field (CUDA Driver API; with a suffix, what its header means).
FUNCTIONS = {
    LauncherRecord.launch: "cuLaunchKernel",
    LauncherRecord.copy_in: "cuMemcpyHtoDAsync_v2",
    LauncherRecord.copy_out: "cuMemcpyDtoHAsync_v2",
    LauncherRecord.fill: "cuMemsetD8Async",
    LauncherRecord.wait: "cuStreamSynchronize",
    LauncherRecord.stream_context: "cuStreamGetCtx",
    LauncherRecord.push: "cuCtxPushCurrent_v2",
    LauncherRecord.pop: "cuCtxPopCurrent_v2",
    LauncherRecord.context_device: "cuCtxGetDevice",
    LauncherRecord.event_wait: "cuEventSynchronize",
    LauncherRecord.event_record: "cuEventRecord",
}

_ERROR_PAGE = 1 << 16
_REASON_BYTES = 400
#: More than an op reads at once.
_ZERO_BYTES = 1 << 20

_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
_KERNEL_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


class Gpus(Protocol):
    """The GPUs of a machine, or a simulation of them."""

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
        """The handle of a kernel, by number, on the GPU whose context is the calling thread's.

        Raises:
          RuntimeError: there is none.
        """

    def shared_memory(self, size: int) -> int:
        """The address of zeroed memory of the host that all GPUs can use.

        Raises:
          RuntimeError: there is none.
        """

    def event(self) -> int:
        """The handle of a new event in the context of the calling thread.

        Raises:
          RuntimeError: there is none.
        """


class Launcher:
    """The words of the `LauncherRecord`, and the Python functions that they point to."""

    def __init__(self, gpus: Gpus) -> None:
        self.gpus, self.words = gpus, (ctypes.c_int64 * LauncherRecord.SIZE)()
        self._lock, self._free = threading.RLock(), range(0)
        self._of_gpu = (ctypes.c_int64 * gpus.number)()
        self._reason = ctypes.create_string_buffer(_REASON_BYTES)
        zeros = (ctypes.c_int64 * (_ZERO_BYTES // 8))()
        callbacks = {
            LauncherRecord.find_stream: _CALLBACK(self._find_stream),
            LauncherRecord.load: _KERNEL_CALLBACK(self._load),
            LauncherRecord.open_gpu: _CALLBACK(self._open_gpu),
            LauncherRecord.open_node: _CALLBACK(self._open_node),
        }
        for field, function in callbacks.items():
            self.words[field] = ctypes.cast(function, ctypes.c_void_p).value or 0
        for field, address in gpus.functions.items():
            self.words[field] = address
        self.words[LauncherRecord.reason] = ctypes.addressof(self._reason)
        self.words[LauncherRecord.zeros] = ctypes.addressof(zeros)
        self.words[LauncherRecord.waits] = int(gpus.waits)
        self.words[LauncherRecord.gpus] = ctypes.addressof(self._of_gpu)
        for thing in (self.words, self._of_gpu, self._reason, zeros, *callbacks.values()):
            keep_forever(thing)

    @property
    def address(self) -> int:
        """The address of the words."""
        return ctypes.addressof(self.words)

    def _open_gpu(self, gpu: int) -> int:
        def open_gpu() -> int:
            with self._lock:
                if not self._of_gpu[gpu]:
                    self._of_gpu[gpu] = self._new_gpu()
                return self._of_gpu[gpu]

        return self._tried(open_gpu)

    def _new_gpu(self) -> int:
        words = (ctypes.c_int64 * (GpuRecord.handles + self.gpus.kernels))()
        memory = self.gpus.shared_memory(SLOT_COUNT * SLOT_BYTES)
        for slot in range(SLOT_COUNT):
            first = GpuRecord.slots + slot * CopySlot.SIZE
            words[first + CopySlot.event] = self.gpus.event()
            words[first + CopySlot.memory] = memory + slot * SLOT_BYTES
        keep_forever(words)
        return ctypes.addressof(words)

    def _open_node(self, state: int) -> int:
        """Gives a node its error slots, which are never freed: nothing reports its end."""

        def open_node() -> int:
            with self._lock:
                slots = ctypes.c_int64.from_address(state + 8 * State.error_slots)
                if not slots.value:
                    if not self._free:
                        page = self.gpus.shared_memory(_ERROR_PAGE)
                        size = 8 * ERROR_SLOTS * ErrorSlot.SIZE
                        self._free = range(page, page + _ERROR_PAGE - size + 1, size)
                    slots.value, self._free = self._free[0], self._free[1:]
                return 1

        return self._tried(open_node)

    def _find_stream(self, context: int) -> int:
        """Finds the first stream; from then on compiled code does."""

        def find() -> int:
            stream, self.words[LauncherRecord.find_stream] = self.gpus.stream(context)
            return stream

        return self._tried(find)

    def _load(self, kernel: int, gpu: int) -> int:
        def load() -> int:
            with self._lock:
                at = self._of_gpu[gpu] + 8 * (GpuRecord.handles + kernel)
                handle = ctypes.c_int64.from_address(at)
                if not handle.value:
                    handle.value = self.gpus.load(kernel, gpu)
                return handle.value

        return self._tried(load)

    def _tried(self, attempt: Callable[[], int]) -> int:
        try:
            return attempt()
        except BaseException as error:  # nothing may be raised into C
            text = f"{type(error).__name__}: {error}".encode()[: _REASON_BYTES - 1]
            self._reason.value = text.decode(errors="ignore").encode()
            return 0


class _Chosen:
    """The launcher of this process, once a kernel needs it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.launcher: Launcher | None = None


_chosen = single("launcher", _Chosen)


def launcher(find: Callable[[], Gpus]) -> Launcher:
    """The launcher of the process, for the GPUs that `find` returns in the first call."""
    with _chosen.lock:
        if _chosen.launcher is None:
            _chosen.launcher = Launcher(find())
        return _chosen.launcher
