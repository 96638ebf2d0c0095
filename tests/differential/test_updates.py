"""Random steps of training with stock optimizers: the same bits with fusion as without.

`make fuzz` draws many more of them than `make test`.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings

import fusion
from tests.differential.agreement import rounds
from tests.differential.strategies import PLAIN_REPORT
from tests.differential.updates import Lookup, Step, steps, train
from tests.keras.releases import SQUEEZES_BIASES
from tests.tiers import examples

#: Of `make fuzz`, at most.
_ROUNDS = 400


def test_steps_of_training_agree_with_stock() -> None:
    agreed: Counter[str] = Counter()

    @settings(PLAIN_REPORT, max_examples=examples(12))
    @given(step=steps())
    def compare(step: Step) -> None:
        agreed[check(step)] += 1

    for _ in rounds(_ROUNDS):
        compare()
    print(f"steps of training: {dict(agreed)}")
    assert agreed["fused"] > 0.3 * sum(agreed.values()), dict(agreed)


def check(step: Step) -> str:
    """Trains without fusion and with it; says whether updates are fused."""
    stock = train(step)
    before = fusion.stats().last_report
    with fusion.fused():
        fused = train(step)
    for mine, theirs in zip(fused, stock, strict=True):
        np.testing.assert_array_equal(mine, theirs, err_msg=str(step))
    report = fusion.stats().last_report
    is_new = report is not None and report is not before
    updates = report.updates if report is not None and is_new else ()
    assert updates or step.module in ("v1", "legacy"), f"no report of {step}"
    return "fused" if any(update.fused for update in updates) else "stock"


def test_a_table_of_one_row_is_reported() -> None:
    """Keras up to 3.15 squeezes its sums to a bias that it adds; found by the fuzzer."""
    step = Step(
        module="keras",
        optimizer="Lion",
        options=(("beta_1", 0.9), ("learning_rate", 0.1)),
        tables=((1, 3),),
        lookups=(Lookup(0, None, 1),),
        dtype="float32",
        static=False,
        seed=0,
    )
    assert check(step) == ("stock" if SQUEEZES_BIASES else "fused")


def test_weight_decay_waits_for_lookups_of_a_table() -> None:
    """Stock's write waits for the gather by a control edge alone; found by the fuzzer."""
    once, bag = Lookup(2, None, 1), Lookup(0, "sum", 2)
    step = Step(
        module="keras",
        optimizer="SGD",
        options=(("learning_rate", 0.1), ("weight_decay", 0.01)),
        tables=((40, 16), (1, 16), (1, 1)),
        lookups=(once, once, bag),
        dtype="float32",
        static=False,
        seed=56,
    )
    stock = train(step)
    with fusion.fused():
        fused = train(step)
    for mine, theirs in zip(fused, stock, strict=True):
        np.testing.assert_array_equal(mine, theirs)
