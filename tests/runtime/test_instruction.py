"""Intrinsics that stand for a few instructions of LLVM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import njit, types
from numba.core.errors import NumbaError

from fusion.runtime.native.instruction import instruction


@instruction(types.int64(types.int64, types.int64))
def less(builder: Any, a: Any, b: Any) -> Any:
    """The difference."""
    return builder.sub(a, b)


@instruction(lambda value: value(value))
def double(builder: Any, value: Any) -> Any:
    return (builder.add if value.type.intrinsic_name[0] == "i" else builder.fadd)(value, value)


@instruction(types.void())
def fence(builder: Any) -> None:
    builder.fence("seq_cst")


@njit
def differences(a: Any, b: Any) -> Any:
    return less(a, b), less(b=a, a=b)


@njit
def doubles(a: Any, b: Any) -> Any:
    return double(a), double(b)


@njit
def fenced() -> Any:
    return fence()


def test_arguments_come_in_their_order_and_by_name() -> None:
    assert less.__doc__ == "The difference."
    assert differences(7, 3) == (4, -4)
    assert differences(np.int32(7), True) == (6, -6)


def test_a_signature_may_follow_from_the_types() -> None:
    assert doubles(7, 0.25) == (14, 0.5)


def test_what_gives_no_value_gives_none() -> None:
    assert fenced() is None


@pytest.mark.parametrize("call", [lambda: less(1), lambda: less(1, 2, 3), lambda: less("", 2)])
def test_a_call_that_does_not_fit_is_not_compiled(call: Any) -> None:
    with pytest.raises(NumbaError):
        njit(call)()
