"""Numba's CUDA simulator in the place of NVIDIA's driver, under whole ops of TensorFlow.

The bodies of the ops' kernels for GPUs are registered for nodes on a CPU that ask for them by a
label. They launch kernels as on a GPU, by addresses of functions: those here, which run kernels in
the simulator, on the memory that TensorFlow gives on a CPU.

As on a GPU, what is on a stream comes later: here, when a thread waits for it, or when the op ends,
since TensorFlow on a CPU looks at results then.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import tensorflow as tf

from fusion.gpu_ops.kernels.registry import KERNELS
from fusion.gpu_ops.language import simulated
from fusion.ops.registered import SPECS
from fusion.runtime.cuda import launcher
from fusion.runtime.cuda.layout import LauncherRecord
from fusion.runtime.registration import op_kernels, registration
from fusion.runtime.registration.op_kernels import Kernels
from tests.gpu_ops import hardware
from tests.gpu_ops.simulation import launch

LABEL = "simulated"
#: What stands for the context of each of two GPUs, and for streams: one of each, and one more of
#: the first GPU.
CONTEXTS = (0xC1, 0xC2)
STREAMS = (0x51, 0x52, 0x53)
_GPU_OF = dict(zip(STREAMS, (0, 1, 0), strict=True))

_C64, _C32 = ctypes.c_int64, ctypes.c_uint32
#: What the driver's functions take.
TYPES: dict[int, tuple[Any, ...]] = {
    LauncherRecord.launch: (_C64, _C32, _C32, _C32, _C32, _C32, _C32, _C32, _C64, _C64, _C64),
    LauncherRecord.copy_in: (_C64, _C64, _C64, _C64),
    LauncherRecord.copy_out: (_C64, _C64, _C64, _C64),
    LauncherRecord.fill: (_C64, ctypes.c_uint8, _C64, _C64),
    LauncherRecord.wait: (_C64,),
    LauncherRecord.stream_context: (_C64, _C64),
    LauncherRecord.push: (_C64,),
    LauncherRecord.pop: (_C64,),
    LauncherRecord.context_device: (_C64,),
    LauncherRecord.event_wait: (_C64,),
    LauncherRecord.event_record: (_C64, _C64),
}


class SimulatedGpus:
    """A `launcher.Gpus`: two GPUs that are one simulator.

    Attributes:
        log: the names of the driver's functions called, kernels by their own.
        events: how many were made.
        left: how many contexts threads have pushed and not popped.
        fails: the results of functions and kernels that shall fail, by name.
        streams: what calls get, one after the other, again and again.
        problems: what went wrong in functions and kernels, and should not have.
    """

    kernels = len(KERNELS)
    number = 2
    waits = False

    def __init__(self) -> None:
        self.log: list[str] = []
        self.left = self.events = 0
        self.fails: dict[str, int] = {}
        self.streams: list[int] = [STREAMS[0]]
        self.calls = 0
        self.problems: list[BaseException] = []
        self.loaded: list[tuple[str, int]] = []
        self._lock = threading.RLock()
        self._pushed: dict[int, list[int]] = {}
        self._own: dict[int, int] = {}
        self._later: dict[int, list[Callable[[], Any]]] = {stream: [] for stream in STREAMS}
        self._recorded: dict[int, int] = {}
        self._kept: list[Any] = []
        self._names = list(KERNELS)
        self._stream = ctypes.CFUNCTYPE(_C64, _C64)(lambda context: self._next_stream())

    def _next_stream(self) -> int:
        """That of a call, whose thread has it from now on."""
        with self._lock:
            self.calls += 1
            found = self.streams[self.calls % len(self.streams)]
            self._own[threading.get_native_id()] = found
        return found

    @property
    def own(self) -> int:
        """The stream of the thread's call."""
        return self._own[threading.get_native_id()]

    def _put(self, stream: int, run: Callable[[], Any]) -> None:
        """Puts something on the stream of the call."""
        assert stream == self.own
        assert self.pushed == [CONTEXTS[_GPU_OF[stream]]]
        self._later[stream].append(run)

    def _finish(self, stream: int) -> None:
        """Does what is on a stream."""
        waiting, self._later[stream] = self._later[stream], []
        with simulated.allow_all():
            for run in waiting:
                run()

    @property
    def pushed(self) -> list[int]:
        """The contexts of the thread, as CUDA has them.

        Of TensorFlow's threads Python knows nothing from one call to the next.
        """
        return self._pushed.setdefault(threading.get_native_id(), [])

    @property
    def functions(self) -> Mapping[int, int]:
        """Each logs its call, and returns what it is to."""
        found = {}
        for field, name in launcher.FUNCTIONS.items():
            run = getattr(self, name.removesuffix("_v2"))
            function = ctypes.CFUNCTYPE(ctypes.c_int32, *TYPES[field])(self._logged(name, run))
            self._kept.append(function)
            found[field] = ctypes.cast(function, ctypes.c_void_p).value or 0
        return found

    def _logged(self, name: str, run: Any) -> Any:
        def called(*arguments: int) -> int:
            with self._lock:
                self.log.append(name)
                if name in self.fails:
                    return self.fails[name]
                try:
                    return int(run(*arguments) or 0)
                except BaseException as error:  # which compiled code cannot pass on
                    self.problems.append(error)
                    return 999

        return called

    def stream(self, context: int) -> tuple[int, int]:
        if "stream" in self.fails:
            raise RuntimeError("there is none")
        return self._next_stream(), ctypes.cast(self._stream, ctypes.c_void_p).value or 0

    def load(self, kernel: int, gpu: int) -> int:
        name = self._names[kernel]
        if f"load {name}" in self.fails:
            raise RuntimeError(f"{name} is not there")
        self.loaded.append((name, gpu))
        return 1000 * (gpu + 1) + kernel

    def shared_memory(self, size: int) -> int:
        self._kept.append((ctypes.c_uint8 * size)())
        return ctypes.addressof(self._kept[-1])

    def event(self) -> int:
        assert self.pushed
        self.events += 1
        return self.events

    def cuEventSynchronize(self, event: int) -> None:
        assert 0 < event <= self.events
        if event in self._recorded:
            self._finish(self._recorded[event])

    def cuEventRecord(self, event: int, stream: int) -> None:
        assert 0 < event <= self.events
        assert stream == self.own
        self._recorded[event] = stream

    def cuLaunchKernel(self, handle: int, *given: int) -> int:
        """Launches a kernel; blocks and threads have one dimension."""
        grid, block, shared, stream, places, extra = *given[:1], *given[3:4], *given[6:]
        assert given[1:3] == given[4:6] == (1, 1)
        assert (shared, extra) == (0, 0)
        assert handle // 1000 == _GPU_OF[stream] + 1
        name = self._names[handle % 1000]
        self.log.append(name)
        if name in self.fails:
            return self.fails[name]
        at = (_C64 * KERNELS[name].arguments).from_address(places)
        arguments = [_C64.from_address(address).value for address in at]
        self._put(stream, lambda: launch(name, grid, block, arguments))
        return 0

    def cuMemcpyHtoDAsync(self, target: int, source: int, size: int, stream: int) -> None:
        self._put(stream, lambda: ctypes.memmove(target, source, size))

    def cuMemcpyDtoHAsync(self, target: int, source: int, size: int, stream: int) -> None:
        self._put(stream, lambda: ctypes.memmove(target, source, size))

    def cuMemsetD8Async(self, target: int, byte: int, size: int, stream: int) -> None:
        self._put(stream, lambda: ctypes.memset(target, byte, size))

    def cuStreamSynchronize(self, stream: int) -> None:
        assert stream == self.own
        self._finish(stream)

    def cuStreamGetCtx(self, stream: int, address: int) -> None:
        _C64.from_address(address).value = CONTEXTS[_GPU_OF[stream]]

    def cuCtxPushCurrent(self, context: int) -> None:
        self.pushed.append(context)
        self.left += 1

    def cuCtxPopCurrent(self, address: int) -> None:
        _C64.from_address(address).value = self.pushed.pop()
        self.left -= 1
        self._finish(self.own)

    def cuCtxGetDevice(self, address: int) -> None:
        ctypes.c_int32.from_address(address).value = CONTEXTS.index(self.pushed[-1])


@cache
def gpus() -> Any:
    """The GPUs of this process that kernels are registered for; those of `hardware` if chosen."""
    if hardware.CHOSEN:
        return hardware.gpus()
    found = SimulatedGpus()
    registration.register_labelled(SPECS, lambda: found, LABEL)
    return found


def kernels_on_gpu(op: str) -> Kernels:
    """The kernels of an op for those GPUs."""
    gpus()
    found = op_kernels.kernels_of(op, "GPU" if hardware.CHOSEN else LABEL)
    assert found is not None
    return found


@contextmanager
def labelled(*names: str) -> Iterator[None]:
    """Makes nodes of these ops, or of all, ask for kernels for GPUs, while a graph is built.

    On a GPU that is chosen all ops are placed there.
    """
    if hardware.CHOSEN:
        with hardware.placed():
            yield
        return
    chosen = names or [spec.name for spec in SPECS if "GPU" in spec.kernels]
    gpus()
    graph = tf.compat.v1.get_default_graph()
    with graph._kernel_label_map(dict.fromkeys(chosen, LABEL)):
        yield


def on_gpu(function: Any, *inputs: Any) -> Any:
    """What a function of tensors gives with its ops on a GPU, as NumPy arrays."""

    @tf.function(autograph=False)
    def traced(*tensors: Any) -> Any:
        with labelled():
            return function(*tensors)

    with tf.device("CPU:0"):
        return tf.nest.map_structure(lambda one: one.numpy(), traced(*inputs))
