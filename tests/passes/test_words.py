"""What was explained of a column, in words."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fusion.passes import recognise_ids, recognise_output, recognise_reduction, recognise_table
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.graph_view import GraphView
from fusion.passes.match import Match, Stage
from fusion.passes.recognise import recognise_all
from fusion.passes.words import _words, describe
from tests.passes import stock_graphs as stock

MODULES = (recognise_reduction, recognise_ids, recognise_table, recognise_output)


@pytest.mark.parametrize("default", [None, 3])
@pytest.mark.parametrize("rank", [2, 3])
def test_a_whole_lookup(default: int | None, rank: int) -> None:
    case = stock.Case(default_id=default, rank=rank)
    view = GraphView.of_graph(stock.build(case))
    (one,) = recognise_all(view)
    said = [describe(part) for part in one.parts]
    text = "\n".join(said)
    assert f"mean of the rows of each bag ({one.anchor})" in said
    assert f"empty bags get the id {default or 0}" in text
    assert ("empty bags become zeros" in text) == (default is None)
    assert ("empty bags keep what they got" in said) == (default is not None)
    assert ("flattened to a matrix" in text) == (rank == 3)


def test_the_report_says_it_in_the_order_of_explanation() -> None:
    graph_def = stock.build(stock.Case())
    (one,) = recognise_all(GraphView.of_graph(graph_def))
    for report in (FuseLookups().explain(graph_def), FuseLookups().apply(graph_def).report):
        (column,) = report.columns
        assert column.explained == tuple(describe(part) for part in one.parts)
        assert len(column.explained) >= 5


def test_a_column_that_stops_early_tells_how_far_it_got() -> None:
    graph_def = stock.build(stock.Case())
    for node in graph_def.node:
        if node.op == "Where":  # The kept positions come from elsewhere.
            node.op = "SomeOp"
    (column,) = FuseLookups().explain(graph_def).columns
    assert not column.fused
    assert [words.partition(" (")[0] for words in column.explained] == [
        "mean of the rows of each bag",
        "empty bags get the id 0",
    ]
    assert column.node == "embedding_lookup/Where"


def test_every_part_has_words_of_its_own() -> None:
    parts = {
        kind
        for module in MODULES
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Match) and kind is not Match
    }
    assert len(parts) >= 6
    wordless = [kind.__name__ for kind in parts if _words.dispatch(kind) is _words.dispatch(object)]
    assert wordless == []


def test_a_part_without_words_is_told_by_its_name() -> None:
    @dataclass(frozen=True, kw_only=True)
    class RowClip(Match):
        pass

    assert describe(RowClip(stage=Stage.ROWS, nodes=("a/b", "c"))) == "row clip (a/b)"
    assert describe(RowClip(stage=Stage.ROWS, nodes=())) == "row clip"
