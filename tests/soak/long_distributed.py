"""Training by TensorFlow's strategies of as many columns as the example has."""

from __future__ import annotations

import pytest

from examples.distributed.model import COLUMNS
from tests.examples.test_distributed import OPTIMIZERS, check_the_same_model


@pytest.mark.parametrize(("strategy", "optimizer"), OPTIMIZERS)
def test_all_columns(strategy: str, optimizer: str) -> None:
    check_the_same_model(strategy, optimizer, COLUMNS)
