"""Every kind of SavedModel is fused where it can be, answers as before, and is kept otherwise."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from google.protobuf.message import Message
from tensorflow.core.protobuf import meta_graph_pb2

from fusion.saved_model.model.meta_graph import used_ops
from fusion.saved_model.model.source import read_saved_model
from fusion.schema.names import OP_NAMES
from tests import zygote
from tests.saved_model import kinds
from tests.saved_model.forked import Tool
from tests.saved_model.test_rewrite import NEW, ROOT, hashes

#: The lookups of each kind, and the signatures that are compared.
LOOKUPS = {
    "branching": (4, ["branch", "loop", "nested"]),
    "words": (3, ["serving_default"]),
    "keras3_export": (1, ["serve", "serving_default"]),
    "keras3_save": (1, ["serving_default"]),
    "meta_graphs": (2, ["rows", "rows [serve,fast]", "serving_default"]),
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kinds")
    command = [sys.executable, "-m", "tests.saved_model.kinds", str(folder)]
    zygote.run(command, cwd=ROOT, env={**os.environ}, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def records(built: Path, tool: Tool) -> dict[str, Any]:
    """The record of each kind's rewrite."""
    for kind in LOOKUPS:
        run = tool("rewrite", built / kind, built / f"{kind}.fused")
        assert run.status == 0, run.lines
    files = {kind: built / f"{kind}.fused" / "fusion.json" for kind in LOOKUPS}
    return {kind: json.loads(file.read_text()) for kind, file in files.items()}


def test_every_kind_has_a_test():
    assert [kind.__name__ for kind in kinds.KINDS] == [*LOOKUPS]


@pytest.mark.parametrize("kind", LOOKUPS)
def test_all_lookups_are_fused_and_verified(records: dict[str, Any], kind: str):
    count, signatures = LOOKUPS[kind]
    report, verification = records[kind]["report"], records[kind]["verification"]
    assert report["fused"] == report["total"] == count
    assert verification["same"]
    assert verification["signatures"] == signatures
    assert verification["varying"] == []
    assert verification["tolerance"] == 0


@pytest.mark.parametrize("kind", LOOKUPS)
def test_everything_else_is_the_sources(built: Path, records: dict[str, Any], kind: str):
    src, dst = built / kind, built / f"{kind}.fused"
    before, after = hashes(src), hashes(dst)
    assert after.keys() == before.keys() | {Path("fusion.json")}
    assert {file for file in before if after[file] != before[file]} == NEW & before.keys()
    old, new = (read_saved_model(model).proto for model in (src, dst))
    for ours, theirs in zip(new.meta_graphs, old.meta_graphs, strict=True):
        _check_op_list(ours, theirs)
        _check_functions(ours, theirs)
        for meta in (ours, theirs):
            meta.meta_info_def.ClearField("stripped_op_list")
            meta.graph_def.ClearField("node")
            del meta.graph_def.library.function[:]
    assert _bytes(new) == _bytes(old)


def _bytes(message: Message) -> bytes:
    content: bytes = message.SerializeToString(deterministic=True)
    return content


def _check_op_list(ours: meta_graph_pb2.MetaGraphDef, theirs: meta_graph_pb2.MetaGraphDef) -> None:
    """The ops that are used are listed, ours with their definitions, stock's as they were saved."""
    if not theirs.meta_info_def.HasField("stripped_op_list"):
        return
    listed = {op.name: op for op in ours.meta_info_def.stripped_op_list.op}
    saved = {op.name: op for op in theirs.meta_info_def.stripped_op_list.op}
    functions = {f.signature.name for f in ours.graph_def.library.function}
    # TensorFlow itself does not list all that the conditions of loops use.
    assert listed.keys() >= (used_ops(ours) - functions) & (saved.keys() | {*OP_NAMES})
    assert listed.keys() & set(OP_NAMES)
    assert all(op == listed[name] for name, op in saved.items() if name in listed)
    filling = {"Merge", "Switch", "LookupTableExportV2"}  # an index of vocabularies
    ours_alone = set(OP_NAMES) | {"Const", "Identity", "Pack"} | filling
    assert listed.keys() - saved.keys() <= ours_alone


def _check_functions(
    ours: meta_graph_pb2.MetaGraphDef, theirs: meta_graph_pb2.MetaGraphDef
) -> None:
    """Functions keep their order, names, arguments and attributes; those untouched every byte."""
    pairs = zip(ours.graph_def.library.function, theirs.graph_def.library.function, strict=True)
    changed = 0
    for new, old in pairs:
        # A fused lookup may run for several, and nobody waits for those that are gone.
        assert {*new.signature.control_output} <= {*old.signature.control_output}
        for function in (new, old):
            del function.signature.control_output[:]
            function.control_ret.clear()
        assert _bytes(new.signature) == _bytes(old.signature)
        assert dict(new.attr) == dict(old.attr)
        assert sorted(new.ret) == sorted(old.ret)
        is_fused = not {n.op for n in new.node_def}.isdisjoint(OP_NAMES)
        assert is_fused == (_bytes(new) != _bytes(old))
        changed += is_fused
    assert changed or not theirs.graph_def.library.function


def test_the_record_has_the_hashes_of_the_source(built: Path, records: dict[str, Any]):
    files = records["words"]["source"]["files"]
    assert files == {
        str(file): {
            "bytes": (built / "words" / file).stat().st_size,
            "sha256": hashlib.sha256((built / "words" / file).read_bytes()).hexdigest(),
        }
        for file in hashes(built / "words")
    }
    assert "assets/words.txt" in files
    assert {"saved_model.pb", "fingerprint.pb", "variables/variables.index"} <= files.keys()


def test_tables_and_branches_answer_after_loading(built: Path, records: dict[str, Any]):
    example = tf.train.Example()
    for name in ("color", "shade", "city"):
        example.features.feature[name].bytes_list.value.extend([b"green", b"Oslo"])
    texts = tf.constant([example.SerializeToString()])
    ids = tf.SparseTensor([[0, 0], [0, 1], [2, 0]], tf.constant([3, 7, 39], tf.int64), [3, 2])
    stock, fused = (tf.saved_model.load(str(built / f"words{s}")) for s in ("", ".fused"))
    row = fused.serve(texts)["row"]
    assert row.shape == (1, 24)
    assert tf.reduce_all(row == stock.serve(texts)["row"])
    stock, fused = (tf.saved_model.load(str(built / f"branching{s}")) for s in ("", ".fused"))
    for which in (0, 1, 2, 5):
        for key, value in stock.branch(ids, tf.constant(which)).items():
            assert tf.reduce_all(value == fused.branch(ids, tf.constant(which))[key])
