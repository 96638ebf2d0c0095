"""Random graphs that are split by request: their numbers, and that no interaction of rows is lost.

`make fuzz` draws many more of them than `make test`.
"""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from fusion.passes.recognise.match import NoMatch
from tests.differential.agreement import rounds
from tests.differential.request_programs import (
    IDS,
    MIXING,
    PLANTED,
    build,
    build_any,
    feeds,
)
from tests.differential.strategies import PLAIN_REPORT
from tests.request_splits import (
    COUNTS,
    Model,
    check_numbers,
    close_numbers,
    repeated,
    run,
    run_split,
)
from tests.tiers import examples

SEEDS = st.integers(0, 2**32)
COUNT_LISTS = ((3, 1, 4), (1,), (2, 0, 5), (6,), (0, 3))
#: In the nightly profile: of programs without interactions and without a plan, and of 30 programs
#: each with one, which are 10,000.
_ROUNDS, _ROUNDS_OF_INTERACTIONS = 100, 340


def interacts(model: Model, seed: int) -> bool:
    """Whether a row of an output changes with other rows, or with their number."""
    feed = feeds(seed, 6, 6)
    changed = {key: value.copy() for key, value in feed.items()}
    for value in changed.values():
        value[:4] = value[:4] * -3 + 1 if value.dtype.kind == "f" else (value[:4] + 2) % IDS
    wanted = run(model.graph, feed, model.fetches)
    others = run(model.graph, changed, model.fetches)
    fewer = run(model.graph, {key: value[:4] for key, value in feed.items()}, model.fetches)

    def differ(a: np.ndarray, b: np.ndarray) -> bool:
        return not np.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)

    return any(
        differ(a[4:], b[4:]) or differ(a[:4], c)
        for a, b, c in zip(wanted, others, fewer, strict=True)
    )


def test_programs_without_interactions_have_the_original_s_numbers() -> None:
    found: Counter[str] = Counter()

    @settings(PLAIN_REPORT, max_examples=examples(20))
    @given(seed=SEEDS, steps=st.integers(5, 40), counts=st.sampled_from(COUNT_LISTS))
    def compare(seed: int, steps: int, counts: tuple[int, ...]) -> None:
        model = build(seed, steps)
        if isinstance(model.split(), NoMatch):
            found["refused"] += 1
            return
        found["accepted"] += 1
        check_numbers(model, feeds(seed, len(counts), sum(counts)), counts, close_numbers)

    for _ in rounds(_ROUNDS, 3):
        compare()
    print(f"requests: {dict(found)}")
    assert found["accepted"] > 0.8 * found.total(), dict(found)


def test_exact_programs_have_the_original_s_bits_behind_the_optimizer() -> None:
    """In all but a few: where sums of both sides are regrouped, `verify` refuses a model."""
    found: Counter[str] = Counter()

    @settings(PLAIN_REPORT, max_examples=examples(60))
    @given(seed=SEEDS, steps=st.integers(5, 40), counts=st.sampled_from(((3, 1, 4), (7,))))
    def compare(seed: int, steps: int, counts: tuple[int, ...]) -> None:
        model = build(seed, steps)
        split = model.split(several=len(counts) > 1, exact=True)
        if isinstance(split, NoMatch):
            return
        feed = feeds(seed, len(counts), sum(counts))
        wanted = run(model.graph, repeated(feed, counts), model.fetches, optimized=True)
        given = {**feed, COUNTS: np.array(counts, np.int64)}
        got = run_split(model, split, given, optimized=True)
        are_equal = all(
            np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
            for a, b in zip(wanted, got, strict=True)
        )
        found["equal" if are_equal else "rounded"] += 1

    for _ in rounds(_ROUNDS, 3):
        compare()
    print(f"exact: {dict(found)}")
    assert found["equal"] >= 0.95 * found.total(), dict(found)


def test_no_program_with_an_interaction_of_rows_is_accepted() -> None:
    found: Counter[str] = Counter()

    @settings(PLAIN_REPORT, max_examples=examples(30))
    @given(seed=SEEDS, steps=st.integers(5, 40), planted=st.sampled_from(MIXING))
    def check(seed: int, steps: int, planted: object) -> None:
        model = build(seed, steps, planted)  # type: ignore[arg-type]
        refused = model.split(several=bool(seed % 2))
        if isinstance(refused, NoMatch):
            found["for it" if refused.node.startswith(PLANTED) else "for another reason"] += 1
            if seed % 10 == 0:
                found["changes numbers" if interacts(model, seed) else "changes none"] += 1
            return
        assert not interacts(model, seed), f"accepted: {planted}"
        found["accepted: it changes nothing"] += 1

    for _ in rounds(_ROUNDS_OF_INTERACTIONS, 3):
        check()
    print(f"interactions of rows: {dict(found)}")
    assert found["for it"] > 0.8 * (found["for it"] + found["for another reason"]), dict(found)
    assert found["changes numbers"] >= found["changes none"], dict(found)


def test_what_is_accepted_of_programs_without_a_plan_keeps_rows_apart() -> None:
    found: Counter[str] = Counter()

    @settings(PLAIN_REPORT, max_examples=examples(40))
    @given(seed=SEEDS, steps=st.integers(5, 25), counts=st.sampled_from(COUNT_LISTS))
    def check(seed: int, steps: int, counts: tuple[int, ...]) -> None:
        whole, rng = build_any(seed, steps), random.Random(seed)
        several = len(counts) > 1 or rng.random() < 0.5
        exact = rng.random() < 0.5
        for output in whole.outputs:
            model = Model(whole.graph, (output,), whole.facts)
            split = model.split(several=several, exact=exact)
            if isinstance(split, NoMatch):
                found["refused"] += 1
                continue
            feed = feeds(seed, len(counts), sum(counts))
            try:
                (wanted,) = run(model.graph, repeated(feed, counts), model.fetches)
                is_apart = not interacts(model, seed)
            except tf.errors.InvalidArgumentError:
                found["of no batch"] += 1  # sizes do not fit, or do for one number of rows alone
                continue
            assert is_apart, output
            given = {**feed, COUNTS: np.array(counts, np.int64)}
            (got,) = run_split(model, split, given)
            assert got.shape == wanted.shape
            close_numbers(got, wanted, exact and sum(counts) > 1)
            found["accepted"] += 1

    for _ in rounds(_ROUNDS, 3):
        check()
    print(f"without a plan: {dict(found)}")
    assert found["accepted"], dict(found)
