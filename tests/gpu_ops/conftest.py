"""Kernels run under Numba's CUDA simulator here.

Whole ops can run on a GPU instead: `FUSION_GPU=1 pytest tests/gpu_ops/test_ops*.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf
from numba.core import config

IS_ON_GPU = os.environ["FUSION_GPU"] != "0"
config.ENABLE_CUDASIM = int(not IS_ON_GPU)
if IS_ON_GPU:
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)


@pytest.fixture(autouse=True)
def _others_on_cpu() -> Iterator[None]:
    """Ops are on the CPU unless they are placed elsewhere, also where there is a GPU."""
    with tf.device("CPU:0"):
        yield


@pytest.fixture(autouse=True)
def _no_problems() -> Iterator[None]:
    """Nothing went wrong where it could not be raised."""
    yield
    if "tests.gpu_ops.driver" in sys.modules:
        from tests.gpu_ops.driver import gpus

        problems, gpus().problems = gpus().problems, []
        assert not problems


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests here."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.gpu)
