"""Whether this process may have kernels for GPUs, as far as is known without calling CUDA."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from pathlib import Path

import tensorflow as tf

#: "0" leaves all ops on the CPU.
GPU_VARIABLE = "FUSION_GPU"

#: NVIDIA's driver.
LIBRARY = "libcuda.so.1"
_DEVICE_FILES = Path("/dev/nvidiactl"), Path("/dev/dxg")  # the latter of WSL 2


def why_not() -> str:
    """Why the ops have no kernels for GPUs in this process; empty if they do.

    Nothing of CUDA is called: a process that imports this package may fork before it uses a GPU.
    """
    if os.environ.get(GPU_VARIABLE) == "0":
        return f"{GPU_VARIABLE} is 0"
    if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
        return "Numba's CUDA simulator is on"
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides all GPUs"
    if not tf.test.is_built_with_cuda():
        return "this TensorFlow is built without CUDA"
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return "NVIDIA's driver is not installed"
    if not any(path.exists() for path in _DEVICE_FILES):
        return "there is no NVIDIA GPU"
    if importlib.util.find_spec("numba_cuda") is None:
        return "numba-cuda is not installed: pip install 'tf-embedding-fusion[cuda]'"
    return ""
