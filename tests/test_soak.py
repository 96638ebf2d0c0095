"""The check of every kernel's memory, `make soak`, is ready for every op."""

from __future__ import annotations

from tests.soak import kernel_plan
from tests.soak.kernel_objects import KERNELS

_COMMON = {"float32", "int64"}


def test_every_op_has_cases():
    places = [k for k, (_, types) in enumerate(KERNELS) if k and {*types.values()} <= _COMMON]
    cases = kernel_plan.cases(0, places, share=0.2)
    assert {case.kernel for case in cases} == {*places}
    assert any(case.expected[0] == 0 for case in cases)
    assert any(case.expected[0] != 0 for case in cases)
