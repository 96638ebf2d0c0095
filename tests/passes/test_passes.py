"""The passes as such: what they have in common, and several in a row."""

from __future__ import annotations

import gc

import pytest
from tensorflow.core.framework import graph_pb2

from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.fuse_updates import FuseUpdates
from fusion.passes.graph.view import GraphView
from fusion.passes.lookup_pass import Pass, apply_passes
from fusion.passes.lower_lookups import LowerLookups, remaining_fused_ops
from fusion.passes.recognise import lookup
from fusion.passes.recognise.lookup import FORMS, recognise_all
from fusion.passes.recognise.parts import Parts
from fusion.passes.report.report import FusionReport, FusionResult, UpdateReport
from fusion.passes.targets import PASSES, Target
from tests.passes import stock_graphs as stock
from tests.passes.rewritten_graphs import PASS
from tests.passes.stock_graphs import Case


class _Appends:
    """A pass that adds a node and says so."""

    def __init__(self, name: str) -> None:
        self.name = name

    def apply(self, graph_def: graph_pb2.GraphDef) -> FusionResult:
        result = graph_pb2.GraphDef()
        result.CopyFrom(graph_def)
        result.node.add(name=self.name, op="NoOp")
        counts = len(graph_def.node), len(result.node)
        return FusionResult(result, FusionReport((), *counts, (UpdateReport(self.name),)), True)


def test_passes_in_a_row_are_reported_as_one() -> None:
    graph_def = stock.build(Case())
    passes: list[Pass] = [PASS, _Appends("a"), _Appends("b")]
    result = apply_passes(passes, graph_def)
    fused = PASS.apply(graph_def)
    assert result.report.columns == fused.report.columns
    assert [update.name for update in result.report.updates] == ["a", "b"]
    assert result.report.nodes_before == len(graph_def.node)
    assert result.report.nodes_after == len(result.graph_def.node) == len(fused.graph_def.node) + 2
    assert result.modified


@pytest.mark.parametrize("one", [FuseLookups(), LowerLookups(), FuseUpdates()])
def test_a_graph_without_lookups_is_handed_on_itself(one: Pass) -> None:
    graph_def = graph_pb2.GraphDef()
    graph_def.node.add(name="a", op="NoOp")
    result = apply_passes([one, one], graph_def)
    assert result.graph_def is graph_def
    assert not result.modified
    assert result.report == FusionReport((), 1, 1)


def test_a_fused_op_that_is_no_lookup_is_lowered_too() -> None:
    """The graph is then another one, though no column says so."""
    graph_def = graph_pb2.GraphDef()
    ids = graph_def.node.add(name="ids", op="Placeholder")
    ids.attr["dtype"].type = 9
    ids.attr["shape"].shape.dim.add(size=-1)
    unique = graph_def.node.add(name="unique", op="UniqueWithCountsV3", input=["ids"])
    unique.attr["Tid"].type = 9
    result = LowerLookups(frozenset({"unique"})).apply(graph_def)
    assert result.modified
    assert remaining_fused_ops(result.graph_def, result.report) is None


def test_an_error_of_a_recogniser_is_a_refusal_in_the_product_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise AttributeError("a defect")

    monkeypatch.setattr(lookup, "match_table", broken)
    graph_def = stock.build(Case())
    with pytest.raises(AttributeError, match="a defect"):
        PASS.apply(graph_def)
    monkeypatch.setattr(lookup, "raises_errors", False)
    (column,) = PASS.apply(graph_def).report.columns
    assert (
        column.reason == "the graph around it makes no sense to fusion (AttributeError: a defect)"
    )


@pytest.mark.parametrize("case", [Case(), Case(max_norm=1.0), Case(shards=2, ragged=True)])
@pytest.mark.parametrize("target", Target)
def test_nothing_of_a_graph_goes_round_in_a_circle(target: Target, case: Case) -> None:
    """It takes long to find what does, in a graph of many nodes."""
    graph_def = stock.build(case)
    gc.collect()
    gc.disable()
    try:
        before = _views()
        PASSES[target](preserve=frozenset({"out"})).apply(graph_def)
        assert _views() == before
    finally:
        gc.enable()


def _views() -> int:
    return sum(type(one) is GraphView for one in gc.get_objects())


def test_forms_share_no_anchor() -> None:
    anchors = [anchor for form in FORMS for anchor in form.anchors]
    assert len(anchors) == len({*anchors})


def test_parts_come_in_the_order_of_explanation() -> None:
    (match,) = recognise_all(GraphView.of_graph(stock.build(Case(max_norm=1.0))))
    kinds = [type(part).__name__ for part in match.parts]
    assert kinds == [
        "Reduction",
        "Table",
        "Clip",
        "Entries",
        "Fill",
        "Prune",
        "IdSource",
        "Mask",
        "Tail",
    ]
    assert list(Parts()) == []
