"""The lookups, and the pass, against stock TensorFlow: random cases of everything at once.

`make fuzz` runs many more of them. A mismatch ends with a program that shows it again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from fusion.lookup import VERSIONS
from tests.differential import features
from tests.differential.agreement import IN_NUMBERS, IN_RAISING, IS_NIGHTLY, rounds
from tests.differential.case import Case
from tests.differential.compare import check
from tests.differential.strategies import DTYPES_OF_TIER, PLAIN_REPORT, bags, cases
from tests.parity import Cell
from tests.tiers import examples, tier

#: A claim to test a place of the parity table needs so many cases of it. Where too few are drawn
#: by chance, some are drawn of it alone.
_ENOUGH = 3 if IS_NIGHTLY else 1
#: How many more are drawn at last, as some raise.
_SPARE = 3


@dataclass(frozen=True)
class Area:
    """A part of the lookups that is tested on its own, so that a failure says where.

    Attributes:
      name: of the area.
      cases: what is drawn.
      examples: how many, in a round of `make fuzz`; `make test` draws fewer.
      claims: the places of the parity table that this tests.
      rounds: in the nightly profile; fewer where each example builds graphs, which takes long.
      part: of a large area, which is tested in parts side by side; each draws examples of its own.
    """

    name: str
    cases: st.SearchStrategy[Case]
    examples: int
    claims: tuple[Cell, ...] = ()
    rounds: int = 34
    part: int | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def id(self) -> str:
        """Of the test."""
        return self.name if self.part is None else f"{self.name}, part {self.part}"

    @property
    def few_examples(self) -> int:
        """How many `make test` draws."""
        return max(5, self.examples // 8)


def claim(*rows: str, columns: tuple[str, ...] = VERSIONS) -> tuple[Cell, ...]:
    return tuple((row, column) for row in rows for column in columns)


_CLEAN: dict[str, Any] = {"odd_rows": st.just(()), "odd_weights": st.just(())}
_UNWEIGHTED: dict[str, Any] = {"weights": st.just(None), "max_norm": st.just(None)}
_WEIGHTED: dict[str, Any] = {"weights": st.sampled_from(("sparse", "tensor", "ragged"))}
_CLIPPED: dict[str, Any] = {"max_norm": st.sampled_from((0.5, 0.7, 0.0, -2.0, 3.0))}
_SESSION: dict[str, Any] = {"mode": st.just("session")}
_BY_PASS: dict[str, Any] = {**_SESSION, "version": st.just("pass")}
_FUSED: dict[str, Any] = {
    **_BY_PASS,
    "lengths": st.one_of(bags(), bags(), st.sampled_from(((), (0, 0), (1,), (7,), (300, 1)))),
    "odd_rows": st.sampled_from(((), (), ("nan",), ("inf", "-inf"))),
}
_EXACT: dict[str, Any] = {"shards": st.sampled_from((1, 1, 2, 3)), **_UNWEIGHTED}
_ROUNDED: dict[str, Any] = {
    "rows": st.sampled_from((5, 10, 3)),
    "shards": st.sampled_from((1, 1, 2, 3)),
    "weights": st.sampled_from((None, "sparse", "ragged")),
    "odd_weights": st.sampled_from(((), ("0",), ("nan",), ("inf", "-"))),
    "max_norm": st.sampled_from((None, 0.0, -1.0, 0.5, 0.7)),
}

#: Rounds of areas whose examples build graphs.
_IN_GRAPHS = 20


def _has_entries(case: Case) -> bool:
    """Whether rows of the table are looked up."""
    valid = case.arrays.values >= 0
    if case.weights is not None:
        valid &= np.asarray(case.arrays.weights > 0)
    return bool(valid.any())


#: In how many parts the largest area is.
_PARTS = 8

AREAS = (
    *(
        Area("everything", cases(), 159, claim(*features.ROWS[part::_PARTS]), part=part)
        for part in range(_PARTS)
    ),
    Area("unweighted", cases(**_CLEAN, **_UNWEIGHTED), 700),
    Area("weighted", cases(**_CLEAN, **_WEIGHTED, max_norm=st.just(None)), 450),
    Area("clipped", cases(**_CLEAN, **_CLIPPED), 300),
    Area("sharded", cases(**_CLEAN, shards=st.integers(2, 12)), 300),
    Area(
        "functions",
        cases(mode=st.just("function")),
        14,
        claim("tf.function", "a table of unknown shape", "ids of unknown rank"),
        _IN_GRAPHS,
    ),
    Area(
        "sessions",
        cases(**_SESSION, shards=st.integers(1, 3)),
        14,
        claim("v1 sessions"),
        _IN_GRAPHS,
    ),
    Area(
        "reference variables",
        cases(**_SESSION, table=st.just("ref"), shards=st.just(1)),
        10,
        claim("a v1 reference variable"),
        _IN_GRAPHS,
    ),
    Area(
        "partitioned variables",
        cases(
            **_SESSION,
            table=st.just("partitioned"),
            strategy=st.just("div"),
            rows=st.integers(5, 30),
            shards=st.integers(1, 5),
        ),
        10,
        claim("a PartitionedVariable"),
        _IN_GRAPHS,
    ),
    Area(
        "fused by the pass",
        cases(**{**_FUSED, **_EXACT}),
        18,
        claim(
            "a Variable",
            "a Tensor",
            "a list of Variables",
            "a list of Tensors",
            "Variables and Tensors in one list",
            "a PartitionedVariable",
            "partition_strategy div",
            "partition_strategy mod",
            "shards of different sizes",
            "more shards than rows",
            "ragged ids",
            "no pruning",
            "no filling",
            "a v1 reference variable",
            "a table of unknown shape",
            "float32 tables",
            "float64 tables",
            "float16 tables",
            "bfloat16 tables",
            "int32 ids",
            "int64 ids",
            "ids of rank 1",
            "ids of rank 2",
            "ids of rank 3 and more",
            "ids of unknown rank",
            "rows in any order",
            "repeated ids",
            "negative ids",
            "bags of up to 1000 ids",
            "no ids at all",
            "no rows at all",
            "all rows empty",
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
        _IN_GRAPHS,
    ),
    Area(
        "fused by the pass, rounded otherwise",
        cases(**{**_FUSED, **_ROUNDED}),
        14,
        claim(
            "SparseTensor weights",
            "RaggedTensor weights",
            "weights that are 0 or negative",
            "NaN and inf among the weights",
            "gradients of weights",
            "max_norm",
            "max_norm 0.0",
            "max_norm below 0",
            "weighted and clipped within rounding",
            columns=("pass",),
        ),
        _IN_GRAPHS,
    ),
    Area(
        "made of fewer stock ops",
        # Without any entry the gradients of stock ops are whatever is in memory.
        cases(**{**_FUSED, **_ROUNDED, "version": st.just("lowered")}).filter(_has_entries),
        12,
        rounds=_IN_GRAPHS,
    ),
    Area(
        "trained steps",
        cases(
            version=st.just("trained"),
            mode=st.just("function"),
            table=st.sampled_from(("variable", "variable", "variables", "sharded")),
            shards=st.just(1),
            dtype=st.sampled_from(("float32", *DTYPES_OF_TIER)),
        ),
        15,
        rounds=_IN_GRAPHS,
    ),
    Area(
        "trained steps of sharded tables",
        cases(
            version=st.just("trained"),
            mode=st.sampled_from(("function", "session")),
            rows=st.integers(5, 30),
            shards=st.integers(2, 5),
        ),
        10,
        rounds=_IN_GRAPHS,
    ),
)


def test_enough_examples_are_drawn():
    assert sum(area.few_examples for area in AREAS) >= 400
    assert sum(area.examples * area.rounds for area in AREAS) >= 100_000


def _params(areas):
    """Areas as values of a parameter, with what they claim."""
    parity = pytest.mark.parity
    return [pytest.param(a, marks=[parity(*cell) for cell in a.claims], id=a.id) for a in areas]


@pytest.mark.parametrize("area", _params(area for area in AREAS if not area.part))
def test_lookups_agree_with_stock(area):
    compare_area(area)


@pytest.mark.parametrize("area", _params(area for area in AREAS if area.part))
def test_other_parts_of_the_largest_area_agree_with_stock(area):
    compare_area(area)


def compare_area(area):
    drawn: Counter[Cell] = Counter()
    agreed: Counter[str] = Counter()

    def run(cases: st.SearchStrategy[Case], count: int) -> None:
        @settings(PLAIN_REPORT, max_examples=count)
        @given(case=cases)
        def compare(case: Case) -> None:
            has_numbers = check(case)
            agreed[IN_NUMBERS if has_numbers else IN_RAISING] += 1
            if has_numbers:
                drawn.update(features.cells(case))

        # What is drawn depends on the function alone, where it is to be the same each time.
        if area.part is not None and not IS_NIGHTLY:
            seed(area.part)(compare)
        compare()

    parts = 1 if area.part is None else _PARTS
    for _ in rounds(area.rounds, len({*map(str, AREAS)}) * parts):
        run(area.cases, area.examples if IS_NIGHTLY else examples(area.few_examples))
    claims = () if tier() == "fast" else area.claims  # few examples have not all of them
    for cell in claims:
        # The first of them are drawn again where those that raise were too many.
        for missing, spare in ((_ENOUGH - drawn[cell], 1), (_ENOUGH, _SPARE)):
            if drawn[cell] < _ENOUGH:
                run(area.cases.filter(partial(_is_of, cell)), missing + spare)
    print(f"{area}: {dict(agreed)}")
    assert agreed[IN_NUMBERS] > (0.2 if tier() == "fast" else 0.6) * sum(agreed.values())
    rare = [cell for cell in claims if drawn[cell] < _ENOUGH]
    assert not rare, f"fewer than {_ENOUGH} cases of {rare}"


def _is_of(cell: Cell, case: Case) -> bool:
    return cell in features.cells(case)
