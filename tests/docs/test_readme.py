"""The examples of the pages, run as a reader would: same files, same commands, same output."""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests import zygote
from tests.keras.releases import MAKES_OTHER_GRAPHS

ROOT = Path(__file__).parents[2]

#: Programs for systems that do not have them.
STAND_INS = Path(__file__).parent / "bin"

#: Pages whose blocks of `text` run too: what those print varies, their exit status does not.
WITH_TEXT = {"docs/cache.md", "docs/requests.md", "docs/savedmodel.md", "docs/watch.md"}

#: Pages whose commands use the repository's examples.
WITH_EXAMPLES = {"docs/hierarchical.md"}

#: The ports of their servers, which free ones stand for.
PORTS = r"\b850[01]\b"

#: What varies in the output of a server, or with the release.
VARYING = re.compile(
    r'loaded in [\d.]+ s|"version": "[^"]+"' + (r"|\d+ -> \d+ nodes" if MAKES_OTHER_GRAPHS else "")
)

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
    # Keras 3.16 has no number behind the names of layers that were called before.
    text = re.sub(r"_1\b", "", text) if MAKES_OTHER_GRAPHS else text
    return [VARYING.sub("...", line.rstrip()) for line in text.strip().splitlines()]


def with_free_ports(page):
    """The page with other ports, the same where they were the same."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in {*re.findall(PORTS, page)}]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        free = dict(zip(sorted({*re.findall(PORTS, page)}), sockets, strict=True))
        return re.sub(PORTS, lambda port: str(free[port[0]].getsockname()[1]), page)


@contextmanager
def in_background(words, line_count, **options):
    """Runs a command until the block ends; yields so many lines of what it prints."""
    pipe = subprocess.PIPE
    with zygote.start(words, stdout=pipe, stderr=pipe, text=True, **options) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            lines = [process.stdout.readline() for _ in range(line_count)]
            yield "".join(lines) if all(lines) else process.stderr.read()
        finally:
            process.terminate()
            process.communicate()


@pytest.mark.parametrize(
    ("path", "at_least"),
    [
        ("README.md", 2),
        ("docs/enable.md", 2),
        ("docs/inference.md", 1),
        ("docs/layers.md", 1),
        ("docs/lookups.md", 3),
        ("docs/refresh.md", 1),
        ("docs/tables.md", 1),
    ],
)
def test_the_examples_work_and_print_what_is_shown(path, at_least, tmp_path):
    check_examples(path, at_least, tmp_path)


@pytest.mark.parametrize(
    ("path", "at_least"),
    [
        ("docs/cache.md", 4),
        ("docs/columns.md", 3),
        ("docs/data.md", 1),
        ("docs/distribute.md", 5),
        ("docs/explain.md", 4),
        ("docs/forks.md", 3),
        ("docs/hierarchical.md", 9),
        ("docs/keras.md", 7),
        ("docs/rewrite.md", 4),
        ("docs/requests.md", 5),
        ("docs/savedmodel.md", 13),
        ("docs/split.md", 4),
        ("docs/stores.md", 4),
        ("docs/training.md", 1),
        ("docs/verify.md", 5),
        ("docs/watch.md", 8),
    ],
)
def test_examples_that_take_longer_do_too(path, at_least, tmp_path):
    check_examples(path, at_least, tmp_path)


def check_examples(path, at_least, tmp_path):
    page = (ROOT / path).read_text()
    if path in WITH_EXAMPLES:
        page = with_free_ports(page)
    for code in blocks(page, "python"):
        (tmp_path / code.split()[1]).write_text(code)  # the first line is "# name.py"
    binaries = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": os.pathsep.join((str(binaries), os.environ["PATH"], str(STAND_INS))),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "COLUMNS": "100",
    }
    if path in WITH_EXAMPLES:
        environment["PYTHONPATH"] = str(ROOT)
    shown = list(commands(page, ("", "text") if path in WITH_TEXT else ("",)))
    assert len(shown) >= at_least
    server = zygote.without_fusion() if path in IMPORTING_FUSION else None
    options = {"cwd": tmp_path, "env": environment}
    with ExitStack() as servers:
        for number, (command, expected) in enumerate(shown):
            name, *arguments = shlex.split(command)
            words = [shutil.which(name, path=environment["PATH"]) or name, *arguments]
            if words[-1] == "&":
                count = expected.count("\n")
                told = servers.enter_context(in_background(words[:-1], count, **options))
                assert without_trailing_spaces(told) == without_trailing_spaces(expected), command
                continue
            if "|" in words:
                words = ["/bin/sh", "-c", command]
            is_forked = number or path not in IMPORTING_FUSION
            run = partial(zygote.run, server=server) if is_forked else subprocess.run
            result = run(words, capture_output=True, text=True, check=False, **options)
            assert result.returncode == 0, f"{command}: {result.stderr[-2000:]}"
            if expected is None:
                assert result.stdout
                continue
            told = result.stdout
            assert without_trailing_spaces(told) == without_trailing_spaces(expected), command
