"""Random lookups made bad in every way that the contract names: what is raised, and by stock too.

That the messages name argument and value is tested in tests/lookup/test_arguments.py, and the raw
ops alone in tests/ops/test_bad_input.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import fusion
from fusion.lookup import VERSIONS
from tests import reference
from tests.differential import forms
from tests.differential.case import Case
from tests.differential.corruptions import CORRUPTIONS, Call, call_of
from tests.differential.strategies import cases
from tests.tiers import examples

#: Good calls that can be made bad: there is an id, and none is negative.
GOOD: dict[str, Any] = {
    "function": st.just("safe"),
    "ids": st.just("sparse"),
    "lengths": st.lists(st.integers(0, 5), max_size=4).map(lambda lengths: (*lengths, 2)),
    "outer": st.none(),
    "shards": st.sampled_from((1, 3)),
    "rows": st.integers(3, 20),
    "dim": st.integers(1, 3),
    "negative": st.just(0.0),
    "prune": st.just(True),
    "odd_rows": st.just(()),
    "odd_weights": st.just(()),
}


def fused(version: str) -> Any:
    def lookup(*arguments: Any, **options: Any) -> Any:
        options = {"fusion_version": version, **options}
        return fusion.fused_safe_embedding_lookup_sparse(*arguments, **options)

    return lookup


def by_pass(form: str, case: Case, fuse: bool) -> Any:
    """The stock lookup of a good case in a form, rewritten if `fuse`."""

    def lookup(table: Any, ids: Any, weights: Any, **_: Any) -> Any:
        values = None if weights is None else weights.values
        return forms.lookup(form, case, table, ids, values, fuse)

    return lookup


stock = tf.compat.v1.nn.safe_embedding_lookup_sparse


def run(call: Call, lookup: Any, mode: str) -> Any:
    def build(table, indices, values, dense_shape, weights, weights_indices):
        ids = call.ids(indices, values, dense_shape)
        of_ids = tf.SparseTensor(weights_indices, weights, dense_shape) if call.weighted else None
        return lookup(table, ids, of_ids, **call.options)

    def make():
        is_good = isinstance(call.table, list)
        return [tf.Variable(shard) for shard in call.table] if is_good else call.table

    return reference.run(mode, build, call.tensors, make)


def corrupted(name: str, case: Case) -> Call:
    call = call_of(case)
    CORRUPTIONS[name].change(call, np.random.default_rng(case.seed))
    return call


@pytest.mark.parity("{name}", *VERSIONS)
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_bad_calls_raise_here_and_in_stock(name):
    corruption = CORRUPTIONS[name]

    @settings(max_examples=examples(4))
    @given(cases(**{**GOOD, **corruption.fields}), st.sampled_from(("function", "session")))
    def check(case: Case, graph: str) -> None:
        for mode, error in (("eager", corruption.eager), (graph, corruption.graph)):
            for version in VERSIONS:
                with pytest.raises(error):
                    run(corrupted(name, case), fused(version), mode)
            if corruption.stock:
                assert_stock_raises(corrupted(name, case), mode)

    check()


def assert_stock_raises(call: Call, mode: str) -> None:
    """Of whatever class: Python's own accidents are among what stock TensorFlow raises."""
    try:
        run(call, stock, mode)
    except Exception:
        return
    pytest.fail("stock TensorFlow raises nothing")


#: Good lookups that the pass rewrites, of few kinds: kernels are compiled for each.
REWRITTEN: dict[str, Any] = {
    **GOOD,
    "weights": st.none(),
    "max_norm": st.none(),
    "shards": st.just(1),
    "dtype": st.just("float32"),
    "ids_dtype": st.just("int64"),
    "dim": st.just(2),
}
#: What each form of them needs besides.
OF_FORMS: dict[str, dict[str, Any]] = {
    "single": {},
    "grouped": {},
    "split": {"shards": st.just(2), "strategy": st.just("mod")},
    "stock": {},
    "trained": {},
    "forward": {"weights": st.just("sparse")},
}


@pytest.mark.parity("{name}", "pass")
@pytest.mark.parametrize(
    ("name", "form"),
    [(name, form) for name, bad in CORRUPTIONS.items() for form in forms.FORMS if bad.by_pass],
)
def test_bad_input_of_a_rewritten_graph_raises(name, form):
    corruption = CORRUPTIONS[name]

    @settings(max_examples=1)
    @given(cases(**{**REWRITTEN, **OF_FORMS[form], **corruption.fields}))
    def check(case: Case) -> None:
        for fuse in (True, False) if corruption.stock else (True,):
            with pytest.raises(corruption.graph):
                run(corrupted(name, case), by_pass(form, case, fuse), "session")

    check()


@pytest.mark.parametrize("form", forms.FORMS)
def test_the_rewritten_graphs_are_good_before_they_are_made_bad(form):

    @settings(max_examples=3)
    @given(cases(**{**REWRITTEN, **OF_FORMS[form]}))
    def check(case: Case) -> None:
        ours, stocks = (
            run(call_of(case), by_pass(form, case, fuse), "session") for fuse in (True, False)
        )
        for one, other in zip(ours, stocks, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)

    check()


def test_the_calls_are_good_before_they_are_made_bad():
    @settings(max_examples=examples(10))
    @given(cases(**GOOD), st.sampled_from(reference.MODES))
    def check(case: Case, mode: str) -> None:
        for version in VERSIONS:
            run(call_of(case), fused(version), mode)

    check()
