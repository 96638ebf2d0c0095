"""`fusion plan`: tables of a file or of a model, as a table or JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fusion
from fusion.cli import main
from fusion.cli.commands.plan import STRATEGIES
from fusion.distribute import Table, planning
from fusion.version import __version__
from tests.cli.test_inspect import Capture

TABLES = [
    {"name": "users", "rows": 1000, "dimension": 16, "combiner": "sum", "hotness": 5},
    [10, 3],
    {"name": "items", "rows": 400, "dimension": 16, "dtype": "float16"},
]
MADE = [
    Table("users", 1000, 16, combiner="sum", hotness=5),
    Table("table_1", 10, 3),
    Table("items", 400, 16, "float16"),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tables.json"
    path.write_text(json.dumps(TABLES))
    return path


def printed(capsys: Capture, *arguments: object) -> str:
    assert main(["plan", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_tables_of_a_file(file: Path, capsys: Capture) -> None:
    found = printed(capsys, "--tables", file, "--replicas", 2)
    assert found == f"{fusion.distribute.plan(MADE, 2)}\n"


def test_all_options_and_json(file: Path, capsys: Capture) -> None:
    options = {
        "strategy": "memory_optimized",
        "column-slice-threshold": 3000,
        "row-slice-threshold": 16000,
        "data-parallel-threshold": 30,
        "slots": 2,
        "batch-size": 512,
        "alpha": 1.05,
    }
    arguments = [f"--{name}={value}" for name, value in options.items()]
    found = printed(capsys, "--tables", file, "--replicas", 4, "--json", *arguments)
    keywords: dict[str, Any] = {name.replace("-", "_"): value for name, value in options.items()}
    made = fusion.distribute.plan(MADE, 4, **keywords)
    plain = {"command": "plan", "version": __version__, "status": 0, **made.to_dict()}
    assert json.loads(found) == json.loads(json.dumps(plain))
    kinds = [table["kind"] for table in json.loads(found)["tables"]]
    assert kinds == ["rows", "replicated", "columns"]


def test_tables_of_a_model(models: Path, capsys: Capture) -> None:
    found = json.loads(printed(capsys, models / "tf2", "--replicas", 2, "--json"))
    columns = {column.name: column for column in fusion.explain(models / "tf2").columns}
    assert [table["name"] for table in found["tables"]] == ["items", "shops"]
    for table in found["tables"]:
        spec = columns[table["name"]].spec
        assert spec is not None
        assert (table["rows"], table["dimension"]) == spec.table.shape
        assert table["combiner"] == spec.combiner
        assert (table["dtype"], table["hotness"], table["kind"]) == ("float32", 1.0, "whole")


def test_a_table_of_several_columns_is_planned_once(models: Path, capsys: Capture) -> None:
    found = json.loads(printed(capsys, models / "keras", "--replicas", 2, "--json"))
    names = [table["name"] for table in found["tables"]]
    assert len(names) == len({*names})
    columns = {(c.function, c.name): c for c in fusion.explain(models / "keras").columns}
    assert {*names} == {name for _, name in columns}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[", "Expecting value"),
        ("{}", "tables must be a list"),
        ("[]", "tables must have at least one table, got none"),
        ('[{"name": "a", "rows": 3}]', "a table has no 'dimension'"),
        ('[{"name": "a", "size": 3}]', "a table got an unexpected keyword argument 'size'"),
        ("[[3]]", "tables[0] must be a Table or a pair (rows, dimension), got [3]"),
        ("[[3, 0]]", "dimension of table_0 must be at least 1, got 0"),
        (b"\xff", "can't decode"),
    ],
)
def test_a_bad_file_is_one_line(
    tmp_path: Path, capsys: Capture, content: str | bytes, message: str
) -> None:
    path = tmp_path / "tables.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    assert main(["plan", "--tables", str(path), "--replicas", "2"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"fusion: error: {path}: ")
    assert message in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--replicas", "2"], "give a MODEL or --tables"),
        (["m", "--tables", "f", "--replicas", "2"], "give a MODEL or --tables"),
        (["--tables", "f"], "Missing option '--replicas'"),
        (["--tables", "f", "--replicas", "0"], "0 is not in the range"),
        (["--tables", "nowhere.json", "--replicas", "2"], "nowhere.json: No such file"),
        (["--tables", "f", "--replicas", "2", "--strategy", "best"], "'best' is not one of"),
    ],
)
def test_usage_errors_are_one_line(capsys: Capture, arguments: list[str], message: str) -> None:
    assert main(["plan", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fusion: error: ")
    assert message in line


def test_a_model_without_tables_is_one_line(models: Path, capsys: Capture) -> None:
    assert main(["plan", str(models / "plain"), "--replicas", "2"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("plain has no embedding column with a table of known size")


def test_strategies_are_those_of_the_planner() -> None:
    assert (*planning.STRATEGIES,) == STRATEGIES
