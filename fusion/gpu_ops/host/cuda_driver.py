"""The GPUs of this machine, by NVIDIA's driver; see `fusion.runtime.cuda.launcher`."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from functools import cached_property

from fusion.gpu_ops.host import modules
from fusion.gpu_ops.host.availability import LIBRARY
from fusion.gpu_ops.kernels.registry import KERNELS
from fusion.runtime.cuda import launcher, stream

#: "1" makes every op wait for its kernels, so that errors are those of the op that they are in.
WAIT_VARIABLE = "FUSION_GPU_WAIT"

_OLDEST = (7, 5)
_COMPUTE_CAPABILITY = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, ..._MINOR
_NOT_READY = 600
_EVENT_DISABLE_TIMING = 2
_MAPPED_EVERYWHERE = 3  # CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP


class Cuda:
    """A `launcher.Gpus`.

    Raises:
      RuntimeError: the driver fails.
    """

    def __init__(self) -> None:
        self.driver = ctypes.CDLL(LIBRARY)
        self.kernels = len(KERNELS)
        self.waits = os.environ.get(WAIT_VARIABLE) == "1"
        self._call("cuInit", 0)

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self.driver, name)(*arguments)
        if code != 0:
            text = ctypes.c_char_p()
            self.driver.cuGetErrorString(code, ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'').decode()} ({code})")

    @cached_property
    def functions(self) -> Mapping[int, int]:
        """See `launcher.Gpus`."""
        return {
            field: ctypes.cast(getattr(self.driver, name), ctypes.c_void_p).value or 0
            for field, name in launcher.FUNCTIONS.items()
        }

    @cached_property
    def number(self) -> int:
        """See `launcher.Gpus`."""
        number = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(number))
        return number.value

    def capability(self, gpu: int) -> tuple[int, int]:
        """The compute capability of a GPU."""
        device, values = ctypes.c_int(), (ctypes.c_int(), ctypes.c_int())
        self._call("cuDeviceGet", ctypes.byref(device), gpu)
        for value, attribute in zip(values, _COMPUTE_CAPABILITY, strict=True):
            self._call("cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
        return values[0].value, values[1].value

    def description(self, gpu: int) -> str:
        """The name of a GPU, its compute capability and the driver's version of CUDA."""
        device, version = ctypes.c_int(), ctypes.c_int()
        name = ctypes.create_string_buffer(100)
        self._call("cuDeviceGet", ctypes.byref(device), gpu)
        self._call("cuDeviceGetName", name, len(name), device)
        self._call("cuDriverGetVersion", ctypes.byref(version))
        major, minor = divmod(version.value, 1000)
        capability = "{}.{}".format(*self.capability(gpu))
        return f"{name.value.decode()}, compute capability {capability}, CUDA {major}.{minor // 10}"

    def stream(self, context: int) -> tuple[int, int]:
        """See `launcher.Gpus`."""
        return stream.find(context, self._problem_of_stream)

    def _problem_of_stream(self, stream: int) -> str:
        """What is wrong with a stream; see `stream.Check`."""
        if not stream:
            return "there is no stream"
        context, handle = ctypes.c_void_p(), ctypes.c_void_p(stream)
        code = self.driver.cuStreamGetCtx(handle, ctypes.byref(context))
        if code or not context.value:
            return f"the driver does not know the stream ({code})"
        code = self.driver.cuStreamQuery(handle)
        return "" if code in (0, _NOT_READY) else f"the stream cannot be used ({code})"

    def load(self, kernel: int, gpu: int) -> int:
        """See `launcher.Gpus`."""
        name, capability = list(KERNELS)[kernel], self.capability(gpu)
        if capability < _OLDEST:
            version, needed = ("{}.{}".format(*one) for one in (capability, _OLDEST))
            raise RuntimeError(f"GPU {gpu} has compute capability {version}, kernels need {needed}")
        module, handle = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), modules.code(name, capability))
        entry = modules.entry_of(name).encode()
        self._call("cuModuleGetFunction", ctypes.byref(handle), module, entry)
        return handle.value or 0

    def shared_memory(self, size: int) -> int:
        """See `launcher.Gpus`."""
        memory, flags = ctypes.c_void_p(), _MAPPED_EVERYWHERE
        self._call("cuMemHostAlloc", ctypes.byref(memory), ctypes.c_size_t(size), flags)
        ctypes.memset(memory, 0, size)
        return memory.value or 0

    def event(self) -> int:
        """See `launcher.Gpus`."""
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), _EVENT_DISABLE_TIMING)
        return event.value or 0
