"""What was explained of a column, in words."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Value
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.fused import fused_op
from fusion.passes.recognise.lookup import recognise_all
from fusion.passes.recognise.match import Match, Stage
from fusion.passes.recognise.spec import DenseIds
from fusion.passes.recognise.stock import (
    entries,
    id_source,
    max_norm,
    output,
    prune,
    reduction,
    table,
)
from fusion.passes.recognise.stock.entries import Entries
from fusion.passes.recognise.stock.id_source import IdSource
from fusion.passes.report.describe import _description, describe
from tests.passes import stock_graphs as stock

MODULES = (
    fused_op,
    max_norm,
    entries,
    output,
    prune,
    reduction,
    id_source,
    table,
)


@pytest.mark.parametrize("default", [None, 3])
@pytest.mark.parametrize("rank", [2, 3])
def test_a_whole_lookup(default: int | None, rank: int) -> None:
    case = stock.Case(default_id=default, rank=rank)
    view = GraphView.of_graph(stock.build(case))
    (one,) = recognise_all(view)
    texts = [describe(part) for part in one.parts]
    text = "\n".join(texts)
    assert f"mean of the rows of each bag ({one.anchor})" in texts
    assert f"empty bags get the id {default or 0}" in text
    assert ("empty bags become zeros" in text) == (default is None)
    assert ("empty bags keep the row of their id" in texts) == (default is not None)
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
    (fill,) = (node for node in graph_def.node if node.op == "SparseFillEmptyRows")
    fill.input[3] = "elsewhere"
    (column,) = FuseLookups().explain(graph_def).columns
    assert not column.fused
    assert (column.reason, column.node) == ("the id for empty rows is not a constant", "elsewhere")
    assert [words.partition(" (")[0] for words in column.explained] == [
        "mean of the rows of each bag",
        "the rows are those of one table",
        "the bag of each entry is its row in "
        "embedding_lookup/SparseFillEmptyRows/SparseFillEmptyRows",
    ]


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (stock.Case(max_norm=0.5), "rows with a norm above 0.5 are scaled down to it"),
        (stock.Case(weighted=True), "mean of the rows of each bag, each times its weight"),
        (
            stock.Case(weighted=True),
            "ids below 0 and ids whose weight is not above 0 are dropped",
        ),
        (stock.Case(shards=3, strategy="mod"), "a table in 3 shards by mod"),
        (stock.Case(), "the ids are ids/values ("),
    ],
)
def test_what_not_every_lookup_has(case: stock.Case, said: str) -> None:
    (one,) = recognise_all(GraphView.of_graph(stock.build(case)))
    assert said in "\n".join(describe(part) for part in one.parts)


@pytest.mark.parametrize(
    ("dense", "said"),
    [
        (DenseIds(Tensor("matrix"), 9, -1, 0), "the elements of the dense matrix without -1"),
        (DenseIds(Tensor("matrix"), 9, None, 3), "the elements of the dense matrix"),
        (None, "the ids are ids"),
    ],
)
def test_sources(dense: DenseIds | None, said: str) -> None:
    view = GraphView.of_graph(stock.build(stock.Case()))
    entries = Entries(
        stage=Stage.IDS,
        nodes=(),
        ids=Value(view, Tensor("ids")),
        indices=None,
        rows=Value(view, Tensor("rows")),
        weights=None,
        count=None,
        dtype=9,
        rows_dtype=9,
    )
    source = IdSource(
        stage=Stage.IDS,
        nodes=(),
        entries=entries,
        flattened=False,
        checked=True,
        buckets=(20, 4),
        dense=dense,
        row_splits=None,
        batch=None,
    )
    assert said in describe(source)
    assert describe(source).endswith("; those outside [0, 20) become 4")
    assert describe(entries) == "the bag of each entry is its row in rows"


def test_every_part_has_words_of_its_own() -> None:
    parts = {
        kind
        for module in MODULES
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Match) and kind is not Match
    }
    assert len(parts) >= 6
    wordless = [
        kind.__name__
        for kind in parts
        if _description.dispatch(kind) is _description.dispatch(object)
    ]
    assert wordless == []


def test_a_part_without_words_is_told_by_its_name() -> None:
    @dataclass(frozen=True, kw_only=True)
    class RowClip(Match):
        pass

    assert describe(RowClip(stage=Stage.ROWS, nodes=("a/b", "c"))) == "row clip (a/b)"
    assert describe(RowClip(stage=Stage.ROWS, nodes=())) == "row clip"
