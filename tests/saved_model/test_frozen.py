from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fusion.cli import main
from fusion.saved_model import (
    ModelError,
    RewriteOptions,
    explain_saved_model,
    fuse_saved_model,
    rewrite_saved_model,
)
from fusion.saved_model.model.source import read_saved_model
from tests.saved_model.forked import Tool
from tests.saved_model.frozen_graphs import v1_graph, v2_graph, write

v1 = tf.compat.v1


def read(path: Path) -> graph_pb2.GraphDef:
    return graph_pb2.GraphDef.FromString(path.read_bytes())


def test_a_frozen_graph_becomes_a_fused_one(tmp_path: Path):
    src = write(v1_graph(), tmp_path / "src.pb")
    before = src.read_bytes()
    done = rewrite_saved_model(src, tmp_path / "dst.pb")
    assert done.report.fused_count == len(done.report.columns) == 2
    assert done.verification is not None
    assert done.verification.same
    assert done.verification.runs == 6
    assert src.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["dst.pb", "dst.pb.fusion.json", "src.pb"]
    after = read(tmp_path / "dst.pb")
    assert {node.op for node in after.node} & {"GroupedEmbeddingLookup", "FusedEmbeddingLookup"}
    assert {"score", "initialize"} <= {node.name for node in after.node}
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "dst.pb").stat().st_mode & 0o777 == 0o666 & ~mask

    record = json.loads((tmp_path / "dst.pb.fusion.json").read_text())
    assert record["source"] == {"graph_sha256": hashlib.sha256(before).hexdigest()}
    assert record["verification"]["same"]
    feeds = {
        "item/indices:0": [[0, 0], [0, 1], [2, 0]],
        "item/values:0": [3, 7, 39],
        "item/shape:0": [3, 2],
        "shop/indices:0": [[1, 0]],
        "shop/values:0": [5],
        "shop/shape:0": [3, 2],
    }
    results = []
    for graph_def in (read(src), after):
        with tf.Graph().as_default(), v1.Session() as session:
            tf.import_graph_def(graph_def, name="")
            results.append(session.run(["score:0"], feeds))
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("make", [lambda: v1_graph(vocabulary=True), v2_graph])
def test_tables_and_functions_of_frozen_graphs(
    tmp_path: Path, tool: Tool, make: Callable[[], graph_pb2.GraphDef]
):
    src, dst = write(make(), tmp_path / "src.pb"), tmp_path / "dst.pb"
    assert tool("rewrite", src, dst).status == 0
    record = json.loads((tmp_path / "dst.pb.fusion.json").read_text())
    assert record["report"]["fused"] == record["report"]["total"] == 2
    assert record["verification"]["same"]
    assert record["verification"]["runs"] >= 3
    assert tool("verify", src, dst).status == 0


def test_a_second_run_and_a_rewrite_of_the_result_change_no_byte(tmp_path: Path):
    src = write(v1_graph(), tmp_path / "src.pb")
    for name, source in (("a", src), ("b", src), ("c", tmp_path / "a")):
        fuse_saved_model(source, tmp_path / name, verify=False)
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b == c != src.read_bytes()
    records = [(tmp_path / f"{name}.fusion.json").read_bytes() for name in "ab"]
    assert records[0] == records[1]


def test_outputs_are_kept_by_name(tmp_path: Path):
    graph_def = v1_graph()
    inner = next(n.name for n in graph_def.node if n.op == "SparseSegmentSum")
    src = write(graph_def, tmp_path / "src.pb")
    options = RewriteOptions(verify=False, outputs=["score", f"{inner}:0"])
    refused = rewrite_saved_model(src, tmp_path / "a.pb", options)
    assert refused.report.fused_count < 2
    done = rewrite_saved_model(src, tmp_path / "b.pb", replace(options, outputs=["score"]))
    assert done.report.fused_count == 2
    assert {"score", inner} <= {node.name for node in read(tmp_path / "a.pb").node}
    assert inner not in {node.name for node in read(tmp_path / "b.pb").node}
    record = json.loads((tmp_path / "b.pb.fusion.json").read_text())
    assert record["options"]["outputs"] == ["score"]


def test_the_default_outputs_are_what_nobody_reads(tmp_path: Path):
    graph_def = v1_graph()
    graph_def.node.add(name="lonely", op="Const").attr["dtype"].type = 1
    split = graph_def.node.add(name="top", op="TopKV2", input=["score", "lonely"])
    split.attr["T"].type = 1
    (meta,) = read_saved_model(write(graph_def, tmp_path / "src.pb")).meta_graphs
    signature = meta.signature_def["serving_default"]
    assert {key: info.name for key, info in signature.outputs.items()} == {
        "top": "top:0",
        "top:1": "top:1",
    }
    assert sorted(signature.inputs) == [
        f"{name}/{part}" for name in ("item", "shop") for part in ("indices", "shape", "values")
    ]
    assert signature.inputs["item/values"].dtype == tf.int64.as_datatype_enum


def test_an_empty_shape_of_an_old_graph_is_an_unknown_one(tmp_path: Path):
    graph_def = v1_graph()
    for node in graph_def.node:
        if node.op == "Placeholder":
            del node.attr["shape"].shape.dim[:]
            node.attr["shape"].shape.unknown_rank = False
    for producer, unknown in ((23, True), (24, False)):
        graph_def.versions.producer = producer
        (meta,) = read_saved_model(write(graph_def, tmp_path / "src.pb")).meta_graphs
        info = meta.signature_def["serving_default"].inputs["item/values"]
        assert info.tensor_shape.unknown_rank == unknown


def test_what_is_no_frozen_graph_is_refused(tmp_path: Path, models: Path):
    src = write(v1_graph(), tmp_path / "src.pb")
    content = src.read_bytes()
    for length in (0, 1, 7, len(content) // 2, len(content) - 1):
        (tmp_path / "cut.pb").write_bytes(content[:length])
        with pytest.raises(ModelError, match=r"no frozen graph .*give the folder"):
            read_saved_model(tmp_path / "cut.pb")
    (tmp_path / "graph.pbtxt").write_text("node { name: 'a' op: 'NoOp' }")
    with pytest.raises(ModelError, match="only binary graphs"):
        read_saved_model(tmp_path / "graph.pbtxt")
    with pytest.raises(ModelError, match="give the folder that holds"):
        read_saved_model(models / "tf2" / "saved_model.pb")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelError, match="neither a directory nor a regular file"):
        read_saved_model(tmp_path / "pipe")
    for outputs, message in (
        (["absent"], "no node 'absent'"),
        (["score:1"], "has no output 'score:1'"),
        (["score:x"], "has no output 'score:x'"),
        (["initialize"], "has no output 'initialize'"),
    ):
        with pytest.raises(ModelError, match=message):
            fuse_saved_model(src, tmp_path / "dst.pb", outputs=outputs)
    with pytest.raises(ModelError, match="a SavedModel has signatures"):
        fuse_saved_model(models / "tf2", tmp_path / "dst", outputs=["score"])
    assert not list(tmp_path.glob("dst*"))


def test_a_graph_with_variables_cannot_be_verified(tmp_path: Path, tool: Tool):
    with tf.Graph().as_default() as graph:
        ids = v1.sparse_placeholder(tf.int64, [None, None], name="ids")
        table = v1.get_variable("table", [9, 4])
        tf.identity(tf.nn.safe_embedding_lookup_sparse(table, ids), name="out")
        src = write(graph.as_graph_def(), tmp_path / "src.pb")
    run = tool("rewrite", "--outputs", "out", src, tmp_path / "dst.pb")
    assert run.status == 2
    (line,) = run.lines
    assert "nothing to compare" in line
    assert "--no-verify" in line
    assert os.listdir(tmp_path) == ["src.pb"]


def test_destinations_of_frozen_graphs(tmp_path: Path):
    src = write(v1_graph(), tmp_path / "src.pb")
    for taken in ("dst.pb", "dst.pb.fusion.json"):
        (tmp_path / taken).write_text("theirs")
        with pytest.raises(ModelError, match=f"{taken}: already exists"):
            fuse_saved_model(src, tmp_path / "dst.pb", verify=False)
        assert (tmp_path / taken).read_text() == "theirs"
        (tmp_path / taken).unlink()
    assert os.listdir(tmp_path) == ["src.pb"]


def test_the_commands_take_frozen_graphs(
    tmp_path: Path, tool: Tool, capsys: pytest.CaptureFixture[str]
):
    src, dst = write(v1_graph(), tmp_path / "src.pb"), tmp_path / "dst.pb"
    assert main(["inspect", str(src)]) == 0
    assert "2 of 2 columns can be fused" in capsys.readouterr().out
    assert main(["rewrite", "--no-verify", "--outputs", "score", str(src), str(dst)]) == 0
    assert f"wrote {dst}; run `import fusion`" in capsys.readouterr().out
    assert tool("verify", src, dst).status == 0
    assert explain_saved_model(dst).fused_count == 0
    assert main(["rewrite", "--outputs", "absent", str(src), str(tmp_path / "x")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the graph has no node 'absent'" in line
