"""Recognised specs, plans and rewritten graphs as text, beside the graphs they come from.

`tests/golden/NAME.graph.txt` is a graph that TensorFlow built (large constants without values);
`NAME.fused.txt` and `NAME.stock.txt` are what the pass makes of it with either target, without
attributes that have their default value. After a wanted change,

    FUSION_UPDATE_GOLDEN=1 python -m pytest tests/passes/test_golden.py

writes those anew; read the difference before committing it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fusion.passes.analysis.variables import SparseWriters
from fusion.passes.choose import choose_fused, choose_stock
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.lookup import outermost, recognise_all
from fusion.passes.targets import PASSES, Target
from tests.graph_text import parse_graph, print_graph, without_defaults

GOLDEN = Path(__file__).parents[1] / "golden"
NAMES = sorted(path.name.removesuffix(".graph.txt") for path in GOLDEN.glob("*.graph.txt"))


def rewritten(name: str, target: Target) -> str:
    graph_def = parse_graph((GOLDEN / f"{name}.graph.txt").read_text())
    result = PASSES[target](preserve=frozenset({"out"})).apply(graph_def)
    view = GraphView.of_graph(graph_def, frozenset({"out"}))
    found = recognise_all(view)
    parts = [str(result.report)]
    parts += [str(match.spec) for match in found if match.spec is not None]
    writers = SparseWriters([view], {})
    choose = choose_fused if target is Target.FUSED else choose_stock
    # What dense ops add up has no other stock ops.
    planned = [
        match
        for match in (outermost(found) if target is Target.FUSED else found)
        if match.spec and (target is Target.FUSED or match.spec.addition is None)
    ]
    parts.append(str(choose(view, planned, writers).plan))
    if result.modified:
        parts.append(print_graph(without_defaults(result.graph_def)))
    return "\n\n".join(part for part in parts if part).rstrip() + "\n"


@pytest.mark.parametrize("target", Target)
@pytest.mark.parametrize("name", NAMES)
def test_the_rewrite_is_the_golden_one(name: str, target: Target) -> None:
    path = GOLDEN / f"{name}.{target.value}.txt"
    text = rewritten(name, target)
    if os.environ.get("FUSION_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("target", Target)
@pytest.mark.parametrize("name", NAMES)
def test_every_column_is_fused(name: str, target: Target) -> None:
    graph_def = parse_graph((GOLDEN / f"{name}.graph.txt").read_text())
    report = PASSES[target](preserve=frozenset({"out"})).explain(graph_def)
    assert report.columns
    # Of what layers look up the stock target has nothing better.
    stays = target is Target.STOCK and name.startswith("layer_")
    assert report.fused_count == (0 if stays else len(report.columns))


@pytest.mark.parametrize("name", NAMES)
def test_the_graph_text_round_trips(name: str) -> None:
    text = (GOLDEN / f"{name}.graph.txt").read_text()
    assert print_graph(parse_graph(text)) == text
    result = FuseLookups().apply(parse_graph(text))
    assert parse_graph(print_graph(result.graph_def)) == result.graph_def
