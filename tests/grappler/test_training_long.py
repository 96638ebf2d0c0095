"""26 columns, trained for many steps: the losses of each have stock's bits."""

from __future__ import annotations

import pytest

import fusion
from tests.grappler.training_steps import GRADIENT, Column, train

COLUMNS = [Column(combiner) for combiner in ("mean", "sum", "sqrtn")] * 8
PLAIN = [*COLUMNS, Column(options={"default_id": 3}), Column(plain=True)]
WEIGHTED = [*COLUMNS, Column(weighted=True), Column("sqrtn", weighted=True)]


@pytest.mark.parametrize(
    ("optimizer", "columns"),
    [("sgd", PLAIN), ("adam", WEIGHTED)],
    ids=["sgd", "weighted, adam"],
)
def test_thirty_steps(optimizer: str, columns: list[Column]) -> None:
    """Two hundred of each optimizer in tests/soak/long_grappler.py."""
    check_steps(optimizer, columns, 30)


def check_steps(optimizer: str, columns: list[Column], steps: int) -> None:
    """Trains without fusion and with it."""
    assert len(columns) == 26
    stock = train(columns, optimizer, steps=steps)
    with fusion.fused():
        fused = train(columns, optimizer, steps=steps)
    report = fusion.stats().last_report
    assert report is not None
    # TensorFlow's profiler does not tell of ops that took no time in the steps before.
    assert [update.fused for update in report.updates] == [True] * 26
    fused.assert_same(stock)
    assert len(fused.losses) == steps
    assert fused.count(GRADIENT) == 1
    assert stock.count(GRADIENT) == 0
