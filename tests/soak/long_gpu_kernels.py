"""Every kernel fits every GPU that is supported: the tests of each change take two of them."""

from __future__ import annotations

from fusion.gpu_ops.host.compile import CAPABILITIES
from fusion.gpu_ops.kernels.registry import KERNELS
from tests.gpu_ops.test_compile import check_kernels


def test_kernels_fit_all_gpus() -> None:
    check_kernels(list(KERNELS), CAPABILITIES)
