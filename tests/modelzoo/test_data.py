"""Parquet files of samples: what is written is what the loader gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fusion.data import cardinalities
from modelzoo import criteo, data

DATA = criteo.CriteoData(cap=50, missing=0.2)


def test_the_loader_gives_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_ROW_GROUP", 40)
    data.write(tmp_path / "clicks", DATA, 100)
    wanted = [DATA.batch(40, 0), DATA.batch(40, 1), DATA.batch(20, 2)]
    batches = [*data.loader(tmp_path / "clicks", 64, criteo.CATEGORICAL)]
    assert [int(labels.shape[0]) for _, labels in batches] == [64, 36]
    assert {*batches[0][0]} == {*criteo.NUMERIC, *criteo.CATEGORICAL}
    for name, tensor in batches[0][0].items():
        assert tensor.dtype == ("float32" if name in criteo.NUMERIC else "int64")
        read = np.concatenate([features[name] for features, _ in batches])
        written = np.concatenate([batch.features[name] for batch in wanted])
        np.testing.assert_array_equal(read, written)
    assert (batches[0][0]["C1"].numpy() == criteo.MISSING_ID).any()
    labels = np.concatenate([labels for _, labels in batches])
    np.testing.assert_array_equal(labels, np.concatenate([batch.labels for batch in wanted]))
    rows = cardinalities([str(tmp_path / "clicks")], criteo.CATEGORICAL)
    assert all(rows[name] <= limit for name, limit in criteo.cardinalities(50).items())


def test_a_seed_shuffles_in_another_order_each_epoch(tmp_path: Path) -> None:
    data.write(tmp_path / "clicks", DATA, 60)
    orders = []
    for _ in range(2):
        loader = data.loader(tmp_path / "clicks", 60, ["C1"], seed=1)
        orders += [features["I1"].numpy().tolist() for features, _ in [*loader, *loader]]
    assert orders[0] == orders[2] != orders[1] == orders[3]
    assert sorted(orders[0]) == sorted(orders[1])


def test_held_out_samples_are_others(tmp_path: Path) -> None:
    counts = []
    for held_out in (False, True):
        folder = tmp_path / str(held_out)
        data.write(folder, DATA, 60, held_out)
        ((features, _),) = data.loader(folder, 60, ["C1"])
        counts.append(features["I1"].numpy().tolist())
    assert counts[0] != counts[1]


def test_a_folder_appears_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_ROW_GROUP", 40)

    class Stopped(criteo.CriteoData):
        def batch(self, size: int, index: int = 0) -> criteo.Batch:
            if index == 1:
                raise KeyboardInterrupt
            return super().batch(size, index)

    with pytest.raises(KeyboardInterrupt):
        data.write(tmp_path / "clicks", Stopped(cap=50), 100)
    assert not (tmp_path / "clicks").exists()
    data.write(tmp_path / "clicks", DATA, 100)
    assert data.loader(tmp_path / "clicks", 10, ["C1"]).num_rows == 100
    with pytest.raises(ValueError, match="samples must be at least 1, got 0"):
        data.write(tmp_path / "none", DATA, 0)
