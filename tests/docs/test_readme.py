"""The README's examples, run as a reader would: same files, same commands, same output."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text()


def blocks(language):
    """The texts of the fenced blocks of a language; "" for those that name none."""
    pairs = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [text for name, text in pairs if name == language]


def commands():
    """(command, expected output) of every `$` line, in order."""
    for block in blocks(""):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


def without_trailing_spaces(text):
    return [line.rstrip() for line in text.strip().splitlines()]


def test_the_examples_work_and_print_what_is_shown(tmp_path):
    for code in blocks("python"):
        (tmp_path / code.split()[1]).write_text(code)  # the first line is "# name.py"
    binaries = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "COLUMNS": "100",
    }
    run = list(commands())
    assert len(run) >= 5
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
