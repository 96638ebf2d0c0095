"""The row-sparse Adams: what they do to rows in the batch, and what they leave alone."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tests.optimizers import runs
from tests.optimizers.runs import BATCHES, EPSILON, FULL_BATCHES, RATE, TABLE, WAYS

KERAS_WAYS = [way for way in WAYS if "keras" in way]
BETA_1, BETA_2 = 0.9, 0.999


def by_definition(batches, amsgrad=False, weight_decay=0.0, change=lambda summed: summed):
    """The table and its moments after row-sparse Adam, one row at a time, in float64.

    `change` is what is done to the gradients {id: row} before they are used.
    """
    table = TABLE.astype(np.float64)
    m, v, vhat = np.zeros((3, *table.shape))
    for t, batch in enumerate(batches, start=1):
        summed: dict = {}
        for key, value in zip(batch.ids.tolist(), batch.values.astype(np.float64), strict=True):
            summed[key] = summed.get(key, 0) + value
        rate = RATE * np.sqrt(1 - BETA_2**t) / (1 - BETA_1**t)
        for key, g in change(summed).items():
            m[key] = BETA_1 * m[key] + (1 - BETA_1) * g
            v[key] = BETA_2 * v[key] + (1 - BETA_2) * g**2
            vhat[key] = np.maximum(vhat[key], v[key])
            root = np.sqrt(vhat[key] if amsgrad else v[key])
            table[key] -= RATE * weight_decay * table[key]
            table[key] -= rate * m[key] / (root + EPSILON)
    return table, m, v


def assert_is_by_definition(state, *expected):
    found = (state.table, state.moments["m of table"], state.moments["v of table"])
    for actual, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_the_rows_of_the_batch_move_as_defined(way):
    assert_is_by_definition(runs.train(way, "lazy", BATCHES), *by_definition(BATCHES))


@pytest.mark.parametrize("way", WAYS)
def test_stock_moves_every_row_that_ever_had_a_gradient(way):
    before = runs.train(way, "stock", BATCHES[:5])
    after = runs.train(way, "stock", BATCHES)
    had_one = np.unique(np.concatenate([batch.ids for batch in BATCHES]))
    assert np.all(after.table[had_one] != before.table[had_one])
    assert np.all(after.moments["m of table"][had_one] != before.moments["m of table"][had_one])


@pytest.mark.parametrize("way", WAYS)
def test_an_empty_batch_moves_no_row_and_counts_as_a_step(way):
    empty = BATCHES[2]
    assert len(empty.ids) == 0
    once = runs.train(way, "lazy", [BATCHES[0], empty])
    np.testing.assert_array_equal(once.table, runs.train(way, "lazy", BATCHES[:1]).table)
    late = runs.train(way, "lazy", [empty, BATCHES[0]])
    assert_is_by_definition(late, *by_definition([empty, BATCHES[0]]))
    assert np.any(late.table != once.table)


def clipped_by_norm(summed):
    norm = np.sqrt(sum(np.sum(g**2) for g in summed.values()))
    return {key: g * min(1, 0.5 / norm) for key, g in summed.items()}


ARGUMENTS: dict[str, tuple[dict, dict]] = {
    "amsgrad": ({"amsgrad": True}, {"amsgrad": True}),
    "weight_decay": ({"weight_decay": 0.1}, {"weight_decay": 0.1}),
    "clipnorm": ({"clipnorm": 0.5}, {"change": clipped_by_norm}),
    "clipvalue": (
        {"clipvalue": 0.2},
        {"change": lambda summed: {key: np.clip(g, -0.2, 0.2) for key, g in summed.items()}},
    ),
}


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("way", KERAS_WAYS)
def test_arguments_act_on_the_rows_of_the_batch(way, name):
    arguments, meaning = ARGUMENTS[name]
    state = runs.train(way, "lazy", BATCHES, **arguments)
    assert_is_by_definition(state, *by_definition(BATCHES, **meaning))
    plain = runs.train(way, "lazy", BATCHES)
    assert np.any(plain.table != state.table)
    np.testing.assert_array_equal(
        state.table[runs.untouched(BATCHES)], TABLE[runs.untouched(BATCHES)]
    )
    runs.assert_same(
        [runs.train(way, which, FULL_BATCHES, **arguments) for which in ("lazy", "stock")]
    )


@pytest.mark.parametrize("way", KERAS_WAYS)
def test_the_global_norm_is_that_of_summed_rows_and_dense_gradients(way):
    limit = 0.7
    batch = BATCHES[0]
    clipped = runs.train(way, "lazy", [batch], global_clipnorm=limit)

    def change(summed):
        norm = np.sqrt(sum(np.sum(g**2) for g in [*summed.values(), batch.kernel]))
        return {key: g * min(1, limit / norm) for key, g in summed.items()}

    assert_is_by_definition(clipped, *by_definition([batch], change=change))
    # Stock adds up the squares in the order of the table, not of the batch.
    lazy, stock = (
        runs.train(way, which, FULL_BATCHES, global_clipnorm=limit) for which in ("lazy", "stock")
    )
    np.testing.assert_allclose(lazy.table, stock.table, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", ["tf_keras eager", "tf_keras function"])
def test_an_adaptive_epsilon(way):
    states = [
        runs.train(way, which, FULL_BATCHES, adaptive_epsilon=True, epsilon=0.1)
        for which in ("lazy", "stock")
    ]
    runs.assert_same(states)
    plain = runs.train(way, "lazy", FULL_BATCHES, epsilon=0.1)
    assert np.all(states[0].table != plain.table)


@pytest.mark.parametrize(("legacy", "package"), [("0", "keras"), ("1", "tf_keras")])
def test_the_active_keras_chooses_the_class_when_it_is_used(legacy, package, monkeypatch):
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", legacy)
    code = f"""if True:
        import sys
        import tensorflow as tf
        before = set(sys.modules)
        import fusion
        fusion.optimizers.LazyAdamOptimizer
        new = {{name.partition(".")[0] for name in set(sys.modules) - before}}
        assert "fusion" in new and not new & {{"keras", "tf_keras"}}, new
        import {package}
        for lazy, stock in ("LazyAdam", "Adam"), ("LazyMomentum", "SGD"), ("LazyFtrl", "Ftrl"):
            lazy, stock = getattr(fusion.optimizers, lazy), getattr({package}.optimizers, stock)
            assert issubclass(lazy, stock)
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_names_are_errors():
    import fusion

    assert set(fusion.optimizers.__all__) <= set(dir(fusion.optimizers))
    with pytest.raises(AttributeError, match=r"'fusion\.optimizers' has no attribute 'Adam'"):
        _ = fusion.optimizers.Adam
