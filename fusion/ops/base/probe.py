"""Whether kernels work on this machine's GPU: tried once, in a process of its own, and cached.

Only a run shows that TensorFlow's stream is found and that the driver takes the kernels. It is done
before kernels are registered: where they do not work, ops stay on the CPU.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import tensorflow as tf

from fusion import ops
from fusion.gpu_ops.host import availability
from fusion.runtime.cache import kernel_cache
from fusion.runtime.cache.trusted_files import File
from fusion.runtime.native import objects

#: Set in the process that tries.
PROBE_VARIABLE = "FUSION_GPU_PROBE"

_WORKS = "fusion: kernels work"
_FAILS = "fusion: "
_PROGRAM = "from fusion.ops.base import probe; probe.run()"
_SECONDS = 600
_DRIVER = Path("/proc/driver/nvidia")
#: For so many seconds it is believed that kernels do not work: it may be that the GPU was busy.
_DOUBT_SECONDS = 3600
#: What else decides what TensorFlow sees of the GPUs.
_VARIABLES = ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")


def why_not() -> str:
    """Why the ops have no kernels for GPUs in this process; empty if they do."""
    reason = availability.why_not()
    if reason or os.environ.get(PROBE_VARIABLE):
        return reason
    reason = verdict()
    if reason:
        logging.getLogger("fusion").warning("ops stay on the CPU: %s", reason)
    return reason


def verdict(again: bool = False) -> str:
    """Why kernels do not work on the GPU, or ""; cached from an earlier process if there is one.

    Args:
        again: try, whatever is cached.
    """
    try:
        return (
            kernel_cache.default()
            .get(
                f"gpu-{_key()}.txt",
                lambda: _tried().encode(),
                lambda file: not again and _is_fresh(file),
            )
            .decode()
        )
    except subprocess.TimeoutExpired:
        return f"trying the GPU took more than {_SECONDS} seconds"


def _is_fresh(file: File) -> bool:
    return not file.content or time.time() - file.modified < _DOUBT_SECONDS


def _key() -> str:
    """A digest of all that the verdict depends on."""
    from fusion.gpu_ops.host import compile as compiler  # where there is a GPU, not at every import

    tools = compiler.tools(), compiler.assembler()
    digest = hashlib.sha256(f"{objects.fingerprint()} {tf.__version__} {tools}".encode())
    for path in (_DRIVER / "version", *sorted(_DRIVER.glob("gpus/*/information"))):
        digest.update(path.read_bytes() if path.exists() else b"")
    for variable in _VARIABLES:
        digest.update(f"{variable}={os.environ.get(variable)}".encode())
    return digest.hexdigest()[:24]


def _tried() -> str:
    """Tries an op on the first GPU in another process; gives what is wrong, or nothing.

    Raises:
        subprocess.TimeoutExpired: it takes too long.
    """
    environment = {
        **os.environ,
        PROBE_VARIABLE: "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # others may use the GPU, too
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        capture_output=True,
        text=True,
        env=environment,
        timeout=_SECONDS,
        check=False,
    )
    verdicts = [line for line in done.stdout.splitlines() if line.startswith(_FAILS)]
    if verdicts:
        return "" if verdicts[-1] == _WORKS else verdicts[-1].removeprefix(_FAILS)
    last = done.stderr.strip().splitlines()[-1:]
    return f"trying the GPU ended with status {done.returncode}: {' '.join(last)}".rstrip(": ")


def run() -> None:
    """Tries an op on the first GPU and prints what came of it."""
    text = problem().replace("\n", " ")
    print(f"{_FAILS}{text}" if text else _WORKS, flush=True)


def problem() -> str:
    """What is wrong with an op on the first GPU, or nothing."""
    if not tf.config.list_physical_devices("GPU"):
        return "TensorFlow does not see a GPU (it needs CUDA's libraries)"
    try:
        with tf.device("/GPU:0"):
            outputs = ops.unique_with_counts_v3(input=tf.constant([7, 5, 7], tf.int64))
        numbers = [tensor.numpy().tolist() for tensor in outputs]
    except tf.errors.OpError as error:
        return error.message
    if "GPU" not in outputs[0].device:
        return f"an op that was placed on the GPU ran on {outputs[0].device}"
    if numbers != [[7, 5], [0, 1, 0], [2, 1]]:
        return f"an op gave wrong numbers: {numbers}"
    return ""
