"""Each known form of lookups is described, stays when it is fused, is reported, and is verified."""

from __future__ import annotations

from functools import cache

import pytest
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.lookup import FORMS, recognise_all
from fusion.passes.report.describe import _description
from fusion.passes.report.report import FusionReport
from fusion.passes.targets import PASSES, Target
from fusion.saved_model.verify.columns import paired_columns
from tests.golden import NAMES, golden_graph
from tests.passes.test_single_ids import layer_function

KEPT = frozenset({"out"})


@cache
def fused(name: str) -> tuple[graph_pb2.GraphDef, FusionReport]:
    result = PASSES[Target.FUSED](preserve=KEPT).apply(golden_graph(name))
    return result.graph_def, result.report


def _meta(graph_def: graph_pb2.GraphDef) -> meta_graph_pb2.MetaGraphDef:
    return meta_graph_pb2.MetaGraphDef(graph_def=graph_def)


@pytest.mark.parametrize("name", NAMES)
def test_every_part_has_a_description(name: str) -> None:
    """Without one a report has the name of a class."""
    fallback = _description.dispatch(object)
    parts = {
        type(part)
        for graph_def in (golden_graph(name), fused(name)[0])
        for lookup in recognise_all(GraphView.of_graph(graph_def, KEPT))
        for part in lookup.parts
    }
    assert [part.__name__ for part in parts if _description.dispatch(part) is fallback] == []


@pytest.mark.parametrize("name", NAMES)
def test_what_is_fused_stays_and_is_reported_as_such(name: str) -> None:
    graph_def, report = fused(name)
    again = PASSES[Target.FUSED](preserve=KEPT).apply(graph_def)
    assert not again.modified
    assert again.graph_def == graph_def
    assert len(again.report.columns) >= report.fused_count
    assert all("already" in str(column) for column in again.report.columns)


@pytest.mark.parametrize("name", NAMES)
def test_every_fused_column_is_compared_with_its_own(name: str) -> None:
    graph_def, report = fused(name)
    found = paired_columns(_meta(golden_graph(name)), _meta(graph_def))
    assert len(found.pairs) >= report.fused_count
    joined = {pair.b for pair in found.pairs}
    assert len(joined) == len(found.pairs)


def test_every_form_has_a_graph() -> None:
    graphs = [golden_graph(name) for name in NAMES] + [fused(name)[0] for name in NAMES]
    graphs.append(layer_function().graph.as_graph_def())
    views = [GraphView.of_graph(graph_def, KEPT) for graph_def in graphs]
    missing = [form.ops for form in FORMS if not any(any(form.find(view)) for view in views)]
    assert missing == []
