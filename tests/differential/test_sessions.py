"""Random fetches of one Session in turn: the same bits with fusion as without."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings

import fusion
from tests.differential.agreement import rounds
from tests.differential.sessions import Fetch, Lookup, Program, Table, programs, run
from tests.differential.strategies import PLAIN_REPORT
from tests.tiers import examples

#: Of `make fuzz`, at most.
_ROUNDS = 200

_GATHERS = tuple(Lookup(number) for number in range(6))
_ALL, _FEW = tuple(range(6)), (0, 1, 2, 3)
#: Joins of the same lookups, together and alone: ops of one name have other numbers of inputs.
TOGETHER_AND_ALONE = Program(
    tables=(Table(40, 8),) * 6,
    lookups=_GATHERS,
    joins=(_FEW, _ALL),
    optimizer="sgd",
    fetches=(Fetch("predict", (0, 1)), Fetch("predict", (1,)), Fetch("predict", (0,))),
)
#: As `fit` with validation in tf_keras' v1 mode.
TRAINED_AND_VALIDATED = Program(
    tables=(Table(40, 8), Table(40, 8), Table(7, 16, "float64"), Table(40, 3, has_keys=True)),
    lookups=(Lookup(0), Lookup(1, "mean"), Lookup(2), Lookup(3), Lookup(3, "sum"), Lookup(0)),
    joins=((0, 1, 3, 4), (2,), (0, 1, 5)),
    optimizer="adagrad",
    fetches=(
        Fetch("train", (0,)),
        Fetch("loss", (0, 2)),
        Fetch("train", (2,)),
        Fetch("predict", (0, 1, 2), (1,)),
        Fetch("train", (1,)),
        Fetch("partial", (0, 2)),
        Fetch("predict", (2,), (0,), fed=5),
        Fetch("train", (0,)),
    ),
)


def test_fetches_in_turn_agree_with_stock() -> None:
    agreed: Counter[str] = Counter()

    @settings(PLAIN_REPORT, max_examples=examples(5))
    @given(program=programs())
    def compare(program: Program) -> None:
        agreed[check(program)] += 1

    for _ in rounds(_ROUNDS):
        compare()
    print(f"sessions: {dict(agreed)}")
    assert agreed["fused"] > 0.3 * sum(agreed.values()), dict(agreed)


@pytest.mark.parametrize("program", [TOGETHER_AND_ALONE, TRAINED_AND_VALIDATED])
def test_fetches_that_share_names_agree_with_stock(program: Program) -> None:
    assert check(program) == "fused"


def check(program: Program) -> str:
    """Runs a program without fusion and with it; says whether lookups are fused."""
    expected = run(program)
    before = _calls()
    with fusion.fused():
        found = run(program)
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs, err_msg=str(program))
    return "fused" if _calls() - before > 0 else "stock"


def _calls() -> int:
    """How often ops were run that only passes put into these graphs."""
    made = {"ReadEmbeddingTables", "GroupedEmbeddingLookup", "FusedEmbeddingLookup"}
    made |= {"GroupedEmbeddingPreLookUp", "FusedEmbeddingUpdate"}
    return sum(one.calls for one in fusion.stats().ops if one.op in made)
