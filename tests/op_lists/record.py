"""Records the ops and kernels of a release of TensorFlow from an unpacked wheel of it.

    pip download tensorflow-cpu==2.9.3 --no-deps --only-binary=:all: --python-version 3.10
    unzip tensorflow_cpu-2.9.3-*.whl -d FOLDER
    python record.py FOLDER 2.9

writes `2.9.ops` and `2.9.kernels`. Only the standard library is used; wheels before 2.12 need the
Python that they are made for, whose symbols their library takes. When all releases are there,

    python -m tests.op_lists.pack FOLDER

packs those of a folder into `lists.tar.xz`.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path


class Buffer(ctypes.Structure):
    """`TF_Buffer`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("deallocator", ctypes.c_void_p),
    )


def record(wheel: Path, release: str) -> None:
    """Writes the lists of a release."""
    names = ("libtensorflow_framework", "libtensorflow_cc", "_pywrap_tensorflow_internal")
    found = [path for name in names for path in sorted(wheel.rglob(f"{name}.so*"))[:1]]
    # From 2.12 on the second has all, and the third is for Python.
    libraries = [ctypes.CDLL(str(path), os.RTLD_LAZY | os.RTLD_GLOBAL) for path in found[:2]]
    library = libraries[-1]
    for name in ("TF_GetAllOpList", "TF_GetAllRegisteredKernels"):
        getattr(library, name).restype = ctypes.POINTER(Buffer)
    library.TF_NewStatus.restype = ctypes.c_void_p
    status = ctypes.c_void_p(library.TF_NewStatus())
    lists = {
        "ops": library.TF_GetAllOpList(),
        "kernels": library.TF_GetAllRegisteredKernels(status),
    }
    for kind, buffer in lists.items():
        content = ctypes.string_at(buffer.contents.data, buffer.contents.length)
        Path(f"{release}.{kind}").write_bytes(content)


if __name__ == "__main__":
    record(Path(sys.argv[1]), sys.argv[2])
    sys.stdout.flush()
    os._exit(0)  # libraries of old releases do not unload well
