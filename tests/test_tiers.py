"""What the table of tiers says is what runs."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests import tiers
from tests.tiers import TABLE, Cases, chosen, entry, runs

ROOT = Path(__file__).parents[1]
NODE = "tests/area/test_one.py::test_it"


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> dict[str, Cases]:
    """A table with one row, for all tests."""
    found = {"": Cases(2, 6)}
    monkeypatch.setattr(tiers, "TABLE", found)
    return found


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSION_TESTS", "fast")


def products(*values: Any) -> list[dict[str, Any]]:
    names = "abcd"
    return [dict(zip(names, row, strict=False)) for row in itertools.product(*values)]


def test_every_row_of_the_table_is_of_a_test_or_a_folder_that_is_there():
    for name in TABLE:
        path, *inside = name.split("::")
        assert (ROOT / "tests" / path).exists(), name
        assert not inside or f"def {inside[-1]}(" in (ROOT / "tests" / path).read_text(), name


def test_the_longest_row_counts(table):
    table |= {"area": Cases(3), "area/test_one.py": Cases(4), "area/test_one.py::test_it": Cases(5)}
    assert entry(f"{NODE}[1]").fast == 5
    assert entry(f"{NODE}_too").fast == 4
    assert entry("tests/area/deep/test_two.py::test_it").fast == 3
    assert entry("tests/areas/test_one.py::test_it").fast == 2


def test_a_tier_has_its_count_and_every_value(table, monkeypatch):
    cases = products(range(3), "xy")
    assert len(chosen(NODE, cases)) == 3
    table[""] = Cases(2, 4, exact=True)
    assert chosen(NODE, cases) == [0, 5]
    assert len(chosen(NODE, cases, refuses=True)) == 3
    table[NODE.removeprefix("tests/")] = Cases(2, 4, exact=True)
    assert chosen(NODE, cases, refuses=True) == [0, 5]
    monkeypatch.setenv("FUSION_TESTS", "all")
    assert len(chosen(NODE, cases)) == 4
    monkeypatch.setenv("FUSION_TESTS", "every")
    assert len(chosen(NODE, cases)) == 6


def test_the_rest_is_what_the_fast_tier_leaves_out(table, monkeypatch):
    cases = products(range(3), "xy")
    found = {}
    for tier in ("fast", "rest", "all"):
        monkeypatch.setenv("FUSION_TESTS", tier)
        found[tier] = {*chosen(NODE, cases)}
    assert found["rest"] == found["all"] - found["fast"]
    assert found["rest"]
    monkeypatch.setenv("FUSION_TESTS", "rest")
    assert chosen(NODE, [{}]) == []
    table[""] = Cases(0, 2)
    assert chosen(NODE, [{}]) == [0]


def test_cases_that_say_the_same_are_spread(table, monkeypatch):
    cases = products(range(9))
    monkeypatch.setenv("FUSION_TESTS", "all")
    assert chosen(NODE, cases) == [*range(9)]
    table[""] = Cases(2, 3, same=True)
    assert chosen(NODE, cases) == [0, 4, 8]


@pytest.mark.parametrize(
    "types",
    [
        ("float16", "float32", "float64"),
        (tf.bfloat16, tf.float32, tf.int32),
        (np.float16, np.float32, np.int64),
    ],
)
def test_the_fast_tier_runs_float32_of_float_types(table, monkeypatch, types):
    table[""] = Cases(9, 9)
    cases = products(types, "xy")
    floats = 1 if types[2] == "float64" else 2
    assert len(chosen(NODE, cases)) == 2 * floats
    assert chosen(NODE, products(types[:1], "xy")) == [0, 1]
    assert chosen(NODE, [{"a": types[0], "b": types[1]}, {"a": types[1], "b": types[0]}]) == [0, 1]
    monkeypatch.setenv("FUSION_TESTS", "all")
    assert len(chosen(NODE, cases)) == 6
    monkeypatch.setenv("FUSION_TESTS", "fast")
    table["area"] = Cases(9, 9, dtypes=True)
    assert len(chosen(NODE, cases)) == 6


def test_a_test_without_cases_does_not_run(table, monkeypatch):
    table[""] = Cases(0, 2)
    assert not runs(NODE)
    assert not runs("tests/area/test_one.py")
    table["area/test_one.py::test_it"] = Cases(1, 2)
    assert runs(NODE)
    assert runs("tests/area/test_one.py")
    assert not runs("tests/area/test_one.py::test_other")
    monkeypatch.setenv("FUSION_TESTS", "every")
    assert runs("tests/area/test_two.py")


def test_a_tier_that_is_none_is_refused(monkeypatch):
    monkeypatch.setenv("FUSION_TESTS", "slow")
    with pytest.raises(ValueError, match="FUSION_TESTS is fast, rest, all or every, not 'slow'"):
        tiers.tier()


def test_a_test_has_one_row():
    row = "  1   8   area/test_one.py::test_it  exact slow\n"
    assert tiers.read_table(f"# fast all path\n{row}") == {
        "area/test_one.py::test_it": Cases(1, 8, exact=True, slow=True)
    }
    with pytest.raises(ValueError, match=r"two rows for area/test_one\.py::test_it"):
        tiers.read_table(row + row)


COSTLY = """
import pytest

@pytest.mark.parametrize("one", range(20))
@pytest.mark.parametrize("other", range(20))
def test_cases(one, other):
    pass

def test_slow():
    import sys
    import time
    sys.modules.update((f"imported_{{k}}", sys) for k in range({modules}))
    end = time.process_time() + {seconds}
    while time.process_time() < end:
        pass
"""


OF_THE_FAST_TIER = """
import pytest

@pytest.mark.parametrize("one", range(2))
def test_cases(one):
    pass

def test_alone():
    pass
"""


def run(folder: Path, tests: str, tier: str) -> subprocess.CompletedProcess[str]:
    """Runs tests of their own with the plugin, with a bound of a tenth of a second."""
    (folder / "tests" / "area").mkdir(parents=True)
    (folder / "tests" / "area" / "test_one.py").write_text(tests)
    program = (
        "import sys, os, pytest; from tests import tiers, tier_plugin; "
        f"os.environ['FUSION_TESTS'] = {tier!r}; tiers.MAX_SECONDS = 0.1; "
        f"tier_plugin._ROOT = __import__('pathlib').Path({str(folder)!r}); "
        "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '--rootdir', "
        f"{str(folder)!r}, {str(folder)!r}], [tier_plugin]))"
    )
    command = [sys.executable, "-c", program]
    environment = {name: value for name, value in os.environ.items() if name != "FUSION_TEST_COSTS"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("seconds", "modules", "tier", "code"),
    [(0, 0, "all", 0), (0.2, 0, "all", 1), (0.2, 0, "fast", 0), (0.2, 99, "all", 0)],
)
def test_slow_tests_that_do_not_say_so_fail(tmp_path: Path, seconds, modules, tier, code):
    """But for one that happens to be the first to import what others use, too."""
    done = run(tmp_path, COSTLY.format(seconds=seconds, modules=modules), tier)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("not slow in tests/tiers.txt: tests/area/test_one.py::test_slow" in done.stdout) == code
    assert "21 passed" in done.stdout


def test_tests_of_which_no_case_is_left_are_not_collected(tmp_path: Path):
    done = run(tmp_path, OF_THE_FAST_TIER, "rest")
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout + done.stderr
