"""Recognised specs, plans and rewritten graphs as text.

`tests/golden` has the graphs, which TensorFlow built. `NAME.fused.txt` and `NAME.stock.txt` are
what the pass makes of one with either target, without attributes that have their default value.
After a wanted change,

    FUSION_UPDATE_GOLDEN=1 python -m pytest tests/passes/test_golden.py

writes those anew; read the difference before committing it.
"""

from __future__ import annotations

import os

import pytest

from fusion.passes.analysis.variables import SparseWriters
from fusion.passes.choose import choose_fused, choose_stock
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.lookup import outermost, recognise_all
from fusion.passes.targets import PASSES, Target
from tests.golden import FOLDER, NAMES, golden_graph
from tests.graph_text import parse_graph, print_graph, without_defaults


def rewritten(name: str, target: Target) -> str:
    graph_def = golden_graph(name)
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
        if match.spec and (target is Target.FUSED or not match.spec.column.is_dense_sum)
    ]
    parts.append(str(choose(view, planned, writers).plan))
    if result.modified:
        parts.append(print_graph(without_defaults(result.graph_def)))
    return "\n\n".join(part for part in parts if part).rstrip() + "\n"


@pytest.mark.parametrize("target", Target)
@pytest.mark.parametrize("name", NAMES)
def test_the_rewrite_is_the_golden_one(name: str, target: Target) -> None:
    path = FOLDER / f"{name}.{target.value}.txt"
    text = rewritten(name, target)
    if os.environ.get("FUSION_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_every_golden_file_belongs_to_a_graph() -> None:
    files = {path.name for path in FOLDER.glob("*.txt") if ".graph." not in path.name}
    assert files == {f"{name}.{target.value}.txt" for name in NAMES for target in Target}
    assert len({*NAMES}) == len(NAMES)


@pytest.mark.parametrize("target", Target)
@pytest.mark.parametrize("name", NAMES)
def test_every_column_is_fused(name: str, target: Target) -> None:
    graph_def = golden_graph(name)
    report = PASSES[target](preserve=frozenset({"out"})).explain(graph_def)
    assert report.columns
    # Of what layers look up the stock target has nothing better.
    stays = target is Target.STOCK and name.startswith("layer_")
    assert report.fused_count == (0 if stays else len(report.columns))


@pytest.mark.parametrize("name", NAMES)
def test_the_graph_text_round_trips(name: str) -> None:
    graph_def = golden_graph(name)
    text = print_graph(graph_def)
    assert parse_graph(text) == graph_def
    assert print_graph(parse_graph(text)) == text
    result = FuseLookups().apply(graph_def)
    assert parse_graph(print_graph(result.graph_def)) == result.graph_def
