"""The drawing of a column as SVG."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import matplotlib as mpl
import networkx as nx
import pytest

from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.graph.view import GraphView
from fusion.passes.report.draw import Side, draw_column, draw_svg
from fusion.passes.report.report import ColumnReport
from tests.passes import stock_graphs as stock
from tests.passes.test_picture import clipped

FUSED_OP = "FusedEmbeddingLookup"


def drawn(preserve: frozenset[str] = frozenset({"out"})) -> bytes:
    graph_def = stock.build(stock.Case())
    result = FuseLookups(preserve=preserve).apply(graph_def)
    (column,) = result.report.columns
    views = GraphView.of_graph(graph_def), GraphView.of_graph(result.graph_def)
    return draw_column(*views, column)


def texts(svg: bytes) -> list[str]:
    root = ElementTree.fromstring(svg)
    return ["".join(e.itertext()).strip() for e in root.iter("{http://www.w3.org/2000/svg}text")]


def test_before_and_after() -> None:
    shown = texts(drawn())
    assert shown[0] == "table"
    assert {"SparseFillEmptyRows", "SparseSegmentMean", "Tile", FUSED_OP} <= set(shown)
    assert "fused: 2 nodes" in shown
    (stock_heading,) = (text for text in shown if text.startswith("stock: "))
    assert int(stock_heading.split()[1]) > 15
    assert "input, computed elsewhere" in shown
    assert "the explanation stops here" not in shown


def test_a_column_that_stays_says_why() -> None:
    inside = "embedding_lookup/embedding_lookup_sparse"
    shown = texts(drawn(frozenset({inside})))
    assert FUSED_OP not in shown
    assert "stays as it is" in shown
    assert inside in " ".join(shown)
    assert "the explanation stops here" in shown


def test_a_partial_explanation_shows_the_rest_too() -> None:
    view, one = clipped()
    assert one.failure is not None
    column = ColumnReport(one.name, "f", one.anchor, False, one.failure.reason, one.failure.node)
    shown = texts(draw_column(view, view, column))
    assert shown[0] == f"{one.name}   in function f"
    assert {"Tan", "SparseSegmentMean", "not explained"} <= set(shown)


def test_equal_columns_give_equal_bytes() -> None:
    svg = drawn()
    with mpl.rc_context({"svg.hashsalt": "x", "font.family": "serif", "figure.dpi": 10}):
        assert drawn() == svg
    code = "import sys; from tests.passes.test_draw import drawn; sys.stdout.buffer.write(drawn())"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "SOURCE_DATE_EPOCH": "1"}
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, env=environment
    )
    assert other.stdout == svg


@pytest.mark.parametrize("length", [1, 30, 400])
def test_names_of_any_length_stay_inside(length: int) -> None:
    graph = nx.DiGraph()
    graph.add_node("n", op="O" * length, label="l", role="ids")
    svg = draw_svg("t" * length, Side("left", graph), Side("right", nx.DiGraph()))
    assert max(len(text) for text in texts(svg)[:1]) < 100
    root = ElementTree.fromstring(svg)
    assert float(root.attrib["width"].removesuffix("pt")) < 1000
