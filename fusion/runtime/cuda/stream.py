"""The CUDA stream that TensorFlow runs an op on, which its C API does not give.

A `TF_OpKernelContext` is an `OpKernelContext` of C++. TensorFlow exports its function
`eigen_device<GpuDevice>()`; the first member of a GpuDevice (Eigen, `GpuStreamDevice`) is a pointer
to a StreamInterface, whose first virtual function after the two destructors returns the address of
the stream. All of that is checked once, before anything is called or read, and so is the stream.
Where it does not hold, a small file is compiled against TensorFlow's headers, by g++.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from fusion.runtime.native import objects
from fusion.runtime.tensorflow import library

_DEVICE_OF = "_ZNK10tensorflow15OpKernelContext12eigen_deviceIN5Eigen9GpuDeviceEEERKT_v"
#: The index of `stream()` among the virtual functions of a StreamInterface.
_STREAM_INDEX = 2

_FUNCTION = """
define i64 @stream_of(i64 %context) {{
  %device_of = inttoptr i64 {device_of} to ptr
  %device = tail call ptr %device_of(i64 %context)
  %interface = load ptr, ptr %device
  %functions = load ptr, ptr %interface
  %entry = getelementptr ptr, ptr %functions, i64 {index}
  %function = load ptr, ptr %entry
  %stream_at = tail call ptr %function(ptr %interface)
  %stream = load i64, ptr %stream_at
  ret i64 %stream
}}
"""

_Call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)

#: (stream) -> what is wrong with it, or nothing.
Check = Callable[[int], str]


def find(context: int, check: Check) -> tuple[int, int]:
    """The stream of an op's context, and the address of a C function (context) -> its stream.

    Raises:
      RuntimeError: neither way leads to a stream that passes the check.
    """
    reasons = []
    for name, way in (("TensorFlow's library", by_library), ("g++", by_headers)):
        try:
            stream, function = way(context)
            problem = check(stream)
            if not problem:
                return stream, function
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            problem = str(error)
        reasons.append(f"by {name}: {problem}")
    raise RuntimeError(f"TensorFlow's CUDA stream cannot be found ({'; '.join(reasons)})")


def by_library(context: int) -> tuple[int, int]:
    """The stream by what TensorFlow's library exports; see `find`.

    Raises:
      RuntimeError: something is not where it should be.
    """
    tf = ctypes.CDLL(library.path())
    if not hasattr(tf, _DEVICE_OF):
        raise RuntimeError("it does not export eigen_device<GpuDevice>")
    return by_device(ctypes.cast(getattr(tf, _DEVICE_OF), ctypes.c_void_p).value or 0, context)


def by_device(device_of: int, context: int) -> tuple[int, int]:
    """The stream by the address of `eigen_device<GpuDevice>()`; see `find`.

    Raises:
      RuntimeError: something is not where it should be.
    """
    memory = _Memory()
    device = _Call(device_of)(context)
    interface = memory.word(device, "the device")
    functions = memory.word(interface, "its stream's interface")
    function = memory.word(functions + 8 * _STREAM_INDEX, "the functions of that")
    if not memory.holds(function, "x"):
        raise RuntimeError(f"{function:#x} is no function")
    stream = memory.word(_Call(function)(interface), "the stream")
    text = _FUNCTION.format(device_of=device_of, index=_STREAM_INDEX)
    return stream, objects.load_ir(text, ["stream_of"])[0]


def by_headers(context: int) -> tuple[int, int]:
    """The stream by a file compiled against TensorFlow's headers; see `find`.

    Raises:
      OSError: there is no g++.
      subprocess.SubprocessError: it fails.
    """
    code = objects.get(f"stream_by_headers_{tf.__version__}", _compile)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "stream.so")
        path.write_bytes(code)
        function = ctypes.CDLL(str(path)).fusion_stream
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    return _Call(address)(context), address


def _compile() -> bytes:
    source = Path(__file__).with_name("stream.cc")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "stream.so")
        flags = [*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags()]
        command = ["g++", "-shared", "-fPIC", "-O2", "-w", str(source), *flags, "-o", str(target)]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        return target.read_bytes()


class _Memory:
    """The memory of this process, as far as it can be read or run."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int, str]] = []
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, rights = line.split()[:2]
            first, end = (int(bound, 16) for bound in span.split("-"))
            self.ranges.append((first, end, rights))

    def holds(self, address: int, right: str) -> bool:
        """Whether the word at an address can be read (r) or executed (x)."""
        return any(
            first <= address and address + 8 <= end and right in rights
            for first, end, rights in self.ranges
        )

    def word(self, address: int, what: str) -> int:
        """The word at an address.

        Raises:
          RuntimeError: it cannot be read.
        """
        if address % 8 or not self.holds(address, "r"):
            raise RuntimeError(f"the address of {what}, {address:#x}, is none")
        return int(ctypes.c_int64.from_address(address).value)
