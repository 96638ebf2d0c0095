from __future__ import annotations

from pathlib import Path

import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from fusion.passes.report.report import ColumnReport, FusionReport, FusionResult
from fusion.saved_model.model.meta_graph import (
    apply_pass,
    fetched_names,
    preserved_names,
    update_op_list,
    used_ops,
)
from fusion.saved_model.model.source import read_saved_model


def _meta(model: Path) -> meta_graph_pb2.MetaGraphDef:
    return read_saved_model(model).meta_graphs[0]


def _op_names(meta: meta_graph_pb2.MetaGraphDef) -> list[str]:
    return [op.name for op in meta.meta_info_def.stripped_op_list.op]


class _Rename:
    """A pass that turns every op of one kind into another; `fused` says whether it did."""

    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old, new

    def apply(self, graph_def: tf.compat.v1.GraphDef) -> FusionResult:
        graph = type(graph_def)()
        graph.CopyFrom(graph_def)
        found = [node for node in graph.node if node.op == self.old]
        for node in found:
            node.op = self.new
        columns = tuple(ColumnReport(n.name, "", n.name, True) for n in found)
        return FusionResult(
            graph, FusionReport(columns, len(graph.node), len(graph.node)), bool(found)
        )


def test_what_signatures_return_is_fetched(models: Path):
    meta = _meta(models / "v1_resource")
    outputs = meta.signature_def["serving_default"].outputs.values()
    results = frozenset(info.name.partition(":")[0] for info in outputs)
    assert "model/Sigmoid" in results
    assert fetched_names(meta) == results
    # What initializes a model is no signature of its user's.
    meta.signature_def["__saved_model_init_op"].outputs["op"].name = meta.graph_def.node[0].name
    assert fetched_names(meta) == results
    del meta.signature_def["serving_default"]
    assert fetched_names(meta) is None


def test_names_of_signatures_collections_saver_and_assets_are_preserved(models: Path):
    meta = _meta(models / "v1_resource")
    names = preserved_names(meta)
    nodes = {node.name for node in meta.graph_def.node}
    signature = meta.signature_def["serving_default"]
    asset = meta_graph_pb2.AssetFileDef()
    assert meta.collection_def["saved_model_assets"].any_list.value[0].Unpack(asset)
    expected = {
        signature.inputs["item"].coo_sparse.indices_tensor_name,
        signature.inputs["item"].coo_sparse.dense_shape_tensor_name,
        signature.inputs["price"].name,
        signature.outputs["score"].name,
        meta.saver_def.restore_op_name,
        meta.saver_def.filename_tensor_name,
        asset.tensor_info.name,
        *meta.collection_def["saved_model_main_op"].node_list.value,
        "model/weights/Read/ReadVariableOp",
        "model/weights/Assign",
    }
    expected_nodes = {name.partition(":")[0] for name in expected}
    assert expected_nodes <= names
    assert expected_nodes <= nodes
    assert "" not in names


def test_interior_nodes_are_not_preserved(models: Path):
    meta = _meta(models / "v1_resource")
    reductions = {n.name for n in meta.graph_def.node if n.op.startswith("SparseSegment")}
    assert len(reductions) == 4
    assert not reductions & preserved_names(meta)


def test_functions_and_constants_of_the_object_graph_are_preserved(models: Path):
    meta = _meta(models / "tf2")
    names = preserved_names(meta)
    functions = {f.signature.name for f in meta.graph_def.library.function}
    assert set(meta.object_graph_def.concrete_functions) <= names
    assert set(meta.object_graph_def.concrete_functions) <= functions
    meta.object_graph_def.nodes.add().constant.operation = "Const_9"
    assert "Const_9" in preserved_names(meta)


def test_a_collection_of_unknown_bytes_is_no_obstacle(models: Path):
    meta = _meta(models / "tf2")
    meta.collection_def["theirs"].bytes_list.value.extend([b"\xff\xfe", b"some_node"])
    meta.collection_def["variables"].bytes_list.value.append(b"\xff\xfe")
    assert "some_node" in preserved_names(meta)


def test_the_op_list_is_the_one_tensorflow_would_save(models: Path):
    for kind in ("v1_ref", "tf2", "keras"):
        meta = _meta(models / kind)
        before = meta.meta_info_def.stripped_op_list.SerializeToString(deterministic=True)
        update_op_list(meta)
        after = meta.meta_info_def.stripped_op_list.SerializeToString(deterministic=True)
        assert after == before


def test_the_op_list_follows_the_graph_and_keeps_the_producers_definitions(models: Path):
    meta = _meta(models / "v1_ref")
    for op in meta.meta_info_def.stripped_op_list.op:
        op.summary = "by the producer"
    assert "SparseSegmentSum" in _op_names(meta)
    report = apply_pass(meta, _Rename("SparseSegmentSum", "SparseSegmentMeanGrad")).report
    assert report.fused_count == 1
    names = _op_names(meta)
    assert "SparseSegmentSum" not in names
    assert "SparseSegmentMeanGrad" in names
    assert names == sorted(names)
    summaries = {op.name: op.summary for op in meta.meta_info_def.stripped_op_list.op}
    assert summaries["SparseSegmentMean"] == "by the producer"
    assert summaries["SparseSegmentMeanGrad"] != "by the producer"


def test_a_model_without_an_op_list_gets_none(models: Path):
    meta = _meta(models / "v1_ref")
    meta.meta_info_def.ClearField("stripped_op_list")
    update_op_list(meta)
    assert not meta.meta_info_def.HasField("stripped_op_list")


def test_a_pass_that_finds_nothing_changes_nothing(models: Path):
    meta = _meta(models / "tf2")
    before = meta.SerializeToString(deterministic=True)
    assert apply_pass(meta, _Rename("NoSuchOp", "Identity")).report.fused_count == 0
    assert meta.SerializeToString(deterministic=True) == before


def test_used_ops_include_those_of_functions(models: Path):
    ops = used_ops(_meta(models / "tf2"))
    assert "SparseFillEmptyRows" in ops
    assert "StatefulPartitionedCall" in ops
