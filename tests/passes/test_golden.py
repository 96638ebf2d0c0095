"""Recognised specs, plans and rewritten graphs as text, beside the graphs they come from.

`tests/golden/NAME.graph.txt` is a graph that TensorFlow built (large constants without values);
`NAME.fused.txt` is what the pass makes of it. After a wanted change,

    FUSION_UPDATE_GOLDEN=1 python -m pytest tests/passes/test_golden.py

writes the latter anew; read the difference before committing it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.graph_view import GraphView
from fusion.passes.planner import settle
from fusion.passes.recognise import recognise_all
from fusion.passes.sparse_writers import SparseWriters
from fusion.passes.text import parse_graph, print_graph

GOLDEN = Path(__file__).parents[1] / "golden"
NAMES = sorted(path.name.removesuffix(".graph.txt") for path in GOLDEN.glob("*.graph.txt"))


def rewritten(name: str) -> str:
    graph_def = parse_graph((GOLDEN / f"{name}.graph.txt").read_text())
    result = FuseLookups(preserve=frozenset({"out"})).apply(graph_def)
    view = GraphView.of_graph(graph_def, frozenset({"out"}))
    found = recognise_all(view)
    parts = [str(result.report)]
    parts += [str(one.spec) for one in found if one.spec is not None]
    settled = settle(view, [one for one in found if one.spec], SparseWriters([view], {}))
    parts.append(str(settled[0]) if settled is not None else "")
    if result.modified:
        parts.append(print_graph(result.graph_def))
    return "\n\n".join(part for part in parts if part).rstrip() + "\n"


@pytest.mark.parametrize("name", NAMES)
def test_the_rewrite_is_the_golden_one(name: str) -> None:
    path = GOLDEN / f"{name}.fused.txt"
    text = rewritten(name)
    if os.environ.get("FUSION_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", NAMES)
def test_every_column_is_fused(name: str) -> None:
    graph_def = parse_graph((GOLDEN / f"{name}.graph.txt").read_text())
    report = FuseLookups(preserve=frozenset({"out"})).explain(graph_def)
    assert report.columns
    assert report.fused_count == len(report.columns)


@pytest.mark.parametrize("name", NAMES)
def test_the_graph_text_round_trips(name: str) -> None:
    text = (GOLDEN / f"{name}.graph.txt").read_text()
    assert print_graph(parse_graph(text)) == text
    result = FuseLookups().apply(parse_graph(text))
    assert parse_graph(print_graph(result.graph_def)) == result.graph_def
