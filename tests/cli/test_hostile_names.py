"""Names from models reach no terminal or drawing as they are: protocol buffers hold any text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.protobuf import saved_model_pb2

import fusion
from fusion.cli import main
from fusion.printable import printable

Capture = pytest.CaptureFixture[str]

v1, fc = tf.compat.v1, tf.feature_column
#: Clears the screen, starts lines, rings, turns text around; markup and a formula.
HOSTILE = "a\x1b[2J\x1b[31mb\r\nfused ok\x07\u202e\x9b1m[red]$x_1$[/red]"
#: The same in the text form of a protocol buffer.
ESCAPED = "".join(f"\\{byte:03o}" for byte in HOSTILE.encode())
SHOWN = printable(HOSTILE)


def save_columns(folder: Path) -> None:
    """A v1 model: two columns that can be fused, one of which a value inside is an output."""
    with tf.Graph().as_default() as graph, v1.Session() as session:
        with v1.variable_scope("EVIL"):
            features = {key: v1.placeholder(tf.int64, [None, 1], f"{key}_EVIL") for key in "AB"}
            kinds = [fc.categorical_column_with_identity(key, 10) for key in features]
            v1.feature_column.input_layer(features, [fc.embedding_column(k, 4) for k in kinds])
            ids = v1.sparse_placeholder(tf.int64, [None, None], "ids")
            table = v1.get_variable("table_EVIL", [10, 4])
            tf.nn.safe_embedding_lookup_sparse(table, ids, name="refused_EVIL")
        inside = next(
            op.outputs[0]
            for op in graph.get_operations()
            if op.type.startswith("SparseSegment") and "refused" in op.name
        )
        layer = graph.get_tensor_by_name("EVIL/input_layer/concat:0")
        session.run(v1.global_variables_initializer())
        inputs = {f"in_{key}_EVIL": tensor for key, tensor in features.items()} | {"ids": ids}
        outputs = {"out_EVIL": layer, "inside_EVIL": inside}
        builder = v1.saved_model.builder.SavedModelBuilder(str(folder))
        signature = v1.saved_model.predict_signature_def(inputs, outputs)
        builder.add_meta_graph_and_variables(
            session, [tf.saved_model.SERVING], {"serve_EVIL": signature}
        )
        builder.save()


class Module(tf.Module):
    """Lookups in functions."""

    def __init__(self) -> None:
        super().__init__()
        self.table = tf.Variable(tf.ones([10, 4]), name="EVIL_table")

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int64, name="EVIL_in")])
    def look_up_EVIL(self, ids: Any) -> Any:
        with tf.name_scope("EVIL"):
            sparse = tf.sparse.from_dense(ids)
            return {"out_EVIL": tf.nn.safe_embedding_lookup_sparse(self.table, sparse)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models whose names, all that have "EVIL" in them, are hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    save_columns(folder / "v1")
    module = Module()
    tf.saved_model.save(module, str(folder / "tf2"), {"serve_EVIL": module.look_up_EVIL})
    for file in folder.glob("*/saved_model.pb"):
        proto = saved_model_pb2.SavedModel.FromString(file.read_bytes())
        text = text_format.MessageToString(proto).replace("EVIL", ESCAPED)
        changed = text_format.Parse(text, saved_model_pb2.SavedModel())
        file.write_bytes(changed.SerializeToString())
        (file.parent / "fingerprint.pb").unlink(missing_ok=True)
    return folder


def run(capsys: Capture, *arguments: object) -> str:
    """What a command prints, all of which can be seen."""
    main([*map(str, arguments)])
    captured = capsys.readouterr()
    for stream in captured:
        assert all(line.isprintable() for line in stream.split("\n")), stream
    printed = captured.out + captured.err
    # No line is the model's own, and nothing was taken for markup.
    assert not any(line.startswith("fused ok") for line in printed.split("\n"))
    return printed


@pytest.mark.parametrize("model", ["v1", "tf2"])
def test_inspect(folder: Path, tmp_path: Path, capsys: Capture, model: str) -> None:
    printed = run(capsys, "inspect", folder / model).replace("\n", "").replace(" ", "")
    assert SHOWN.replace(" ", "") in printed or "[red]$x_1$[/red]" in printed
    assert r"\x1b[2J" in run(capsys, "inspect", folder / model, "--column", "a\x1b[2J")
    assert "no column has" in run(capsys, "inspect", folder / model, "--column", "\x1b[1mnone")
    found = json.loads(run(capsys, "inspect", folder / model, "--json"))
    assert any(HOSTILE in column["name"] for column in found["columns"])
    drawing = tmp_path / "column.svg"
    run(capsys, "inspect", folder / model, "--svg", drawing)
    text = drawing.read_text()
    assert "[red]$x_1$[/red]" in text
    assert not set("\x1b\x07\u202e\x9b") & set(text)


@pytest.mark.parametrize("model", ["v1", "tf2"])
def test_rewrite(folder: Path, tmp_path: Path, capsys: Capture, model: str) -> None:
    options = ["--no-verify", "--report", tmp_path / "report.json"]
    assert "wrote" in run(capsys, "rewrite", folder / model, tmp_path / "new", *options)
    for file in (tmp_path / "report.json", tmp_path / "new" / "fusion.json"):
        text = file.read_text()
        assert all(line.isprintable() for line in text.split("\n"))
        found = json.loads(text)
        columns = found.get("report", found)["columns"]
        assert any(HOSTILE in column["name"] for column in columns)
    # TensorFlow refuses such names, in a message that has them.
    assert "nothing written" in run(capsys, "rewrite", folder / model, tmp_path / "other")
    run(capsys, "--verbose", "rewrite", folder / model, tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("model", ["v1", "tf2"])
def test_commands_that_run_the_model(folder: Path, capsys: Capture, model: str) -> None:
    assert "error" in run(capsys, "verify", folder / model, folder / model)
    options = ["--seconds", "0.01", "--batch", "1"]
    assert "error" in run(capsys, "bench", folder / model, *options)
    assert "error" in run(capsys, "bench", folder / model, *options, "--signature", "none\x1b")


def test_paths_and_arguments(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    assert r"\x1b[31mnone" in run(capsys, "inspect", tmp_path / "\x1b[31mnone")
    new = tmp_path / "[red]new\x1b[31m"
    assert r"/[red]new\x1b[31m;" in run(capsys, "rewrite", folder / "v1", new, "--no-verify")
    assert r"\x1b[31mx" in run(capsys, "rewrite", folder / "v1", new, "--target", "\x1b[31mx")


def test_reports_in_python(folder: Path) -> None:
    for model in ("v1", "tf2"):
        report = fusion.explain(folder / model)
        for text in (str(report), *map(str, report.columns)):
            assert all(line.isprintable() for line in text.split("\n"))
            assert "\nfused ok" not in text
        assert any(HOSTILE in column.name for column in report.columns)
