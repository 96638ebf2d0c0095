"""`to_networkx` of reports on SavedModels and frozen graphs, which hold paths alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import networkx as nx
import pytest
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import saved_model_pb2

import fusion
from fusion.passes.report.report import Networks
from fusion.saved_model import ModelError
from tests.passes import stock_graphs as stock

FUSED = ("FusedEmbeddingLookup", "GroupedEmbeddingLookup")


def fused_nodes(networks: Networks) -> list[str]:
    """The fused ops, of which the graph before has none; they say their columns."""
    before, after = networks
    assert not [name for name, op in before.nodes(data="op") if op in FUSED]
    found = [name for name, op in after.nodes(data="op") if op in FUSED]
    assert all(after.nodes[name]["changed"] and after.nodes[name]["columns"] for name in found)
    return found


@pytest.mark.parametrize("name", ["keras", "v1_ref", "tf2"])
def test_explained_and_written_and_loaded_models(models: Path, tmp_path: Path, name: str) -> None:
    explained = fusion.explain(models / name).to_networkx()
    assert fused_nodes(explained)
    written = fusion.fuse_saved_model(models / name, tmp_path / "fused", verify=False)
    assert nx.utils.graphs_equal(written.to_networkx().before, explained.before)
    assert nx.utils.graphs_equal(written.to_networkx().after, explained.after)
    loaded = fusion.saved_model_load(str(models / name)).fusion_report.to_networkx()
    assert nx.utils.graphs_equal(loaded.after, explained.after)


def test_after_is_the_model_that_was_written(models: Path, tmp_path: Path) -> None:
    report = fusion.fuse_saved_model(
        models / "tf2", tmp_path / "fused", verify=False, dtype="float16", least_table_bytes=0
    )
    proto = saved_model_pb2.SavedModel.FromString((tmp_path / "fused/saved_model.pb").read_bytes())
    graph_def = proto.meta_graphs[0].graph_def
    ops = {node.name: node.op for node in graph_def.node}
    after = report.to_networkx().after
    main = {n: d["op"] for n, d in after.nodes(data=True) if not d["function"]}
    assert main == ops
    shutil.rmtree(tmp_path / "fused")
    with pytest.raises(ModelError, match="fused"):
        report.to_networkx()


def test_a_model_that_has_changed(models: Path, tmp_path: Path) -> None:
    shutil.copytree(models / "tf2", tmp_path / "m")
    report = fusion.explain(tmp_path / "m")
    shutil.rmtree(tmp_path / "m")
    shutil.copytree(models / "v1_ref", tmp_path / "m")
    with pytest.raises(ValueError, match="lookups have changed since"):
        report.to_networkx()
    shutil.rmtree(tmp_path / "m")
    with pytest.raises(ModelError):
        report.to_networkx()


def test_a_second_meta_graph_has_a_number(models: Path, tmp_path: Path) -> None:
    shutil.copytree(models / "v1_ref", tmp_path / "m")
    file = tmp_path / "m" / "saved_model.pb"
    proto = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    second = proto.meta_graphs.add()
    second.CopyFrom(proto.meta_graphs[0])
    second.meta_info_def.tags[:] = ["again"]
    file.write_bytes(proto.SerializeToString())
    report = fusion.explain(tmp_path / "m")
    _, after = report.to_networkx()
    found = {name for name, op in after.nodes(data="op") if op in FUSED}
    assert {f"{name}#1" for name in found if "#" not in name} == {n for n in found if "#" in n}
    numbers = ", ".join(after.nodes[name]["lookups"] for name in found).split(", ")
    assert sorted(map(int, numbers)) == list(range(len(report.lookups)))
    for name in found:
        own = [report.lookups[int(index)] for index in after.nodes[name]["lookups"].split(", ")]
        assert ", ".join(dict.fromkeys(c.name for c in own)) == after.nodes[name]["columns"]


def test_frozen_graphs(tmp_path: Path) -> None:
    graph_def: graph_pb2.GraphDef = stock.build(stock.Case(table="constant"))
    (tmp_path / "stock.pb").write_bytes(graph_def.SerializeToString())
    report = fusion.fuse_saved_model(
        tmp_path / "stock.pb", tmp_path / "fused.pb", verify=False, outputs=["out"]
    )
    assert fused_nodes(report.to_networkx())
