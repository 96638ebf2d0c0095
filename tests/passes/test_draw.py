"""The drawing of a column as SVG."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.graph.view import GraphView
from fusion.passes.report.draw import draw_column
from fusion.passes.report.report import ColumnReport
from tests.golden import NAMES, golden_graph
from tests.passes import stock_graphs as stock
from tests.passes.test_picture import clipped

FUSED_OP = "FusedEmbeddingLookup"
_SVG = "{http://www.w3.org/2000/svg}"


def checked(text: str) -> list[str]:
    """Returns the texts of a drawing; its boxes are inside of it, and none is over another."""
    svg = ElementTree.fromstring(text)
    width, height = float(svg.attrib["width"]), float(svg.attrib["height"])
    boxes = [box for box in svg.iter(f"{_SVG}rect") if box.find(f"{_SVG}title") is not None]
    corners = {(float(box.attrib["x"]), float(box.attrib["y"])) for box in boxes}
    assert len(corners) == len(boxes)
    for box in boxes:
        assert 0 <= float(box.attrib["x"]) <= width - float(box.attrib["width"])
        assert 0 <= float(box.attrib["y"]) <= height - float(box.attrib["height"])
    return [element.text or "" for element in svg.iter(f"{_SVG}text")]


def drawn(preserve: frozenset[str] = frozenset({"out"})) -> list[str]:
    graph_def = stock.build(stock.Case())
    result = FuseLookups(preserve=preserve).apply(graph_def)
    (column,) = result.report.columns
    views = GraphView.of_graph(graph_def), GraphView.of_graph(result.graph_def)
    return checked(draw_column(*views, column))


def test_before_and_after() -> None:
    texts = drawn()
    assert {"SparseFillEmptyRows", "SparseSegmentMean", "Tile", FUSED_OP} <= {*texts}
    assert "fused: 2 nodes" in texts
    (count,) = (found[1] for text in texts if (found := re.fullmatch(r"stock: (\d+) nodes", text)))
    assert int(count) > 15
    assert texts[0] == "table"
    assert "input, computed elsewhere" in texts
    assert "the explanation stops here" not in texts
    assert drawn() == texts


def test_a_column_that_stays_says_why() -> None:
    inside = "embedding_lookup/embedding_lookup_sparse"
    texts = drawn(frozenset({inside}))
    assert FUSED_OP not in texts
    assert f"at {inside}" in " ".join(texts)
    assert "stays as it is" in texts
    assert "the explanation stops here" in texts


def test_a_partial_explanation_shows_the_rest_too() -> None:
    view, one = clipped()
    assert one.failure is not None
    column = ColumnReport(one.name, "f", one.anchor, False, one.failure.reason, one.failure.node)
    texts = checked(draw_column(view, view, column))
    assert f"{one.name} in function f" in texts
    assert "Tan" in texts
    assert "not explained" in texts


@pytest.mark.parametrize("name", NAMES)
def test_every_form_is_drawn(name: str) -> None:
    graph_def = golden_graph(name)
    result = FuseLookups(preserve=frozenset({"out"})).apply(graph_def)
    views = GraphView.of_graph(graph_def), GraphView.of_graph(result.graph_def)
    for column in result.report.columns:
        texts = checked(draw_column(*views, column))
        assert "the explanation stops here" not in texts
        assert any(re.fullmatch(r"fused: [1-9]\d* nodes?", text) for text in texts)
    # Fused ops are drawn, too.
    for column in FuseLookups(preserve=frozenset({"out"})).explain(result.graph_def).columns:
        checked(draw_column(views[1], views[1], column))


def test_names_mean_nothing_to_svg() -> None:
    view, one = clipped()
    hostile = "a<b>&\"'\x1b]]>"
    texts = checked(draw_column(view, view, ColumnReport(hostile, "", one.anchor, False, hostile)))
    assert texts[0] == "a<b>&\"'\\x1b]]>"
