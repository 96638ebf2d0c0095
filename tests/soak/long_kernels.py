"""All kernels for all GPUs that are supported, and all that objects are made from.

The tests of each change take one of two GPUs for each kernel, and two kinds of objects.
"""

from __future__ import annotations

from fusion.gpu_ops.host.compile import CAPABILITIES
from fusion.gpu_ops.kernels.registry import KERNELS
from tests.gpu_ops.test_compile import check_kernels
from tests.runtime.test_sources import SCAN, SOME, SORT, check_sources


def test_kernels_fit_all_gpus() -> None:
    check_kernels(list(KERNELS), CAPABILITIES)


def test_nothing_else_has_a_part_in_an_object() -> None:
    check_sources([name for name in SOME if name not in (SCAN, SORT)])  # those are text
