from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from fusion.saved_model import fuse_saved_model
from fusion.saved_model.inputs.signature import signatures
from fusion.saved_model.model.source import read_saved_model
from fusion.saved_model.verify.columns import paired_columns
from fusion.saved_model.verify.observe import Sight, observe
from tests.saved_model.verify.lookups import save

Array = NDArray[Any]


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("lookups") / "stock")


def _feeds(times: int) -> dict[str, Array]:
    indices = np.array([[0, 0], [0, 1], [2, 0]], np.int64)
    return {
        "ids": indices,
        "ids_1": np.array([3, 4, 19], np.int64),
        "ids_2": np.array([3, 2], np.int64),
        "times": np.array(times, np.int32),
    }


def _seen(model: Path, times: int, scratch: Path) -> dict[str, list[Sight]]:
    """Returns what was seen of each column, by its name."""
    source = read_saved_model(model)
    (meta,) = source.meta_graphs
    (signature,) = signatures(meta)
    pairs = paired_columns(meta, meta).pairs
    tensors = list(dict.fromkeys((pair.a.function, pair.a.tensor) for pair in pairs))
    sights = observe(model, source.proto, signature, _feeds(times), tensors, scratch)
    names = {tensors.index((p.a.function, p.a.tensor)): p.name for p in pairs}
    found: dict[str, list[Sight]] = {}
    for sight in sights:
        found.setdefault(names[sight.number], []).append(sight)
    assert not list(scratch.glob("observed-*"))
    return found


def _rows(model: Path, name: str) -> Array:
    rows: Array = tf.train.load_variable(
        str(model / "variables" / "variables"), f"{name}/.ATTRIBUTES/VARIABLE_VALUE"
    )
    return rows


def test_lookups_in_branches_and_loops_are_seen_as_often_as_they_run(stock: Path, tmp_path: Path):
    counts = {
        times: {name: len(sights) for name, sights in _seen(stock, times, tmp_path).items()}
        for times in (0, 3)
    }
    # The two combiners of the shared table have the same name.
    always = {"shared": 2, "shards": 1, "half": 1}
    assert counts == {0: always, 3: always | {"branch": 1, "loop": 3}}


def test_what_is_seen_is_what_the_lookup_gives(stock: Path, tmp_path: Path):
    seen = _seen(stock, 2, tmp_path)
    table = _rows(stock, "branch")
    (branch,) = seen["branch"]
    assert np.array_equal(branch.value, [(table[3] + table[4]) / 2, np.zeros(4), table[19]])
    assert branch.widths.size == 0
    (half,) = seen["half"]
    assert half.value.dtype == tf.bfloat16.as_numpy_dtype
    assert np.array_equal(half.value[2], _rows(stock, "half")[19])
    table = _rows(stock, "loop")
    last = sorted(float(sight.value[2, 0]) for sight in seen["loop"])
    assert last == sorted([float(table[19, 0]), float(table[0, 0])])


def test_of_an_op_for_many_columns_the_widths_are_seen_too(
    stock: Path, models: Path, tmp_path: Path
):
    fuse_saved_model(stock, tmp_path / "fused", verify=False)
    sights = _seen(tmp_path / "fused", 2, tmp_path)["shared"]
    (sight,) = sights
    assert sight.widths.tolist() == [4, 4]
    assert sight.value.shape == (3, 8)
