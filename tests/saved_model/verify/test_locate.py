"""In which column models differ: pairs of which one was broken in a single thing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fusion.saved_model import ModelError, compare_models, fuse_saved_model
from fusion.saved_model.verify import Columns, Verification, locate
from tests.saved_model.verify.broken import with_op, with_table
from tests.saved_model.verify.lookups import save


def _columns(result: Verification) -> Columns:
    assert result.differences
    assert result.columns is not None
    assert result.summary().endswith(str(result.columns))
    return result.columns


def _named(result: Verification, of: int) -> tuple[str, tuple[str, ...]]:
    """Returns the name and the places of the one column of `of` that differs."""
    columns = _columns(result)
    assert columns.first is not None
    assert (columns.same, columns.different, columns.unknown) == (of - 1, 1, 0)
    return columns.first.name, columns.first.locations


@pytest.mark.parametrize(
    ("kind", "key", "table", "count"),
    [
        ("v1_ref", "model/input_layer/shop", "model/input_layer/shop_embedding", 4),
        ("keras", "layer_with_weights-0/color", "dense_features/color_embedding", 4),
        ("example", "shops", "shops", 2),
    ],
)
def test_the_column_of_another_table_is_named(
    models: Path, tmp_path: Path, kind: str, key: str, table: str, count: int
):
    fuse_saved_model(models / kind, tmp_path / "fused", verify=False)
    broken = with_table(tmp_path / "fused", tmp_path / "broken", key)
    name, locations = _named(compare_models(models / kind, broken), count)
    assert name.startswith(table)
    stock, fused = locations
    assert "column" not in stock
    assert re.search(r"\(column \d of its op\)", fused)


def test_both_may_be_fused(models: Path, tmp_path: Path):
    fuse_saved_model(models / "tf2", tmp_path / "fused", verify=False)
    broken = with_table(tmp_path / "fused", tmp_path / "broken", "shops")
    name, (location,) = _named(compare_models(broken, tmp_path / "fused"), 2)
    assert name == "shops"
    assert "(column 1 of its op) of function __inference_embed" in location


def test_of_two_columns_of_a_table_the_one_that_is_combined_otherwise_is_named(tmp_path: Path):
    stock = save(tmp_path / "stock")
    fuse_saved_model(stock, tmp_path / "fused", verify=False)
    broken = with_op(stock, tmp_path / "broken", "SparseSegmentSum", "SparseSegmentMean")
    columns = _columns(compare_models(tmp_path / "fused", broken))
    assert columns.first is not None
    assert columns.first.name == "shared"
    assert "(column 1 of its op)" in columns.first.locations[0]


@pytest.mark.parametrize("table", ["loop", "shards/0"])
def test_columns_in_loops_and_shards_are_named(tmp_path: Path, table: str):
    stock = save(tmp_path / "stock")
    fuse_saved_model(stock, tmp_path / "fused", verify=False)
    broken = with_table(tmp_path / "fused", tmp_path / "broken", table)
    columns = _columns(compare_models(stock, broken))
    assert columns.first is not None
    assert columns.first.name == table.removesuffix("/0")
    assert columns.different == 1


def test_a_difference_behind_the_lookups_is_no_column_s(models: Path, tmp_path: Path):
    fuse_saved_model(models / "example", tmp_path / "fused", verify=False)
    broken = with_table(tmp_path / "fused", tmp_path / "broken", "weights")
    columns = _columns(compare_models(models / "example", broken))
    assert columns == Columns(same=2)
    assert str(columns) == "0 of 2 columns differ: the difference arises behind the lookups"


def test_models_without_columns_in_common_say_so(models: Path, tmp_path: Path):
    broken = with_op(models / "plain", tmp_path / "broken", "Mul", "AddV2")
    columns = _columns(compare_models(models / "plain", broken))
    assert columns.first is None
    assert str(columns) == (
        "columns not compared: the models have no column that could be found in both"
    )


def test_the_difference_is_told_whatever_happens_to_the_columns(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def failing(*_: object) -> None:
        raise ModelError("it took too long")

    monkeypatch.setattr(locate, "run_models", failing)
    broken = with_table(models / "tf2", tmp_path / "broken", "items")
    columns = _columns(compare_models(models / "tf2", broken))
    assert str(columns) == "columns not compared: it took too long"


def test_a_difference_tells_the_first_row_and_both_values(models: Path, tmp_path: Path):
    broken = with_table(models / "tf2", tmp_path / "broken", "items")
    columns = _columns(compare_models(models / "tf2", broken, tolerance=1e-3))
    assert columns.first is not None
    assert columns.first.row == 0
    found = re.match(r"row 0, element 0: (\S+) against (\S+); 8 of 8", columns.first.detail)
    assert found
    assert float(found[2]) - float(found[1]) == pytest.approx(1, abs=1e-5)
