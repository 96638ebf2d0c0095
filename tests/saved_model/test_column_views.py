from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import fusion
from fusion.saved_model import ModelError
from fusion.saved_model.rewriting.graphs import column_views

FUSED_OPS = ("FusedEmbeddingLookup", "GroupedEmbeddingLookup")


@pytest.mark.parametrize("name", ["keras", "v1_ref", "tf2"])
def test_the_graph_of_each_column_before_and_after(models: Path, name: str):
    report = fusion.explain(models / name)
    assert report.columns
    for column in report.columns[:4]:
        before, after = column_views(models / name, column)
        assert before.function == after.function == column.function
        assert "Segment" in before.op(column.anchor)
        assert column.op is not None
        assert after.op(column.op) in FUSED_OPS
        assert before.op(column.op) not in FUSED_OPS


def test_a_column_of_another_model(models: Path, tmp_path: Path):
    column = fusion.explain(models / "tf2").columns[0]
    for wrong in (replace(column, anchor="nowhere"), replace(column, function="nobody")):
        with pytest.raises(ValueError, match="has no column at"):
            column_views(models / "tf2", wrong)
    with pytest.raises(ModelError):
        column_views(tmp_path, column)
