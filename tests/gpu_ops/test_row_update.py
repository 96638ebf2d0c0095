"""The kernels that update rows, in the simulator: the bits of FusedEmbeddingRowUpdate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fusion import ops
from fusion.cpu_ops.rules import RULES
from fusion.gpu_ops.layout.call import BAD_RATE
from fusion.gpu_ops.steps.row_update import Slots, update_rows
from fusion.runtime.tensorflow.dtypes import FLOAT32, FLOAT64
from tests.gpu_ops.simulation import Simulated

# Of numbers that are too large, and of those that are none.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

#: Slots that are never negative, and numbers for any rule.
POSITIVE = ("v", "accumulator")
NUMBERS = (0.37, 0.1, 0.02, 0.003)
#: No denormal ones, which a CPU's thread takes for zeros.
SPECIAL = [0.0, -0.0, 1e30, -1e30, np.inf, -np.inf, np.nan]


def some(shape: tuple[int, int], dtype: Any, seed: int) -> Any:
    draw = np.random.default_rng(seed)
    values = draw.normal(size=shape).astype(dtype)
    places = draw.random(shape) < 0.2
    values[places] = draw.choice(SPECIAL, places.sum()).astype(dtype)
    return values


def updated(rule: str, updates: Any, numbers: Any, slots: list[Any]) -> tuple[list[Any], list[int]]:
    """What the kernel makes of slots, and the errors that it reports."""
    device, errors = Simulated(), np.zeros(4, np.int64)
    new = [np.full_like(slot, 77) for slot in slots]
    old_places, new_places = (
        Slots(*(*map(device.put, arrays), 0, 0, 0)[:3]) for arrays in (slots, new)
    )
    kind = FLOAT32 if updates.dtype == np.float32 else FLOAT64
    update_rows(
        device, kind, [*RULES].index(rule), device.put(updates), old_places, new_places,
        device.put(numbers), updates.size, device.put(errors),
    )  # fmt: skip
    return new, errors.tolist()


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (9, 7)])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_have_the_bits_of_the_cpu(dtype: Any, rule: str, shape: tuple[int, int]) -> None:
    names, numbers = RULES[rule].slots, np.array(NUMBERS[: len(RULES[rule].numbers)], dtype)
    slots = [some(shape, dtype, index) for index in range(len(names))]
    slots = [
        np.abs(array) if name in POSITIVE else array
        for array, name in zip(slots, names, strict=True)
    ]
    updates = some(shape, dtype, 9)
    mine, errors = updated(rule, updates, numbers, slots)
    assert not any(errors)
    theirs = ops.fused_embedding_row_update(updates, numbers, slots, rule=rule)
    for array, other in zip(mine, theirs, strict=True):
        wanted = other.numpy()
        np.testing.assert_array_equal(array, wanted, strict=True)
        is_number = ~np.isnan(wanted)
        np.testing.assert_array_equal(np.signbit(array[is_number]), np.signbit(wanted[is_number]))


@pytest.mark.parametrize("rate", [0.0, -1.0, np.nan])
def test_a_rate_that_is_not_positive_is_told(rate: float) -> None:
    slots = [np.ones((2, 2), np.float32)] * 3
    numbers = np.array([rate, 0.1, 0.1, 0.1], np.float32)
    _, errors = updated("ftrl", slots[0], numbers, slots)
    assert errors == [BAD_RATE, 0, 0, 0]
    assert not any(updated("adam", slots[0], numbers, slots)[1])
