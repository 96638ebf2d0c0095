"""Training graphs of TensorFlow 1, in which the gradient reads the cast of the segment ids too."""

from __future__ import annotations

import numpy as np
import pytest

import fusion
from tests.grappler.old_programs import OPTIMIZERS, OldColumn, old_program, run_old

TABLES = ("ref", "read", "resource")
COMBINERS = ("mean", "sum", "sqrtn")


def assert_trained(columns: list[OldColumn], optimizer: str = "sgd") -> None:
    """All columns are fused with their gradients, and the numbers are stock's."""
    stock = run_old(old_program(columns, optimizer), columns)
    with fusion.fused():
        fused = run_old(old_program(columns, optimizer), columns)
    report = fusion.stats().last_report
    assert report is not None
    assert [column.form for column in report.columns] == ["trained"] * len(columns), str(report)
    exact = all(column.max_norm is None and not column.weighted for column in columns)
    for mine, theirs in zip(fused, stock, strict=True):
        if exact:
            np.testing.assert_array_equal(mine, theirs)
        else:
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    assert len({float(loss) for loss in stock[:3]}) == 3


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("table", TABLES)
def test_tables_and_combiners(table: str, combiner: str) -> None:
    assert_trained([OldColumn(table, combiner), OldColumn(table, combiner, default_id=3)])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("table", TABLES)
def test_optimizers(table: str, optimizer: str) -> None:
    assert_trained([OldColumn(table), OldColumn(table, "sum")], optimizer)


@pytest.mark.parametrize(
    "column",
    [
        OldColumn(gather="Gather"),
        OldColumn(plain=True),
        OldColumn("read", "sum", plain=True),
        OldColumn(max_norm=0.7),
        OldColumn("resource", "sqrtn", max_norm=0.7),
        OldColumn(weighted=True),
        OldColumn("resource", weighted=True),
        OldColumn("read", "sum", weighted=True),
        OldColumn(weighted=True, gather="Gather", default_id=2),
    ],
    ids=str,
)
def test_kinds_of_columns(column: OldColumn) -> None:
    assert_trained([column])


@pytest.mark.parametrize("plain", [False, True])
def test_quotients_that_may_be_of_zero_are_fused_forward(plain: bool) -> None:
    """Old lookups divide by what weights add up to, whatever it is; their squares may be 0."""
    columns = [OldColumn(combiner="sqrtn", weighted=True), OldColumn(weighted=True, plain=True)]
    columns = [columns[plain]]
    stock = run_old(old_program(columns), columns)
    with fusion.fused():
        fused = run_old(old_program(columns), columns)
    report = fusion.stats().last_report
    assert report is not None
    assert [(column.form, column.reason) for column in report.columns] == [
        ("forward", "the gradient of weighted rows divides by what may be 0")
    ]
    for mine, theirs in zip(fused, stock, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
