"""What of the GPUs works, for `fusion doctor`."""

from __future__ import annotations

import tensorflow as tf

from fusion.gpu_ops import compile as compiler
from fusion.gpu_ops import cuda_driver
from fusion.runtime.doctor import Fact


def facts() -> list[Fact]:
    """Why there are no kernels for GPUs, or the GPUs, the compiler, and whether an op runs."""
    why_not = cuda_driver.why_not()
    if why_not:
        return [("GPU kernels", f"none: {why_not}", True)]
    try:
        gpus = cuda_driver.Cuda()
        found: list[Fact] = [
            (f"GPU {gpu}", gpus.description(gpu), True) for gpu in range(gpus.number)
        ]
    except RuntimeError as error:
        return [("GPU kernels", str(error), False)]
    if not tf.config.list_physical_devices("GPU"):
        told = "not used: TensorFlow does not see a GPU (it needs CUDA's libraries)"
        return [*found, ("GPU kernels", told, True)]
    ptxas = compiler.assembler()
    return [
        *found,
        ("ptxas", ptxas or "not installed: the driver compiles kernels", True),
        ("GPU kernels", *_tried()),
    ]


def _tried() -> tuple[str, bool]:
    """Whether an op runs on the first GPU and is right."""
    from fusion import ops

    try:
        with tf.device("/GPU:0"):
            found = ops.unique_with_counts_v3(input=tf.constant([7, 5, 7], tf.int64))
        if [one.numpy().tolist() for one in found] == [[7, 5], [0, 1, 0], [2, 1]]:
            return "an op ran on TensorFlow's stream", True
        return "an op gave wrong numbers", False
    except tf.errors.OpError as error:
        return error.message, False
