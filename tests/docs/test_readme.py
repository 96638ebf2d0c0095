"""The examples of the pages, run as a reader would: same files, same commands, same output."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def blocks(page, language):
    """The texts of the fenced blocks of a language; "" for those that name none."""
    pairs = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [text for name, text in pairs if name == language]


def commands(page):
    """(command, expected output) of every `$` line, in order."""
    for block in blocks(page, ""):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


def without_trailing_spaces(text):
    return [line.rstrip() for line in text.strip().splitlines()]


@pytest.mark.parametrize(
    ("path", "at_least"),
    [
        ("README.md", 5),
        ("docs/columns.md", 3),
        ("docs/enable.md", 2),
        ("docs/explain.md", 4),
        ("docs/inference.md", 1),
        ("docs/keras.md", 2),
        ("docs/rewrite.md", 2),
        ("docs/training.md", 1),
        ("docs/verify.md", 5),
    ],
)
def test_the_examples_work_and_print_what_is_shown(path, at_least, tmp_path):
    page = (ROOT / path).read_text()
    for code in blocks(page, "python"):
        (tmp_path / code.split()[1]).write_text(code)  # the first line is "# name.py"
    binaries = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "COLUMNS": "100",
    }
    run = list(commands(page))
    assert len(run) >= at_least
    for command, expected in run:
        result = subprocess.run(
            shlex.split(command),
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, f"{command}: {result.stderr[-2000:]}"
        assert without_trailing_spaces(result.stdout) == without_trailing_spaces(expected), command
