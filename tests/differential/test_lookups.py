"""The lookups, and the pass, against stock TensorFlow: random cases of everything at once.

`make fuzz` runs many more of them. A mismatch ends with a program that shows it again.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusion.lookup import VERSIONS
from tests.differential import features
from tests.differential.case import Case
from tests.differential.compare import check
from tests.differential.strategies import PLAIN_REPORT, cases
from tests.parity import UNFUSED, Cell

#: How often every area's examples are drawn, and for how many seconds at most, all areas together.
_IS_NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
_ROUNDS = 32 if _IS_NIGHTLY else 1
_SECONDS = float(os.environ.get("FUZZ_SECONDS", "inf"))

#: A claim to test a place of the parity table needs so many cases of it.
_ENOUGH = 5


@dataclass(frozen=True)
class Area:
    """A part of the lookups that is tested on its own, so that a failure says where.

    Attributes:
      name: of the area.
      cases: what is drawn.
      examples: how many, in a round.
      claims: the places of the parity table that this tests.
    """

    name: str
    cases: st.SearchStrategy[Case]
    examples: int
    claims: tuple[Cell, ...] = ()

    def __str__(self) -> str:
        return self.name


def claim(*rows: str, columns: tuple[str, ...] = VERSIONS) -> tuple[Cell, ...]:
    return tuple((row, column) for row in rows for column in columns)


_CLEAN: dict[str, Any] = {"odd_rows": st.just(()), "odd_weights": st.just(())}
_UNWEIGHTED: dict[str, Any] = {"weights": st.just(None), "max_norm": st.just(None)}
_WEIGHTED: dict[str, Any] = {"weights": st.sampled_from(("sparse", "tensor", "ragged"))}
_CLIPPED: dict[str, Any] = {"max_norm": st.sampled_from((0.5, 0.7, 0.0, -2.0, 3.0))}
_BY_PASS: dict[str, Any] = {"version": st.just("pass"), "mode": st.just("session")}
_FUSED: dict[str, Any] = {
    **_BY_PASS,
    **_UNWEIGHTED,
    "odd_rows": st.sampled_from(((), (), ("nan",), ("inf", "-inf"))),
    "ids": st.just("sparse"),
    "shards": st.just(1),
    "function": st.just("safe"),
    "prune": st.just(True),
}

AREAS = (
    Area("everything", cases(), 1300, claim(*features.ROWS)),
    Area("unweighted", cases(**_CLEAN, **_UNWEIGHTED), 500),
    Area("weighted", cases(**_CLEAN, **_WEIGHTED, max_norm=st.just(None)), 400),
    Area("clipped", cases(**_CLEAN, **_CLIPPED), 300),
    Area("sharded", cases(**_CLEAN, shards=st.integers(2, 12)), 300),
    Area(
        "functions",
        cases(mode=st.just("function")),
        50,
        claim("tf.function", "a table of unknown shape", "ids of unknown rank"),
    ),
    Area(
        "sessions",
        cases(mode=st.just("session"), shards=st.sampled_from((1, 1, 2, 3))),
        200,
        claim("v1 sessions", "a PartitionedVariable", "a v1 reference variable"),
    ),
    Area(
        "fused by the pass",
        cases(**_FUSED),
        300,
        claim(
            "a Variable",
            "a Tensor",
            "a v1 reference variable",
            "a table of unknown shape",
            "float32 tables",
            "float64 tables",
            "float16 tables",
            "bfloat16 tables",
            "int32 ids",
            "int64 ids",
            "ids of rank 2",
            "ids of rank 3 and more",
            "ids of unknown rank",
            "rows in any order",
            "repeated ids",
            "negative ids",
            "NaN and inf in the table",
            "combiner sum",
            "combiner mean",
            "combiner sqrtn",
            "default_id 0",
            "another default_id",
            "no default_id",
            "the same bits, forward and gradient",
            "gradients with distinct ids",
            "two runs with the same bits",
            "v1 sessions",
            columns=("pass",),
        ),
    ),
    Area(
        "left by the pass",
        cases(**_BY_PASS, negative=st.just(0.0), shards=st.integers(1, 3)),
        300,
        claim(
            "partition_strategy div",
            "partition_strategy mod",
            "ragged ids",
            "SparseTensor weights",
            "max_norm",
            "no pruning",
            columns=(UNFUSED,),
        ),
    ),
)


@pytest.mark.parametrize(
    "area",
    [
        pytest.param(area, marks=[pytest.mark.parity(*cell) for cell in area.claims], id=area.name)
        for area in AREAS
    ],
)
def test_lookups_agree_with_stock(area):
    drawn: Counter[Cell] = Counter()
    agreed: Counter[str] = Counter()

    @settings(PLAIN_REPORT, max_examples=area.examples)
    @given(case=area.cases)
    def run(case: Case) -> None:
        has_numbers = check(case)
        agreed["in numbers" if has_numbers else "in raising"] += 1
        if has_numbers:
            drawn.update(features.cells(case))

    share = area.examples / sum(each.examples for each in AREAS)
    end = time.monotonic() + _SECONDS * share
    for done in range(_ROUNDS):
        if done and time.monotonic() > end:
            break
        run()
    print(f"{area}: {dict(agreed)}")
    assert agreed["in numbers"] > 0.6 * sum(agreed.values())
    rare = [cell for cell in area.claims if drawn[cell] < _ENOUGH]
    assert not rare, f"fewer than {_ENOUGH} cases of {rare}"
