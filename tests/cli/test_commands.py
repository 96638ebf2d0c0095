from __future__ import annotations

import json
from pathlib import Path

import pytest

from fusion.cli import main
from fusion.saved_model import meta_graph
from tests.cli.test_app import command
from tests.saved_model.test_rewrite import WrongPass


def test_inspect_lists_columns(models: Path):
    done = command("inspect", models / "keras")
    assert done.returncode == 0
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    row = next(line for line in lines if "shop_embedding/embedding_weights" in line)
    assert row.split()[1:] == ["float[80,", "8]", "sum", "sparse", "int64", "features_4", "yes"]
    assert lines[-2].startswith("4 of 4 columns can be fused (12 of 12 lookups in 3 functions)")
    assert lines[-1].startswith("expected gain: about 0.06 to 0.18 ms of a call at batch 1, ")


def test_inspect_as_json(models: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["inspect", "--json", str(models / "tf2")]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["fused"], report["total"]) == (2, 2)
    assert [column["name"] for column in report["columns"]] == ["items", "shops"]


def test_inspect_of_a_model_without_embeddings(models: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["inspect", str(models / "plain")]) == 0
    assert capsys.readouterr().out == "no embedding column found: nothing to fuse\n"
    assert main(["inspect", "--json", str(models / "plain")]) == 0
    assert json.loads(capsys.readouterr().out)["expected_gain"] is None


def test_rewrite_verify_and_report(models: Path, tmp_path: Path):
    src, dst, report = models / "example", tmp_path / "dst", tmp_path / "report.json"
    done = command("rewrite", src, dst, "--report", report)
    assert done.returncode == 0
    assert done.stderr == ""
    first, second, third = done.stdout.splitlines()
    assert first.startswith("2 of 2 columns fused, ")
    assert second == "verified: 1 signatures, 8 runs, outputs equal to the bit"
    assert third == f"wrote {dst}; run `import fusion` before loading it"
    assert json.loads(report.read_text())["fused"] == 2
    assert (dst / "fusion.json").is_file()

    same = command("verify", src, dst)
    assert same.returncode == 0
    assert same.stdout == "same: 1 signatures, 8 runs, outputs equal to the bit\n"


def test_verify_names_what_differs(
    models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    assert main(["verify", str(models / "tf2"), str(models / "plain")]) == 1
    assert "signature 'embedding': only the first model has it" in capsys.readouterr().out

    monkeypatch.setattr(meta_graph, "FuseLookups", WrongPass)
    wrong = str(tmp_path / "wrong")
    assert main(["rewrite", "--no-verify", str(models / "tf2"), wrong]) == 0
    capsys.readouterr()
    done = command("verify", models / "tf2", wrong)
    assert done.returncode == 1
    first, *_, last = done.stdout.splitlines()
    assert first.startswith("signature 'embedding', output 'embedding', batch 1")
    assert "elements differ, by at most" in first
    assert last.startswith("different: signature 'embedding'")
    assert "the largest: " in last


def test_rewrite_of_a_model_without_embeddings(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    dst = tmp_path / "dst"
    assert main(["rewrite", "--no-verify", str(models / "plain"), str(dst)]) == 0
    assert capsys.readouterr().out == (
        f"no embedding column found: nothing to fuse\nnothing was rewritten: {dst} is a copy\n"
    )
    assert (dst / "saved_model.pb").is_file()


def test_rewrite_without_verification_says_so(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["rewrite", "--no-verify", str(models / "tf2"), str(tmp_path / "dst")]) == 0
    assert "not verified" in capsys.readouterr().out.splitlines()


def test_doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    done = command("doctor")
    assert done.returncode == 0
    assert "tensorflow" in done.stdout
    assert done.stdout.splitlines()[-1] == "everything works"

    from fusion.runtime import doctor

    monkeypatch.setattr(doctor, "facts", lambda _: [("good", "1", True), ("bad", "[x]", False)])
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[1:3]] == [["ok", "good", "1"], ["BROKEN", "bad", "[x]"]]
    assert lines[-1] == "broken: bad"


def test_rewrite_says_what_it_could_not_compare(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    dst = tmp_path / "dst"
    assert main(["rewrite", str(models / "keras"), str(dst)]) == 0
    unchecked = json.loads((dst / "fusion.json").read_text())["unchecked_functions"]
    assert unchecked
    line = f"not compared: {len(unchecked)} functions that no signature runs, named in fusion.json"
    assert line in capsys.readouterr().out.splitlines()
