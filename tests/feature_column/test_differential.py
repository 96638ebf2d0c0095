"""Random columns of random kinds on random batches, fused against stock."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from fusion.lookup import VERSIONS
from tests.feature_column.compare import compare, raised
from tests.feature_column.hosts import dense_features
from tests.feature_column.kinds import KEYS, KINDS, Batch, Column

eager = partial(dense_features, compiled=False)
SIZES = st.integers(0, 3) | st.integers(0, 20)


@st.composite
def columns(draw: st.DrawFn) -> list[Column]:
    """One to three columns, of different features."""
    keys = draw(st.permutations(KEYS))[: draw(st.integers(1, 3))]
    options = {
        "combiner": st.sampled_from(["sum", "mean", "sqrtn"]),
        "dimension": st.sampled_from([1, 4]),
        "max_norm": st.sampled_from([None, None, 0.0, 0.8, 100.0]),
        "trainable": st.integers(0, 3).map(bool),
        "safe": st.integers(0, 3).map(bool),
    }
    kinds = st.sampled_from(sorted(KINDS))
    return [draw(st.builds(Column, kinds, st.just(key), **options)) for key in keys]


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Bags of valid, invalid and (seldom) impossible ids; weights > 0 or of any sign."""
    return Batch(
        lengths=tuple(draw(st.lists(SIZES, max_size=6))),
        seed=draw(st.integers(0, 1000)),
        weights=draw(st.sampled_from([(0.5, 2.0, 3.0), (0.5, -1.0, 0.0, 2.0)])),
        ids=draw(st.sampled_from([(0, 9), (-2, 9), (-2, 9), (-2, 9), (5, 10)])),
    )


@pytest.mark.parity("several columns at once")
@pytest.mark.parity("tf_keras DenseFeatures, eager")
@pytest.mark.parametrize("do_fusion", VERSIONS)
@given(columns=columns(), batch=batches())
def test_columns(do_fusion, columns, batch):
    features = batch.features()
    error = raised(columns, features, None, eager)
    event("stock raises" if error else "stock gives a result")
    if error:
        assert type(raised(columns, features, do_fusion, eager)) is type(error)
    else:
        compare(columns, features, do_fusion, eager)
