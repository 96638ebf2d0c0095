from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console
from rich.table import Table

from fusion.cli.column_table import ROWS_SHOWN, column_table, common_scope
from fusion.cli.report import console, refusal_table, show_table, totals
from fusion.passes.graph.tensor import Tensor
from fusion.passes.report.columns import distinct_columns
from fusion.passes.report.report import ColumnReport, FusionReport
from tests.specs import SPEC

UNDERSTOOD = ["float[40,", "8]", "mean", "sparse", "int64", "v"]


def _column(name: str, function: str = "", reason: str | None = None) -> ColumnReport:
    fused = reason is None
    node = None if fused else f"{name}/node"
    return ColumnReport(name, function, f"{name}/anchor", fused, reason, node, SPEC)


def _text(table: Table) -> list[list[str]]:
    out = console()
    with out.capture() as captured:
        show_table(out, table)
    return [line.split() for line in captured.get().splitlines()]


def test_traces_of_one_column_count_once_and_lookups_of_one_table_do_not():
    report = FusionReport(
        (_column("a", "f"), _column("b", "f"), _column("b", "f"), _column("a", "g")), 9, 5
    )
    assert [(c.name, len(c.copies)) for c in distinct_columns(report)] == [
        ("a", 2),
        ("b", 1),
        ("b", 1),
    ]
    assert totals(report, "fused") == (
        "3 of 3 columns fused (4 of 4 lookups in 2 functions), 9 -> 5 nodes"
    )


def test_a_column_is_fused_when_all_its_traces_are():
    report = FusionReport((_column("a", "f"), _column("a", "g", "odd")), 9, 9)
    assert totals(report, "fused") == (
        "0 of 1 columns fused (1 of 2 lookups in 2 functions), 9 nodes"
    )
    heading, row = _text(column_table(report))
    titles = ["column", "table", "combiner", "ids", "fused", "why", "not", "node"]
    assert heading == titles
    assert row == ["a", *UNDERSTOOD, "no", "odd", "g:", "a/node"]


def test_a_weighted_column_and_one_that_is_not_understood():
    weighted = replace(SPEC.column, use_sparse_weights=True)
    spec = replace(SPEC, weights=Tensor("w"), column=weighted)
    unknown = replace(_column("b", reason="odd"), spec=None)
    _, first, second = _text(
        column_table(FusionReport((replace(_column("a"), spec=spec), unknown), 9, 9))
    )
    assert first == ["a", *UNDERSTOOD, "yes", "yes"]
    assert second == ["b", "no", "odd", "b/node"]


def test_a_column_whose_forward_alone_is_fused():
    forward = replace(_column("a", reason="odd"), fused=True, form="forward")
    report = FusionReport((_column("b"), forward), 9, 9)
    assert totals(report, "fused") == "2 of 2 columns fused, 9 nodes"
    _, first, second = _text(column_table(report))
    assert first == ["b", *UNDERSTOOD, "yes"]
    assert second == ["a", *UNDERSTOOD, "forward", "odd", "a/node"]
    _, row = _text(refusal_table(report))
    assert row == ["a", "forward", "alone:", "odd", "a/node"]


def test_equal_reasons_share_a_row():
    columns = [_column(f"c{i}", reason="weights") for i in range(5)]
    report = FusionReport((*columns, _column("d", reason="[x] markup"), _column("e")), 9, 9)
    _, first, second = _text(refusal_table(report))
    assert first == ["c0,", "c1,", "c2", "and", "2", "more", "weights", "c0/node"]
    assert second == ["d", "[x]", "markup", "d/node"]


def test_an_empty_report():
    assert distinct_columns(FusionReport()) == ()
    assert totals(FusionReport(), "fused") == "no embedding column found: nothing to fuse"


def _already(name: str, op: str, function: str = "f") -> ColumnReport:
    reason = "it is a part of one fused op already"
    return ColumnReport(name, function, op, False, reason, op, SPEC, fused_before=True)


@pytest.mark.parametrize(
    ("columns", "in_terminal", "in_python"),
    [
        (
            [_already("a", "x"), _already("b", "x"), _already("c", "y")],
            "already fused: 3 columns in 2 ops, 9 nodes",
            "already fused: 3 columns in 2 ops, 9 nodes",
        ),
        (
            [_already("a", "x"), _already("a", "x", "g")],
            "already fused: 1 column in 1 op, 9 nodes",
            "already fused: 2 columns in 2 ops, 9 nodes",
        ),
        (
            [_already("a", "x"), _column("b", reason="odd"), _column("c")],
            "already fused: 1 column in 1 op; 1 of 2 others can be fused, 9 nodes",
            "1 of 3 columns fused, 9 nodes\n  already fused: 1 column in 1 op",
        ),
        (
            [_column("a"), _column("b", reason="odd")],
            "1 of 2 columns can be fused, 9 nodes",
            "1 of 2 columns fused, 9 nodes\n  fused  a",
        ),
        ([], "no embedding column found: nothing to fuse", "0 of 0 columns fused, 9 nodes"),
    ],
)
def test_what_is_fused_already_is_counted_apart(
    columns: list[ColumnReport], in_terminal: str, in_python: str
) -> None:
    report = FusionReport(tuple(columns), 9, 9)
    assert totals(report, "can be fused") == in_terminal
    assert str(report).startswith(in_python)


def test_a_column_that_is_fused_already_is_no_refusal() -> None:
    report = FusionReport((_already("a", "x"), _column("b", reason="odd")), 9, 9)
    _, first, second = _text(column_table(report))
    assert (first[len(UNDERSTOOD) + 1], second[len(UNDERSTOOD) + 1]) == ("already", "no")
    _, refused = _text(refusal_table(report))
    assert refused[0] == "b"
    assert str(report.columns[0]).startswith("already fused a\n")


def _sized(index: int, rows: int | None) -> ColumnReport:
    shards = tuple(replace(shard, rows=rows) for shard in SPEC.table.shards)
    spec = replace(SPEC, table=replace(SPEC.table, shards=shards))
    return replace(_column(f"in/layer/c{index}/weights"), spec=spec)


def test_many_columns_that_are_alike_share_a_row():
    alike = [_sized(index, 10 + index) for index in range(ROWS_SHOWN)]
    report = FusionReport(tuple(alike), 9, 9)
    assert column_table(report).row_count == ROWS_SHOWN
    odd = [_column(f"odd{index}", reason="odd") for index in range(2)]
    other = replace(
        _column("other"), spec=replace(SPEC, column=replace(SPEC.column, combiner="sum"))
    )
    report = FusionReport((*alike, *odd, other), 9, 9)
    scope = common_scope(distinct_columns(report))
    assert scope == "in/layer"
    _, first, second, third = _text(column_table(report, scope))
    names = ["~/c0/weights,", "~/c1/weights,", "~/c2/weights", "and", str(ROWS_SHOWN - 3), "more"]
    assert first == [*names, "float[10", "to", "39,", "8]", "mean", "sparse", "int64", "yes"]
    like = ["float[40,", "8]", "mean", "sparse", "int64"]
    assert second == ["odd0,", "odd1", *like, "no", "odd", "odd0/node"]
    assert third == ["other", "float[40,", "8]", "sum", "sparse", "int64", "v", "yes"]


def test_sizes_that_are_not_all_known():
    report = FusionReport(tuple(_sized(i, 10 if i else None) for i in range(ROWS_SHOWN + 1)), 9, 9)
    _, row = _text(column_table(report))
    assert row[row.index("more") + 1 :][:2] == ["float[?,", "8]"]


def test_the_common_folder_is_that_of_most_letters():
    def scope(*names: str) -> str:
        return common_scope(distinct_columns(FusionReport(tuple(map(_column, names)))))

    assert scope("a/b/c/w", "a/b/d/w", "a/b/e/w") == "a/b"
    assert scope("model/a/w", "model/b/w", "tags") == "model"
    assert scope("model/a/w", "model/b/w", "c", "d", "e") == ""
    assert scope("model/a/w") == scope("a", "b") == scope() == ""


def test_a_table_that_is_too_wide_becomes_lines():
    long = "x" * 50
    report = FusionReport((_column("a" * 30), _column(long, reason="why " * 10)), 9, 9)
    out = Console(width=80, highlight=False)
    with out.capture() as captured:
        show_table(out, column_table(report))
    lines = [line.rstrip() for line in captured.get().splitlines()]
    assert lines == [
        "a" * 30,
        "  table     float[40, 8]",
        "  combiner  mean",
        "  ids       sparse int64 v",
        "  fused     yes",
        long,
        "  table     float[40, 8]",
        "  combiner  mean",
        "  ids       sparse int64 v",
        "  fused     no",
        "  why not   why why why why why why why why why why",
        f"  node      {long}/node",
    ]
    assert max(map(len, lines)) <= 80


def test_other_lookups_have_one_line() -> None:
    other = _column("a", "layer", "its rows are used by Identity")
    report = FusionReport((_column("a", "f"),), 9, 9, others=(other, other))
    assert totals(report, "fused") == "1 of 1 columns fused, 9 nodes"
    assert refusal_table(report).row_count == 0
    assert str(report).splitlines() == [
        "1 of 1 columns fused, 9 nodes",
        "  fused  f: a",
        "  2 other lookups that no signature runs: 0 fused",
    ]
    assert FusionReport.merge([report, report]).others == (other,) * 4
