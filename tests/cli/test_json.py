"""`--json`: one object of the same form from all commands, and nothing else on standard output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from fusion.cli import main
from fusion.cli.app import cli
from fusion.cli.json_output import document
from fusion.version import __version__

Capture = pytest.CaptureFixture[str]


def printed(capsys: Capture, *arguments: object) -> dict[str, Any]:
    """What a command prints, whose exit status the object has."""
    capsys.readouterr()
    status = main([*map(str, arguments), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert list(found)[:3] == ["command", "version", "status"]
    assert (found["version"], found["status"]) == (__version__, status)
    assert f"{found['command']} ".startswith(f"{arguments[0]} ")
    return found


def all_commands() -> dict[str, click.Command]:
    found: dict[str, click.Command] = {}
    for name, command in cli.commands.items():
        inner = command.commands if isinstance(command, click.Group) else None
        found |= {name: command} if inner is None else {f"{name} {n}": c for n, c in inner.items()}
    return found


@pytest.mark.parametrize("name", [name for name in all_commands() if name != "completion"])
def test_every_command_has_it(name: str) -> None:
    (option,) = (one for one in all_commands()[name].params if "--json" in one.opts)
    assert isinstance(option, click.Option)
    assert option.is_flag


def test_inspect_and_plan(models: Path, capsys: Capture) -> None:
    found = printed(capsys, "inspect", models / "tf2")
    assert (found["status"], found["fused"], found["total"]) == (0, 2, 2)
    found = printed(capsys, "plan", models / "tf2", "--replicas", 2)
    assert (found["replicas"], len(found["tables"])) == (2, 2)


def test_rewrite_and_its_report(models: Path, tmp_path: Path, capsys: Capture) -> None:
    report, dst = tmp_path / "report.json", tmp_path / "dst"
    found = printed(capsys, "rewrite", models / "tf2", dst, "--report", report)
    assert json.loads(report.read_text()) == found
    assert (found["fused"], found["destination"]) == (2, str(dst))
    assert found["verification"]["same"]
    assert found["packed_tables"] == found["tables"] == []
    found = printed(capsys, "verify", models / "tf2", models / "plain")
    assert (found["status"], found["same"]) == (1, False)
    assert found["summary"].startswith(found["differences"][0])


def test_split_and_join(models: Path, tmp_path: Path, capsys: Capture) -> None:
    found = printed(capsys, "split", "--no-verify", models / "tf2", tmp_path / "split")
    assert found["verification"] is None
    assert {table["name"] for table in found["tables"]} == {"items", "shops"}
    assert {one for cut in found["lookups"] for one in cut["tables"]} == {"items", "shops"}
    found = printed(capsys, "join", tmp_path / "split", tmp_path / "joined")
    assert found["destination"] == str(tmp_path / "joined")


def test_warm_and_doctor(models: Path, tmp_path: Path, capsys: Capture) -> None:
    found = printed(capsys, "warm", models / "plain", "--dir", tmp_path)
    assert (found["folder"], found["settings"]) == (
        str(tmp_path),
        {"FUSION_CACHE_DIR": str(tmp_path)},
    )
    assert found["kernels"] >= found["added"] > 0
    found = printed(capsys, "doctor")
    assert found["broken"] == [check["name"] for check in found["checks"] if not check["ok"]]
    assert "tensorflow" in [check["name"] for check in found["checks"]]


def test_an_error_is_in_the_object_and_in_a_line(tmp_path: Path, capsys: Capture) -> None:
    assert main(["inspect", "--json", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found == {
        "command": "inspect",
        "version": __version__,
        "status": 2,
        "error": f"{tmp_path}: not a SavedModel: it holds no saved_model.pb",
    }
    assert captured.err == f"fusion: error: {found['error']}\n"
    for arguments, command in (
        (["tables", "pull", "--json"], "tables pull"),
        (["rewrite", "--json", "--frobnicate"], "rewrite"),
        (["--json"], ""),
    ):
        assert main(arguments) == 2
        found = json.loads(capsys.readouterr().out)
        assert (found["command"], found["status"]) == (command, 2)


def test_numbers_that_json_has_no_text_for_are_null() -> None:
    text = document({"a": [float("inf"), {"b": float("nan")}], "c": (1.5, None)}, 0, "command")
    found = json.loads(text, parse_constant=pytest.fail)
    assert (found["a"], found["c"]) == ([None, {"b": None}], [1.5, None])
