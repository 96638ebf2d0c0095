"""The drawing of a column as Mermaid text."""

from __future__ import annotations

import re

import pytest

from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.graph.view import GraphView
from fusion.passes.report.mermaid import draw_column
from fusion.passes.report.report import ColumnReport
from tests.graph_text import parse_graph
from tests.passes import stock_graphs as stock
from tests.passes.test_golden import GOLDEN, NAMES
from tests.passes.test_picture import clipped

FUSED_OP = "FusedEmbeddingLookup"
_NODE = re.compile(r' *(\w+)\["([^"`<>&]|<br/>|&?)*"\](?::::(\w+))?')
_SUBGRAPH = re.compile(r'  subgraph (\w+)\["[^"`<>&]*"\]')
_EDGE = re.compile(r"    (\w+) --> (\w+)")
_CLASS = re.compile(r"  classDef (\w+) fill:#\w{6},stroke:#\w{6},color:#\w{6}")


def checked(text: str) -> str:
    """Returns a drawing, each of whose lines is one of those that Mermaid knows."""
    first, *lines = text.splitlines()
    assert first == "flowchart TB"
    names, used, known, edges = set[str](), set[str](), set[str](), list[str]()
    for line in lines:
        if match := _EDGE.fullmatch(line):
            edges += match.groups()
        elif match := _CLASS.fullmatch(line):
            known.add(match[1])
        elif match := _NODE.fullmatch(line):
            assert match[1] not in names
            names.add(match[1])
            used |= {match[3]} - {None}
        else:
            assert line == "  end" or _SUBGRAPH.fullmatch(line), line
    assert names.issuperset(edges)
    assert used == known
    return text


def drawn(preserve: frozenset[str] = frozenset({"out"})) -> str:
    graph_def = stock.build(stock.Case())
    result = FuseLookups(preserve=preserve).apply(graph_def)
    (column,) = result.report.columns
    views = GraphView.of_graph(graph_def), GraphView.of_graph(result.graph_def)
    return checked(draw_column(*views, column))


def test_before_and_after() -> None:
    text = drawn()
    for op in ("SparseFillEmptyRows", "SparseSegmentMean", "Tile", FUSED_OP):
        assert f'["{op}<br/>' in text
    assert 'subgraph after["fused: 2 nodes"]' in text
    (count,) = re.findall(r'subgraph before\["table: (\d+) nodes"\]', text)
    assert int(count) > 15
    assert "input, computed elsewhere" in text
    assert "the explanation stops here" not in text
    assert drawn() == text


def test_a_column_that_stays_says_why() -> None:
    inside = "embedding_lookup/embedding_lookup_sparse"
    text = drawn(frozenset({inside}))
    assert FUSED_OP not in text
    assert f"at {inside}" in text
    assert "stays as it is" in text
    assert "the explanation stops here" in text


def test_a_partial_explanation_shows_the_rest_too() -> None:
    view, one = clipped()
    assert one.failure is not None
    column = ColumnReport(one.name, "f", one.anchor, False, one.failure.reason, one.failure.node)
    text = checked(draw_column(view, view, column))
    assert f"{one.name} in function f: " in text
    assert '["Tan<br/>' in text
    assert "not explained" in text


@pytest.mark.parametrize("name", NAMES)
def test_every_form_is_drawn(name: str) -> None:
    graph_def = parse_graph((GOLDEN / f"{name}.graph.txt").read_text())
    result = FuseLookups(preserve=frozenset({"out"})).apply(graph_def)
    views = GraphView.of_graph(graph_def), GraphView.of_graph(result.graph_def)
    for column in result.report.columns:
        text = checked(draw_column(*views, column))
        assert "the explanation stops here" not in text
        assert int(re.findall(r'subgraph after\["fused: (\d+) nodes"\]', text)[0])
    # Fused ops are drawn, too.
    for column in FuseLookups(preserve=frozenset({"out"})).explain(result.graph_def).columns:
        checked(draw_column(views[1], views[1], column))


def test_names_mean_nothing_to_mermaid() -> None:
    view, one = clipped()
    hostile = 'a"]:::x --> b<b>`#&\x1b'
    text = checked(draw_column(view, view, ColumnReport(hostile, "", one.anchor, False, hostile)))
    assert "a#34;]:::x --#62; b#60;b#62;#96;#35;#38;" in text
