"""The table of what is tested is current, and made of markers alone."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import zygote
from tests.parity import COLUMNS, ROWS, UNFUSED, Collector, Coverage, table

ROOT = Path(__file__).parents[1]


def test_the_table_is_current_and_no_row_or_column_is_without_a_test():
    command = [sys.executable, "-m", "tests.parity"]
    result = zygote.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert (ROOT / "docs" / "parity.md").read_text() == result.stdout, "run: make parity"
    cells = {
        row: columns
        for row, *columns in (
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in result.stdout.splitlines()
            if line.startswith("| ")
        )
    }
    assert [row for rows in ROWS.values() for row in rows if set(cells[row]) == {"no"}] == []
    for place, column in enumerate(COLUMNS):
        assert any(columns[place].startswith("yes") for columns in cells.values()), column


def item(name, *markers, **parameters):
    """A test with markers, as pytest gives it to its plugins."""
    test = SimpleNamespace(nodeid=name, iter_markers=lambda _: markers)
    if parameters:
        test.callspec = SimpleNamespace(params=parameters)
    return test


def collected(*items: Any) -> Coverage:
    collector = Collector()
    collector.pytest_collection_modifyitems([*items])
    return collector.coverage


PARITY = pytest.mark.parity


def test_a_row_can_be_named_by_a_parameter():
    marker = PARITY("combiner {combiner}", "v1").mark
    tests = [item("a.py::test[]", marker, combiner=name) for name in ("sum", "mean")]
    assert {row for row, _ in collected(*tests)} == {"combiner sum", "combiner mean"}


def test_a_marker_says_which_columns_of_a_row_a_test_covers():
    test = item("a.py::test[x]", PARITY("max_norm", "v1", "pass").mark, PARITY("eager", "v2").mark)
    assert collected(test) == {
        ("max_norm", "v1"): {"a.py::test"},
        ("max_norm", "pass"): {"a.py::test"},
        ("eager", "v2"): {"a.py::test"},
    }


@pytest.mark.parametrize("argument", ["version", "fusion_version", "do_fusion"])
def test_without_columns_it_is_the_version_that_the_test_is_parametrized_with(argument):
    marker = PARITY("max_norm").mark
    tests = [
        item(f"a.py::test[{version}]", marker, **{argument: version}, other=1)
        for version in ("v1", "v2")
    ]
    assert collected(*tests) == {
        ("max_norm", "v1"): {"a.py::test"},
        ("max_norm", "v2"): {"a.py::test"},
    }


@pytest.mark.parametrize(
    ("marker", "parameters", "message"),
    [
        (PARITY("max norm", "v1"), {}, "no place 'max norm', 'v1'"),
        (PARITY("max_norm", "v3"), {}, "no place 'max_norm', 'v3'"),
        (PARITY("max_norm"), {}, "needs columns"),
        (PARITY("max_norm"), {"version": None}, "needs columns"),
        (PARITY("max_norm"), {"kind": "v1"}, "needs columns"),
    ],
)
def test_markers_that_mean_nothing(marker, parameters, message):
    with pytest.raises(pytest.UsageError, match=f"a.py::test: .*{message}"):
        collected(item("a.py::test", marker.mark, **parameters))


def test_a_test_of_an_area_is_named_by_it():
    test = item("a.py::test[the area]", PARITY("eager", "v1").mark, area="the area")
    assert collected(test) == {("eager", "v1"): {"a.py::test[the area]"}}


def test_cells_give_the_numbers_of_their_tests():
    text = table(
        {
            ("max_norm", "v1"): {"b", "a"},
            ("max_norm", "v2"): {"b"},
            ("max_norm", "pass"): {"b"},
            ("max_norm", UNFUSED): {"c"},
            ("combiner sum", UNFUSED): {"c"},
        }
    )
    assert "| max_norm | yes (1, 2) | yes (2) | yes (2) |\n" in text
    assert "| combiner sum | no | no | left to stock (3) |\n" in text
    assert "| combiner mean | no | no | no |\n" in text
    assert text.endswith("## Tests\n\n1. `a`\n2. `b`\n3. `c`\n")
