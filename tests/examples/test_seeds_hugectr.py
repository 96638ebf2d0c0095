"""The programs for users of HugeCTR's plugin and of SparseOperationKit, and what they check."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests import zygote

HEADINGS = {
    "hugectr_plugin": ["Verify accuracy", "DeepFM", "Save and restore", "Check"],
    "sparse_operation_kit": [
        "The model, on one device",
        "MirroredStrategy",
        "MultiWorkerMirroredStrategy, also in the place of Horovod",
        "Experimental features",
        "Saved, restored, dumped, loaded",
        "Check",
    ],
}

#: A program that finds what is expected, but for one result after the other.
_WRONG = """
from examples.seeds import {program} as program

def other(value):
    if isinstance(value, bool):
        return not value
    return [other(value[0]), *value[1:]] if isinstance(value, list) else value + 0.001

for name, value in program.EXPECTED.items():
    program.run = lambda *_: {{**program.EXPECTED, name: other(value)}}
    try:
        program.main()
    except SystemExit as error:
        assert error.code.startswith(name + ": "), error.code
        assert "\\n" not in error.code, error.code
    else:
        raise AssertionError(name)
print("all others are noticed")
program.main()
"""


def run(*arguments: str) -> subprocess.CompletedProcess[Any]:
    command = [sys.executable, *arguments]
    return zygote.run(command, cwd=zygote.ROOT, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("program", HEADINGS)
def test_a_program_runs_and_finds_the_numbers_of_its_document(program):
    done = run("-m", f"examples.seeds.{program}")
    assert done.returncode == 0, done.stderr[-4000:]
    lines = done.stdout.splitlines()
    assert [line[3:] for line in lines if line.startswith("== ")] == HEADINGS[program]
    assert lines[-1].startswith("all ")


@pytest.mark.parametrize("program", HEADINGS)
def test_a_program_fails_if_a_number_is_another(program):
    done = run("-c", _WRONG.format(program=program))
    assert "all others are noticed" in done.stdout, done.stderr[-4000:]
    # The last run is with one that is other, and not caught.
    assert done.returncode == 1
    assert ", not " in done.stderr
