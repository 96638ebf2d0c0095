"""The examples of the pages, run as a reader would: same files, same commands, same output."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests import zygote

ROOT = Path(__file__).parents[2]


#: Pages whose blocks of `text` run too: what those print varies, their exit status does not.
WITH_TEXT = {"docs/cache.md", "docs/savedmodel.md"}

#: Pages in whose commands it matters when fusion is imported: they set variables of the
#: environment that it reads then, or are the first that a reader tries. The first of each page
#: starts Python, as the reader does.
IMPORTING_FUSION = {"README.md", "docs/cache.md"}


def all_blocks(page):
    """(language, text) of the fenced blocks; the language is "" for those that name none."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def blocks(page, language):
    return [text for name, text in all_blocks(page) if name == language]


def commands(page, languages):
    """(command, expected output) of every `$` line, in order; None where the output varies."""
    for language, block in all_blocks(page):
        if language in languages:
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                yield command, output if language == "" else None


def without_trailing_spaces(text):
    return [line.rstrip() for line in text.strip().splitlines()]


@pytest.mark.parametrize(
    ("path", "at_least"),
    [
        ("README.md", 5),
        ("docs/cache.md", 4),
        ("docs/columns.md", 3),
        ("docs/data.md", 1),
        ("docs/distribute.md", 5),
        ("docs/enable.md", 2),
        ("docs/explain.md", 4),
        ("docs/inference.md", 1),
        ("docs/keras.md", 7),
        ("docs/layers.md", 1),
        ("docs/lookups.md", 2),
        ("docs/rewrite.md", 4),
        ("docs/savedmodel.md", 13),
        ("docs/split.md", 4),
        ("docs/stores.md", 2),
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
    shown = list(commands(page, ("", "text") if path in WITH_TEXT else ("",)))
    assert len(shown) >= at_least
    server = zygote.without_fusion() if path in IMPORTING_FUSION else None
    for number, (command, expected) in enumerate(shown):
        name, *arguments = shlex.split(command)
        words = [shutil.which(name, path=environment["PATH"]) or name, *arguments]
        is_forked = number or path not in IMPORTING_FUSION
        run = partial(zygote.run, server=server) if is_forked else subprocess.run
        result = run(
            words,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, f"{command}: {result.stderr[-2000:]}"
        if expected is None:
            assert result.stdout
            continue
        assert without_trailing_spaces(result.stdout) == without_trailing_spaces(expected), command
