"""Programs of those who come from DeepRec, HPS and NVTabular: they run, and compare."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from examples.seeds import criteo_with_tensorflow as criteo
from examples.seeds import deeprec_fused_columns as deeprec
from examples.seeds import hierarchical_parameter_server as hps
from tests import zygote

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    deeprec: (),
    hps: ("--steps", "2"),
    criteo: ("--batches", "3", "--batch-size", "256", "--cap", "100"),
}
SECONDS = 600


def run(*command: str, directory: Path = ROOT) -> Any:
    """Runs Python to its end; the root of the repository is not on its path but for `-m`."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    options: dict[str, Any] = {"cwd": directory, "env": variables, "timeout": SECONDS}
    return zygote.run([sys.executable, *command], capture_output=True, text=True, **options)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_it_ends_with_the_numbers_of_its_document(program: ModuleType, tmp_path: Path) -> None:
    assert program.__file__ is not None
    if program is criteo:
        done = run("-m", program.__name__, *PROGRAMS[program])
    else:
        done = run(program.__file__, *PROGRAMS[program], directory=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    *_, title, last = done.stdout.splitlines()
    assert title == "== Check"
    assert last == f"as expected: {'; '.join(program.EXPECTED)}"
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("program", "name"),
    [(program, name) for program in PROGRAMS for name in program.EXPECTED],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_number_that_differs_is_an_error(program: ModuleType, name: str) -> None:
    with pytest.raises(SystemExit, match="not") as error:
        program.check({**program.EXPECTED, name: "another"})
    assert error.value.code == f"{name}: another, not {program.EXPECTED[name]}"


def test_it_is_the_status_of_the_process() -> None:
    code = f"from {deeprec.__name__} import EXPECTED, main; EXPECTED['losses of b'] = [1]; main()"
    done = run("-c", code)
    assert done.returncode == 1
    assert "losses of b: [30.0, 19.3884, 17.2802], not [1]" in done.stderr
