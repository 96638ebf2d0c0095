"""`fusion inspect`: one column in full, and its drawing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import fusion
from fusion import fuse_saved_model
from fusion.cli import main
from fusion.version import __version__
from tests.cli.test_app import command
from tests.passes.test_draw import checked
from tests.saved_model import request_models

Capture = pytest.CaptureFixture[str]


def failure(capsys: Capture, *arguments: object) -> str:
    """The one line that a command fails with."""
    assert main(["inspect", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line.removeprefix("fusion: error: ")


def test_one_column_in_full(models: Path, capsys: Capture) -> None:
    report = fusion.explain(models / "tf2")
    assert main(["inspect", str(models / "tf2"), "--column", "items"]) == 0
    printed = capsys.readouterr().out
    (column,) = (column for column in report.columns if column.name == "items")
    assert printed == f"{column}\n"
    assert printed.startswith("fused items\n")
    assert "of the rows of each bag" in printed


def test_a_part_of_the_name_will_do_and_all_that_match_are_shown(
    models: Path, capsys: Capture
) -> None:
    assert main(["inspect", str(models / "keras"), "--column", "shop_emb"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("fused dense_features/shop_embedding/embedding_weights\n")
    assert printed.count("fused dense_features/") == 1
    assert main(["inspect", str(models / "keras"), "--column", "_embedding"]) == 0
    assert capsys.readouterr().out.count("\nfused dense_features/") == 3


def test_a_whole_name_is_not_a_part(models: Path, capsys: Capture) -> None:
    names = [column.name for column in fusion.explain(models / "v1_resource").columns]
    for name in names:
        assert main(["inspect", str(models / "v1_resource"), "--column", name]) == 0
        assert capsys.readouterr().out.splitlines()[0] == f"fused {name}"


def test_json_is_complete(models: Path, tmp_path: Path, capsys: Capture) -> None:
    model, drawing = models / "tf2", tmp_path / "column.svg"
    assert main(["inspect", str(model), "--json", "--svg", str(drawing)]) == 0
    found = json.loads(capsys.readouterr().out)
    head = [found.pop(name) for name in ("command", "version", "status")]
    assert head == ["inspect", __version__, 0]
    assert found.pop("embedding_variables") == []
    assert found == fusion.explain(model).to_dict()
    assert all(column["explained"] for column in found["columns"])
    assert drawing.is_file()


def test_a_model_that_is_fused_already(models: Path, tmp_path: Path, capsys: Capture) -> None:
    """The names and tables of its columns are those of the stock model."""
    fused = tmp_path / "fused"
    report = fusion.fuse_saved_model(models / "tf2", fused, verify=False)
    assert main(["inspect", str(models / "tf2")]) == 0
    stock_rows = capsys.readouterr().out.splitlines()
    assert "already" not in "".join(stock_rows)
    assert main(["inspect", str(fused)]) == 0
    *rows, last, call = capsys.readouterr().out.splitlines()
    assert call.startswith("ops of a call: ")
    assert "->" not in call
    assert last.startswith(f"already fused: {report.fused_count} columns in 1 op, ")
    named = [sorted(tuple(row.split()[:3]) for row in some) for some in (rows, stock_rows[:-2])]
    assert named[0] == named[1]
    assert all(row.split().count("already") == 2 for row in rows[1:])
    assert all(column.is_fused_already for column in fusion.explain(fused).columns)


def test_a_drawing(models: Path, tmp_path: Path) -> None:
    drawing = tmp_path / "column.svg"
    done = command("inspect", models / "tf2", "--column", "shops", "--svg", drawing)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == f"wrote {drawing}: shops"
    first = drawing.read_bytes()
    assert b"GroupedEmbeddingLookup" in first
    assert b"SparseFillEmptyRows" in first
    assert main(["inspect", str(models / "tf2"), "--column", "shops", "--svg", str(drawing)]) == 0
    assert drawing.read_bytes() == first


def test_without_a_name_the_first_column_is_drawn(
    models: Path, tmp_path: Path, capsys: Capture
) -> None:
    drawing = tmp_path / "column.svg"
    assert main(["inspect", str(models / "tf2"), "--svg", str(drawing)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("column")
    assert lines[-1] == f"wrote {drawing}: items"


def test_what_cannot_be_shown_is_one_line(models: Path, tmp_path: Path, capsys: Capture) -> None:
    model = models / "tf2"
    assert "no column has 'nowhere' in its name" in failure(capsys, model, "--column", "nowhere")
    assert main(["inspect", str(model), "--json", "--column", "items"]) == 2
    assert "--json prints all columns" in json.loads(capsys.readouterr().out)["error"]
    assert "is a folder, give a file" in failure(capsys, model, "--svg", tmp_path)
    missing = tmp_path / "no" / "column.svg"
    assert "does not exist, create it first" in failure(capsys, model, "--svg", missing)
    plain = failure(capsys, models / "plain", "--svg", tmp_path / "column.svg")
    assert plain.endswith("plain has no embedding column to draw")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["v1_ref", "keras", "example"])
def test_every_column_of_a_model_is_drawn(
    models: Path, tmp_path: Path, capsys: Capture, kind: str
) -> None:
    drawing = tmp_path / "column.svg"
    fused = fuse_saved_model(models / kind, tmp_path / "fused", verify=False)
    for model in (models / kind, tmp_path / "fused"):
        for name in {column.name for column in fused.columns}:
            words = ["inspect", model, "--column", name, "--svg", drawing]
            assert main([*map(str, words)]) == 0
            assert name in checked(drawing.read_text())[0]
    capsys.readouterr()


def test_what_repeats_in_requests(tmp_path: Path, capsys: Capture) -> None:
    model = request_models.save(tmp_path / "stock")
    file = tmp_path / "requests.npz"
    np.savez(file, **request_models.rows(5))
    assert main(["inspect", str(model), "--requests", str(file)]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()[:4]] == [
        ["input", "rows", "different", "repeats"],
        ["age", "5", "1", "yes"],
        ["item", "5", "5", "no"],
        ["user", "5", "1", "yes"],
    ]
    assert main(["inspect", str(model), "--requests", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["requests"]["repeat"] == ["age", "user"]
    assert "columns" in found
    np.savez(file, **request_models.rows(3, user=range(3), age=range(3)))
    assert main(["inspect", str(model), "--requests", str(file)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "signature serving_default, 3 rows: no input repeats"


def test_what_repeats_in_some_batches(tmp_path: Path, capsys: Capture) -> None:
    model = request_models.save(tmp_path / "stock", of_examples=True)
    batches = request_models.rows(2), request_models.rows(2, user=[1, 2])
    file = request_models.write_examples(tmp_path / "r.tfrecord", *batches)
    options = ("--requests", str(file), "--batch-size", "2", "--signature", "serving_default")
    assert main(["inspect", str(model), *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[0] == "feature"
    assert lines[3].split(maxsplit=3) == ["user", "4", "3", "in 1 of 2 batches"]
    assert lines[4].startswith("signature serving_default, 4 rows of 2 batches: 1 of 3 features")
    assert lines[5] == "fusion rewrite --request-inputs age"


def test_requests_that_cannot_be_read_are_one_line(tmp_path: Path, capsys: Capture) -> None:
    model = request_models.save(tmp_path / "stock")
    missing = tmp_path / "no.npz"
    assert "no.npz: cannot be read" in failure(capsys, model, "--requests", missing)
    assert "--signature is that of --requests" in failure(capsys, model, "--signature", "a")
    np.savez(missing, **request_models.rows(1))
    assert "has 2 rows or more" in failure(capsys, model, "--requests", missing)
