from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import fingerprint_pb2
from tensorflow.python.saved_model.pywrap_saved_model import fingerprinting

from fusion.passes.report.report import ColumnReport, FusionReport, FusionResult
from fusion.passes.targets import PASSES, Target
from fusion.saved_model import ModelError, VerificationError, explain_saved_model, fuse_saved_model
from fusion.saved_model.model.source import model_files, read_saved_model
from fusion.saved_model.rewriting import verification
from fusion.schema.names import OP_NAMES
from tests import zygote
from tests.saved_model.models import COLUMNS, DIM, ROWS, tf2_module

ROOT = Path(__file__).parents[2]
FUSABLE = [kind for kind, columns in COLUMNS.items() if columns]
NEW = {Path("saved_model.pb"), Path("fingerprint.pb"), Path("fusion.json")}


def hashes(model: Path) -> dict[Path, str]:
    files = model_files(model).files
    return {file: hashlib.sha256((model / file).read_bytes()).hexdigest() for file in files}


def run_python(code: str, *arguments: object) -> str:
    done = zygote.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        server=zygote.without_fusion(),
        cwd=ROOT,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


@dataclass(frozen=True)
class WrongPass:
    """Says it fused, but turns means into sums."""

    preserve: frozenset[str] = frozenset()
    variables: object = None
    devices: object = None
    runtime: object = None
    fetched: object = None

    def apply(self, graph_def: graph_pb2.GraphDef) -> FusionResult:
        graph = graph_pb2.GraphDef()
        graph.CopyFrom(graph_def)
        bodies = [graph.node, *(f.node_def for f in graph.library.function)]
        found = [n for body in bodies for n in body if n.op == "SparseSegmentMean"]
        for node in found:
            node.op = "SparseSegmentSum"
        columns = tuple(ColumnReport(n.name, "", n.name, True) for n in found)
        return FusionResult(graph, FusionReport(columns, 1, 1), modified=bool(found))


@pytest.fixture(scope="module")
def rewritten(models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each fusable model, rewritten and verified: outputs equal to the bit in fresh processes."""
    folder = tmp_path_factory.mktemp("rewritten")
    before = {kind: hashes(models / kind) for kind in FUSABLE}
    for kind in FUSABLE:
        report = fuse_saved_model(models / kind, folder / kind)
        assert len({column.name for column in report.columns}) == COLUMNS[kind]
        assert report.fused_count == len(report.columns)
        assert report.nodes_after < report.nodes_before
    assert {kind: hashes(models / kind) for kind in FUSABLE} == before
    assert sorted(os.listdir(folder)) == sorted(FUSABLE)
    return {kind: folder / kind for kind in FUSABLE}


@pytest.mark.parametrize("kind", FUSABLE)
def test_every_other_file_and_folder_is_kept(models: Path, rewritten: dict[str, Path], kind: str):
    before, after = hashes(models / kind), hashes(rewritten[kind])
    assert after.keys() == before.keys() | {Path("fusion.json")}
    changed = {file for file, digest in before.items() if after[file] != digest}
    assert changed == NEW & before.keys()
    assert model_files(models / kind).folders == model_files(rewritten[kind]).folders


@pytest.mark.parametrize("kind", FUSABLE)
def test_signatures_variables_and_metadata_are_kept(
    models: Path, rewritten: dict[str, Path], kind: str
):
    (before,) = read_saved_model(models / kind).meta_graphs
    (after,) = read_saved_model(rewritten[kind]).meta_graphs
    listed = {op.name for op in after.meta_info_def.stripped_op_list.op}
    used = listed & set(OP_NAMES)
    assert "GroupedEmbeddingLookup" in used
    assert "Tile" not in listed
    for meta in (before, after):
        meta.ClearField("graph_def")
        meta.meta_info_def.ClearField("stripped_op_list")
    assert after == before


def test_the_fingerprint_is_tensorflows(models: Path, rewritten: dict[str, Path]):
    for kind in ("tf2", "keras", "example"):
        model = str(rewritten[kind])
        found = tf.saved_model.experimental.read_fingerprint(model)
        assert found != tf.saved_model.experimental.read_fingerprint(str(models / kind))
        made = fingerprinting.CreateFingerprintDef(model)
        assert found == fingerprint_pb2.FingerprintDef.FromString(made)
    assert not (rewritten["v1_ref"] / "fingerprint.pb").exists()


def test_the_record_says_what_was_done_and_how_to_load(models: Path, rewritten: dict[str, Path]):
    record = json.loads((rewritten["tf2"] / "fusion.json").read_text())
    content = (models / "tf2" / "saved_model.pb").read_bytes()
    assert record["source"]["saved_model_sha256"] == hashlib.sha256(content).hexdigest()
    assert "import fusion" in record["load"]
    assert "GroupedEmbeddingLookup" in record["ops"]
    assert record["options"] == {"target": "fused", "verify": True}
    assert record["verification"]["same"]
    assert record["verification"]["signatures"] == ["embedding", "serving_default"]
    assert [column["name"] for column in record["report"]["columns"]] == ["items", "shops"]


def test_a_second_run_writes_the_same_bytes(
    models: Path, rewritten: dict[str, Path], tmp_path: Path
):
    # In a process with another hash seed, so that no order of a set shows.
    code = """if True:
        import sys
        from fusion.saved_model import fuse_saved_model
        fuse_saved_model(sys.argv[1], sys.argv[2], verify=False)
    """
    for kind in ("tf2", "v1_ref"):
        run_python(code, models / kind, tmp_path / kind)
        again = hashes(tmp_path / kind)
        first = hashes(rewritten[kind])
        del again[Path("fusion.json")], first[Path("fusion.json")]
        assert again == first
    for name in ("a", "b"):
        fuse_saved_model(models / "tf2", tmp_path / name, verify=False)
    assert hashes(tmp_path / "a") == hashes(tmp_path / "b")
    assert json.loads((tmp_path / "a" / "fusion.json").read_text())["verification"] is None


def test_rewriting_again_changes_nothing(rewritten: dict[str, Path], tmp_path: Path):
    for kind in ("keras", "v1_resource"):
        report = fuse_saved_model(rewritten[kind], tmp_path / kind)
        assert report.fused_count == 0
        assert report.nodes_before == report.nodes_after
        assert hashes(tmp_path / kind) == hashes(rewritten[kind])


def test_a_fresh_process_needs_import_fusion_and_no_more(rewritten: dict[str, Path]):
    code = """if True:
        import sys
        if sys.argv[1] == "with":
            import fusion
        import tensorflow as tf
        for path in sys.argv[2:]:
            try:
                print(sorted(tf.saved_model.load(path).signatures))
            except Exception as error:
                print(type(error).__name__, str(error).replace(chr(10), " "))
    """
    paths = [rewritten["tf2"], rewritten["v1_ref"]]
    assert run_python(code, "with", *paths).splitlines() == [
        "['embedding', 'serving_default']",
        "['serving_default']",
    ]
    for line in run_python(code, "without", *paths).splitlines():
        assert "Op type not registered" in line
        assert any(f"'{name}'" in line for name in OP_NAMES)


def _ids(seed: int, rows: int) -> tf.SparseTensor:
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 14, size=16)
    indices = [(row, index) for row, count in enumerate(counts) for index in range(count)]
    values = rng.integers(-1, rows, size=len(indices))
    return tf.SparseTensor(np.array(indices, np.int64).reshape(-1, 2), values, [16, 14])


def _train(path: Path) -> tuple[list[float], dict[str, np.ndarray]]:
    """Ten steps of gradient descent; returns the losses and the trained variables."""
    model = tf.saved_model.load(str(path))
    variables = [model.items, model.shops, model.weights]
    labels = tf.cast(tf.range(16) % 2, model.items.dtype)[:, None]
    losses = []
    for step in range(10):
        with tf.GradientTape() as tape:
            score = model.rank(_ids(step, ROWS), _ids(100 + step, 2 * ROWS))["score"]
            loss = tf.reduce_mean(tf.square(score - labels))
        losses.append(float(loss))
        gradients = tape.gradient(loss, variables)
        assert isinstance(gradients[0], tf.IndexedSlices)
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(0.5 * tf.convert_to_tensor(gradient))
    return losses, {variable.name: variable.numpy() for variable in variables}


def test_fine_tuning_gives_the_stock_models_numbers(models: Path, rewritten: dict[str, Path]):
    losses, variables = _train(rewritten["tf2"])
    stock_losses, stock_variables = _train(models / "tf2")
    assert len(set(losses)) == 10
    assert losses == stock_losses
    assert variables.keys() == stock_variables.keys()
    for name, value in variables.items():
        np.testing.assert_array_equal(value, stock_variables[name])
    assert variables["items:0"].shape == (ROWS, DIM)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_half_tables_train_as_in_the_stock_model(dtype: tf.DType, tmp_path: Path):
    tf2_module(tmp_path / "stock", dtype)
    report = fuse_saved_model(tmp_path / "stock", tmp_path / "fused")
    assert report.fused_count == len(report.columns) > 0
    (losses, variables), (stock_losses, stock_variables) = (
        _train(tmp_path / kind) for kind in ("fused", "stock")
    )
    assert len(set(losses)) > 3
    assert losses == stock_losses
    for name, value in variables.items():
        assert value.dtype == dtype.as_numpy_dtype
        np.testing.assert_array_equal(value, stock_variables[name])


def test_a_model_without_embeddings_becomes_a_valid_copy(models: Path, tmp_path: Path):
    report = fuse_saved_model(models / "plain", tmp_path / "dst")
    assert report.columns == ()
    after = hashes(tmp_path / "dst")
    record = json.loads((tmp_path / "dst" / "fusion.json").read_text())
    assert record["ops"] == []
    assert "import fusion" not in record["load"]
    del after[Path("fusion.json")]
    assert after == hashes(models / "plain")
    assert tf.saved_model.load(str(tmp_path / "dst")).signatures["serving_default"]


def test_every_meta_graph_is_rewritten(tmp_path: Path):
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        ids = v1.sparse_placeholder(tf.int64, [None, None])
        table = v1.get_variable("table", [ROWS, DIM])
        out = tf.nn.safe_embedding_lookup_sparse(table, ids, combiner="sum")
        session.run(v1.global_variables_initializer())
        signature = {"look": v1.saved_model.predict_signature_def({"ids": ids}, {"out": out})}
        builder = v1.saved_model.builder.SavedModelBuilder(str(tmp_path / "src"))
        builder.add_meta_graph_and_variables(session, ["serve"], signature)
        builder.add_meta_graph(["serve", "other"], signature)
        builder.save()
    report = fuse_saved_model(tmp_path / "src", tmp_path / "dst")
    assert report.fused_count == 2
    for meta in read_saved_model(tmp_path / "dst").meta_graphs:
        assert "FusedEmbeddingLookup" in {node.op for node in meta.graph_def.node}
    record = json.loads((tmp_path / "dst" / "fusion.json").read_text())
    assert record["verification"]["signatures"] == ["look", "look [serve,other]"]


def test_a_result_that_differs_leaves_nothing(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(PASSES, Target.FUSED, WrongPass)
    with pytest.raises(VerificationError, match="verification failed, nothing written") as caught:
        fuse_saved_model(models / "tf2", tmp_path / "dst")
    message = str(caught.value)
    for part in ("signature 'embedding'", "output 'embedding'", "elements differ, by at most"):
        assert part in message
    assert os.listdir(tmp_path) == []


def test_a_result_that_does_not_load_leaves_nothing(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(_: Path, result: Path, **__: object) -> None:
        raise ModelError(f"cannot verify: {result} cannot be loaded: why")

    monkeypatch.setattr(verification, "compare_models", refuse)
    expected = "^nothing written: cannot verify: the rewritten model cannot be loaded: why$"
    with pytest.raises(VerificationError, match=expected):
        fuse_saved_model(models / "tf2", tmp_path / "dst")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_rewrite_leaves_nothing(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
):
    def interrupt(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(verification, "compare_models", interrupt)
    with pytest.raises(error):
        fuse_saved_model(models / "tf2", tmp_path / "dst")
    assert os.listdir(tmp_path) == []


def test_bad_arguments_write_nothing(models: Path, tmp_path: Path):
    with pytest.raises(ValueError, match="target must be one of fused, stock, got 'xla'"):
        fuse_saved_model(models / "tf2", tmp_path / "dst", target="xla")
    with pytest.raises(ModelError, match="no such file"):
        fuse_saved_model(models / "absent", tmp_path / "dst")
    with pytest.raises(ModelError, match="already exists"):
        fuse_saved_model(models / "tf2", models / "plain")
    with pytest.raises(ModelError, match="inside the source"):
        fuse_saved_model(models / "tf2", models / "tf2" / "dst")
    assert os.listdir(tmp_path) == []


def test_a_malformed_graph_is_a_model_error(models: Path, tmp_path: Path):
    source = tmp_path / "src"
    shutil.copytree(models / "v1_ref", source)
    proto = read_saved_model(source).proto
    for node in proto.meta_graphs[0].graph_def.node:
        if node.op == "SparseFillEmptyRows":
            node.input[0] = ""
    (source / "saved_model.pb").write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match="makes no sense to fusion"):
        explain_saved_model(source)
    with pytest.raises(ModelError, match="makes no sense to fusion"):
        fuse_saved_model(source, tmp_path / "dst")
    assert os.listdir(tmp_path) == ["src"]


@pytest.mark.usefixtures("recognisers_refuse")
def test_a_damaged_column_gets_a_verdict(models: Path, tmp_path: Path):
    source = tmp_path / "src"
    shutil.copytree(models / "v1_ref", source)
    proto = read_saved_model(source).proto
    for node in proto.meta_graphs[0].graph_def.node:
        if node.op == "SparseFillEmptyRows":
            del node.input[2:]
    (source / "saved_model.pb").write_bytes(proto.SerializeToString())
    columns = explain_saved_model(source).columns
    assert columns
    for column in columns:
        assert "makes no sense to fusion" in str(column.reason)


def test_explain_says_what_a_rewrite_would_do(models: Path, rewritten: dict[str, Path]):
    report = explain_saved_model(models / "keras")
    assert report.fused_count == len(report.columns) > 0
    assert explain_saved_model(rewritten["keras"]).fused_count == 0
    assert explain_saved_model(models / "plain").columns == ()
    with pytest.raises(ModelError, match="no such file"):
        explain_saved_model(models / "absent")
