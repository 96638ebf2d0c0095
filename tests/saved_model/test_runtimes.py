"""SavedModels and frozen graphs of stock ops, for the TensorFlow that they are to load in."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

import fusion
from fusion.cli.app import main
from fusion.passes.graph.runtime_ops import TOO_OLD, running_release
from fusion.saved_model import ModelError, RewriteOptions, rewrite_saved_model
from fusion.saved_model.model.source import read_saved_model
from fusion.schema.names import OP_NAMES
from tests.op_lists import RELEASES
from tests.op_lists.check import as_saved_by, problems
from tests.saved_model.test_stock_target import ops

v1 = tf.compat.v1
#: The version of the graphs of TensorFlow 2.4.
PRODUCER = 561


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lookup in a table of 128 KiB, which is only shared by an op that TensorFlow 2.10 has."""
    path = tmp_path_factory.mktemp("saved") / "model"
    with tf.Graph().as_default(), v1.Session() as session:
        ids = v1.sparse_placeholder(tf.int64, [None, None], "ids")
        values = tf.reshape(tf.range(2.0**15), [-1, 8])
        table = v1.get_variable("table", initializer=values, use_resource=True)
        rows = tf.nn.safe_embedding_lookup_sparse(table, ids)
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(path), {"ids": ids}, {"rows": rows})
    return path


def copy(
    saved: Path, to: Path, version: str, release: str | None = None, producer: int | None = None
) -> Path:
    """A model as a release saves it, with what it records of that."""
    shutil.copytree(saved, to)
    proto = read_saved_model(to).proto
    (meta,) = proto.meta_graphs
    if release is not None:
        meta.graph_def.CopyFrom(as_saved_by(meta.graph_def, release))
    if producer is not None:
        meta.graph_def.versions.producer = producer
    meta.meta_info_def.tensorflow_version = version
    (to / "saved_model.pb").write_bytes(proto.SerializeToString())
    return to


def graph(path: Path) -> graph_pb2.GraphDef:
    (meta,) = read_saved_model(path).meta_graphs
    return meta.graph_def


def is_shared(path: Path) -> bool:
    return "DisableCopyOnRead" in ops(path)


def runtimes(path: Path) -> str | None:
    recorded: str | None = json.loads((path / "fusion.json").read_text())["runtimes"]
    return recorded


def stock(source: Path, **options: Any) -> Path:
    """What becomes of a model."""
    result = source.with_name("stock")
    report = fusion.fuse_saved_model(source, result, "stock", verify=False, **options)
    assert report.fused_count == len(report.columns) == 1
    return result


# Which TensorFlow that is


@pytest.mark.parametrize("release", RELEASES)
def test_a_model_loads_in_the_tensorflow_that_it_records(
    saved: Path, tmp_path: Path, release: str
) -> None:
    source = copy(saved, tmp_path / "source", f"{release}.3", release)
    done = rewrite_saved_model(source, tmp_path / "stock", RewriteOptions("stock"))
    assert done.report.fused_count == 1
    assert done.verification is not None
    assert done.verification.same
    before = problems(graph(source), release)
    # Today's lookup has rows of int64, which TensorFlow 1.15 does not take.
    assert bool(before) == (release == "1.15")
    assert problems(graph(tmp_path / "stock"), release) == []
    assert is_shared(tmp_path / "stock") == (release == "2.15")
    assert runtimes(tmp_path / "stock") == f"TensorFlow {release} and newer"


@pytest.mark.parametrize(
    ("version", "producer", "is_new"),
    [
        ("2.4.1", None, False),
        ("2.4.1", 2288, False),
        ("unknown", PRODUCER, False),
        ("", PRODUCER, False),
        ("", 0, True),
        ("2.10.0", PRODUCER, True),
        (tf.__version__, None, True),
    ],
)
def test_the_recorded_version_tells_or_else_the_graph_does(
    saved: Path, tmp_path: Path, version: str, producer: int | None, is_new: bool
) -> None:
    source = copy(saved, tmp_path / "source", version, producer=producer)
    assert is_shared(stock(source)) == is_new


def test_a_runtime_may_be_older_or_newer_than_the_model(saved: Path, tmp_path: Path) -> None:
    source = copy(saved, tmp_path / "source", "2.9.3", "2.9")
    for runtime, is_new, recorded in (
        ("2.4", False, "TensorFlow 2.4 and newer, where the source loads"),
        ("2.9.1", False, "TensorFlow 2.9 and newer"),
        ("2.10", True, "TensorFlow 2.10 and newer"),
    ):
        result = stock(source, runtime=runtime)
        assert is_shared(result) == is_new
        assert runtimes(result) == recorded
        options = json.loads((result / "fusion.json").read_text())["options"]
        assert options["runtime"] == runtime
        shutil.rmtree(result)


def test_a_frozen_graph_is_of_the_release_of_its_producer(tmp_path: Path) -> None:
    with tf.Graph().as_default() as built:
        ids = v1.sparse_placeholder(tf.int64, [None, None], "ids")
        table = tf.constant(np.zeros([9, 4], np.float32))
        tf.identity(tf.nn.safe_embedding_lookup_sparse(table, ids), "rows")
        graph_def = built.as_graph_def()
    for producer, release in ((134, "1.15"), (PRODUCER, "2.4")):
        graph_def.versions.producer = producer
        file, result = tmp_path / "model.pb", tmp_path / f"{release}.pb"
        file.write_bytes(as_saved_by(graph_def, release).SerializeToString())
        report = fusion.fuse_saved_model(file, result, "stock", outputs=["rows"])
        assert report.fused_count == 1
        written = graph_pb2.GraphDef.FromString(result.read_bytes())
        assert problems(written, release) == []
        record = json.loads((tmp_path / f"{release}.pb.fusion.json").read_text())
        assert record["runtimes"] == f"TensorFlow {release} and newer"


def test_each_meta_graph_is_written_for_its_own_release(saved: Path, tmp_path: Path) -> None:
    source = copy(saved, tmp_path / "source", "2.4.1", "2.4")
    proto = read_saved_model(source).proto
    proto.meta_graphs.add().CopyFrom(proto.meta_graphs[0])
    proto.meta_graphs[1].meta_info_def.tensorflow_version = "2.11.0"
    (source / "saved_model.pb").write_bytes(proto.SerializeToString())
    report = fusion.fuse_saved_model(source, tmp_path / "stock", "stock", verify=False)
    assert report.fused_count == 2
    metas = read_saved_model(tmp_path / "stock").meta_graphs
    found = [{node.op for node in meta.graph_def.node} for meta in metas]
    assert ["DisableCopyOnRead" in names for names in found] == [False, True]
    assert runtimes(tmp_path / "stock") == "TensorFlow 2.11 and newer"


# What cannot be written for it


def test_nothing_is_written_for_a_model_whose_release_is_too_old(
    saved: Path, tmp_path: Path
) -> None:
    source = copy(saved, tmp_path / "source", "1.8.0")
    report = fusion.fuse_saved_model(source, tmp_path / "copy", "stock", verify=False)
    assert [column.reason for column in report.columns] == [TOO_OLD]
    assert runtimes(tmp_path / "copy") is None
    assert graph(tmp_path / "copy") == graph(source)
    recorded = runtimes(stock(source, runtime="2.4"))
    assert recorded == "TensorFlow 2.4 and newer"


def test_fused_lookups_are_an_error_that_names_a_way(saved: Path, tmp_path: Path) -> None:
    source = copy(saved, tmp_path / "source", "1.8.0")
    fusion.fuse_saved_model(source, tmp_path / "fused", verify=False)
    message = f"{TOO_OLD}; or use the model that was fused instead"
    with pytest.raises(ModelError, match=re.escape(message)):
        fusion.fuse_saved_model(tmp_path / "fused", tmp_path / "stock", "stock")
    assert not (tmp_path / "stock").exists()
    fusion.fuse_saved_model(tmp_path / "fused", tmp_path / "stock", "stock", runtime="2.4")
    assert not ops(tmp_path / "stock") & {*OP_NAMES}


def test_what_is_newer_in_the_source_is_told(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then it is not known that the result loads in the release that the source records."""
    newest = fusion.fuse_saved_model(saved, tmp_path / "newest", "stock", verify=False)
    assert newest.newer == ()
    source = copy(tmp_path / "newest", tmp_path / "source", "2.4.1")
    proto = read_saved_model(source).proto
    graph_def = proto.meta_graphs[0].graph_def
    with tf.Graph().as_default() as other:
        ids = v1.sparse_placeholder(tf.int64, [None, None], "other/ids")
        table = tf.constant(np.zeros([9, 4], np.float32))
        tf.nn.safe_embedding_lookup_sparse(table, ids, name="other/rows")
        graph_def.node.extend(other.as_graph_def().node)
    (source / "saved_model.pb").write_bytes(proto.SerializeToString())
    result = tmp_path / "stock"
    assert main(["rewrite", "--target", "stock", "--no-verify", str(source), str(result)]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "newer than TensorFlow 2.4, in SRC too: DisableCopyOnRead (TensorFlow 2.10)",
        f"wrote {result}; it needs TensorFlow alone, 2.4 or newer, and loads where SRC does",
    ]
    shutil.rmtree(result)
    report = fusion.fuse_saved_model(source, result, "stock", verify=False)
    assert report.newer == ("DisableCopyOnRead (TensorFlow 2.10)",)
    assert runtimes(tmp_path / "stock") == "TensorFlow 2.4 and newer, where the source loads"


@pytest.mark.parametrize("runtime", ["", "2", "latest", "1.11", "2.99"])
def test_what_is_no_runtime(saved: Path, tmp_path: Path, runtime: str) -> None:
    message = (
        "fuse_saved_model: runtime must be a version of TensorFlow such as 2.4 or 2.15.1, from "
        f"1.12 to the {running_release()} that is installed, got {runtime!r}"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        fusion.fuse_saved_model(saved, tmp_path / "stock", "stock", runtime=runtime)
    assert not (tmp_path / "stock").exists()


# Fused models, and models in memory


def test_a_fused_model_says_where_it_loads(saved: Path, tmp_path: Path) -> None:
    message = "fuse_saved_model: runtime is for target 'stock', got '2.20' with target 'fused'"
    with pytest.raises(ValueError, match=message):
        fusion.fuse_saved_model(saved, tmp_path / "fused", runtime="2.20")
    fusion.fuse_saved_model(saved, tmp_path / "fused", verify=False)
    assert runtimes(tmp_path / "fused") == "TensorFlow 2.18 to 2.21"


def test_a_model_that_is_loaded_has_the_ops_of_the_running_tensorflow(
    saved: Path, tmp_path: Path
) -> None:
    for version in ("2.4.1", "1.8.0"):
        source = copy(saved, tmp_path / version, version)
        loaded = fusion.saved_model_load(source, target="stock")
        assert loaded.fusion_report.fused_count == 1
        nodes = loaded.signatures["serving_default"].graph.as_graph_def().node
        assert "DisableCopyOnRead" in {node.op for node in nodes}
