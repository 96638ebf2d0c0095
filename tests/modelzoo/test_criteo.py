"""The synthetic Criteo data: shapes, cardinalities, distributions, determinism."""

import numpy as np
import pytest

from modelzoo import criteo


def test_cardinalities_are_those_of_the_criteo_logs() -> None:
    rows = criteo.cardinalities()
    assert len(rows) == 26
    assert list(rows) == [f"C{i}" for i in range(1, 27)]
    assert (rows["C1"], rows["C6"], rows["C11"], rows["C21"]) == (10_000_000, 4, 707_291, 4_553_157)
    assert sum(rows.values()) == 45_873_967


def test_cap_limits_only_the_large_tables() -> None:
    rows = criteo.cardinalities(cap=200_000)
    assert max(rows.values()) == 200_000
    assert sum(count == 200_000 for count in rows.values()) == 8
    assert rows["C13"] == 11


@pytest.mark.parametrize("cap", [0, -1])
def test_cap_must_be_positive(cap: int) -> None:
    with pytest.raises(ValueError, match="cap must be at least 1"):
        criteo.cardinalities(cap)
    with pytest.raises(ValueError, match="cap must be at least 1"):
        criteo.CriteoData(cap=cap)


def test_batch_has_a_column_per_feature() -> None:
    batch = criteo.CriteoData(cap=1000).batch(7)
    assert set(batch.features) == set(criteo.NUMERIC) | set(criteo.CATEGORICAL)
    for name in criteo.NUMERIC:
        counts = batch.features[name]
        assert counts.shape == (7, 1)
        assert counts.dtype == np.float32
        assert np.all(counts >= 0)
    for name in criteo.CATEGORICAL:
        assert batch.features[name].shape == (7, 1)
        assert batch.features[name].dtype == np.int64
    assert batch.labels.shape == (7, 1)
    assert batch.labels.dtype == np.float32
    assert set(np.unique(batch.labels)) <= {0.0, 1.0}


@pytest.mark.parametrize("alpha", [1.05, None])
def test_ids_stay_within_the_table_and_reach_all_of_a_small_one(alpha: float | None) -> None:
    batch = criteo.CriteoData(cap=50, alpha=alpha).batch(20_000)
    for name, rows in criteo.cardinalities(cap=50).items():
        ids = batch.features[name]
        assert np.array_equal(np.unique(ids), np.arange(rows))


def test_power_law_matches_its_distribution_function() -> None:
    rows, alpha = 1000, 1.05
    uniform = (np.arange(100_000) + 0.5) / 100_000
    ids = criteo.power_law_ids(uniform, rows, alpha)
    edges = np.arange(1, rows + 2, dtype=np.float64) ** (1 - alpha)
    expected = np.diff(edges) / (edges[-1] - edges[0])
    shares = np.bincount(ids, minlength=rows) / ids.size
    np.testing.assert_allclose(shares, expected, atol=2e-5)


@pytest.mark.parametrize("rows", [1, 2, 10_000_000])
def test_power_law_ends_lie_within_the_table(rows: int) -> None:
    ids = criteo.power_law_ids(np.array([0.0, np.nextafter(1.0, 0.0)]), rows, 1.05)
    assert list(ids) == [0, rows - 1]


def test_power_law_rejects_what_it_cannot_invert() -> None:
    with pytest.raises(ValueError, match="alpha must differ from 1"):
        criteo.power_law_ids(np.zeros(1), 10, 1.0)
    with pytest.raises(ValueError, match="alpha must differ from 1"):
        criteo.CriteoData(alpha=1.0)
    with pytest.raises(ValueError, match="rows must be at least 1"):
        criteo.power_law_ids(np.zeros(1), 0, 1.05)


def test_uniform_ids_are_uniform() -> None:
    ids = criteo.CriteoData(cap=10, alpha=None).batch(50_000).features["C1"]
    shares = np.bincount(ids[:, 0], minlength=10) / ids.size
    np.testing.assert_allclose(shares, 0.1, atol=0.01)


def test_missing_share() -> None:
    def share(missing: float) -> float:
        features = criteo.CriteoData(cap=10, missing=missing).batch(2000).features
        return float(np.mean([features[name] == -1 for name in criteo.CATEGORICAL]))

    assert share(0.0) == 0.0
    assert share(0.25) == pytest.approx(0.25, abs=0.01)
    assert share(1.0) == 1.0


@pytest.mark.parametrize("missing", [-0.1, 1.1, float("nan")])
def test_missing_must_be_a_share(missing: float) -> None:
    with pytest.raises(ValueError, match="missing must lie in"):
        criteo.CriteoData(missing=missing)


def _same(left: criteo.Batch, right: criteo.Batch) -> bool:
    return np.array_equal(left.labels, right.labels) and all(
        np.array_equal(left.features[name], right.features[name]) for name in left.features
    )


def test_batches_are_a_function_of_seed_and_index() -> None:
    data, again = (criteo.CriteoData(cap=1000, missing=0.1, seed=3) for _ in range(2))
    assert _same(data.batch(64, 2), again.batch(64, 2))
    assert not _same(data.batch(64, 0), data.batch(64, 1))
    assert not _same(data.batch(64, 0), criteo.CriteoData(1000, missing=0.1, seed=4).batch(64, 0))


def test_labels_follow_the_features() -> None:
    """A linear fit on the counts alone predicts unseen labels better than their mean does."""

    def design(batch: criteo.Batch) -> np.ndarray:
        logs = [np.log1p(batch.features[name]) for name in criteo.NUMERIC]
        return np.hstack([*logs, np.ones_like(batch.labels)])

    data = criteo.CriteoData(cap=1000)
    train, test = data.batch(5000, 0), data.batch(5000, 1)
    weights, *_ = np.linalg.lstsq(design(train), train.labels, rcond=None)
    error = np.mean((design(test) @ weights - test.labels) ** 2)
    assert error < 0.97 * np.var(test.labels)
    assert 0.1 < test.labels.mean() < 0.9


def test_a_logistic_model_learns_what_each_feature_says() -> None:
    """By Adagrad, a weight for each id and for the logarithm of each count."""
    data = criteo.CriteoData(cap=1000)
    starts = np.cumsum([0, *criteo.cardinalities(1000).values()])
    of_ids, of_counts = np.zeros(starts[-1]), np.zeros(len(criteo.NUMERIC) + 1)
    squares = [np.full_like(weights, 0.1) for weights in (of_ids, of_counts)]

    def inputs(index: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        batch = data.batch(size, index)
        ids = np.hstack([batch.features[name] for name in criteo.CATEGORICAL]) + starts[:-1]
        counts = np.hstack([np.log1p(batch.features[name]) for name in criteo.NUMERIC])
        return ids, np.hstack([counts, np.ones((size, 1))]), batch.labels[:, 0]

    def logits(ids: np.ndarray, counts: np.ndarray) -> np.ndarray:
        return np.asarray(of_ids[ids].sum(1) + counts @ of_counts)

    for step in range(200):
        ids, counts, labels = inputs(step, 512)
        errors = (1 / (1 + np.exp(-logits(ids, counts))) - labels) / 512
        gradients = [np.zeros_like(of_ids), errors @ counts]
        np.add.at(gradients[0], ids, errors[:, None])
        for weights, total, gradient in zip((of_ids, of_counts), squares, gradients, strict=True):
            total[:] += gradient**2
            weights[:] -= 0.1 * gradient / np.sqrt(total)
    ids, counts, labels = inputs(1000, 20_000)
    clicked = labels[np.argsort(logits(ids, counts))] == 1
    below = np.cumsum(~clicked)[clicked].sum()
    assert below / (clicked.sum() * (~clicked).sum()) >= 0.70
