"""The row-sparse Adagrad for Keras 3: the numbers of Keras's own, for ids in any number."""

from __future__ import annotations

import numpy as np
import pytest

from tests.optimizers import runs
from tests.optimizers.runs import BATCHES, TABLE


@pytest.mark.parametrize("way", ["keras3 eager", "keras3 function"])
@pytest.mark.parametrize("options", [{}, {"epsilon": 1e-3, "initial_accumulator_value": 0.5}])
def test_the_numbers_are_those_of_keras(options: dict[str, float], way: str) -> None:
    states = [runs.train(way, which, BATCHES, "adagrad", **options) for which in ("lazy", "stock")]
    runs.assert_same(states)
    assert np.any(states[0].table != TABLE)
