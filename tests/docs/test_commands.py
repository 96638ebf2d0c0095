"""Commands that the pages name: modules, subcommands, options, cases and targets are there."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import click
import pytest

from benchmarks.catalog import CASES
from docs.pages import CODE, ROOT, pages, prose
from fusion.cli.app import cli
from fusion.ops.registered import SPECS

#: Folders whose modules are programs.
OURS = {"benchmarks", "docs", "examples", "fusion", "modelzoo", "tests"}

#: Options of every case of the benchmarks.
OF_ALL_CASES = {"--headlines", "--help", "--out", "--processes", "--quick"}

TARGETS = {*re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)}

#: How messages of the package begin.
MESSAGES = ("fusion compiles ",)

#: What may stand before a command: a prompt, and variables of the environment.
BEFORE = re.compile(r"(\$ )?([A-Z_]+=\S* )*")


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each command of a page, in its prose and in its blocks of code."""
    spans = re.findall(r"`([^`]+)`", prose(page))
    lines = [line for block in CODE.findall(page.read_text()) for line in block.splitlines()]
    for text in (*spans, *lines):
        command = BEFORE.sub("", " ".join(text.split()), count=1)
        is_message = command.startswith(MESSAGES)
        if re.match(r"(fusion|make|python -m) ", command) and not is_message:
            yield re.split(r" (?:[#&|]|\\\|)", command)[0].split()


def problems(words: Sequence[str]) -> list[str]:
    """What of a command is not there."""
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    if words[0] == "fusion":
        return _of_fusion(words[1:], options)
    if words[0] == "make":
        targets = () if "-C" in words else (word for word in words[1:] if "=" not in word)
        return [f"no target {word}" for word in targets if word.islower() and word not in TARGETS]
    return _of_module(words[2], words[3:], options)


def _of_fusion(words: Sequence[str], options: Sequence[str]) -> list[str]:
    found: click.Command = cli
    known = {"--help", "--version", "--verbose"}
    for word in words:
        if not isinstance(found, click.Group) or word.startswith("-"):
            break
        if word not in found.commands:
            return [f"no command {word}"]
        found = found.commands[word]
    known |= {name for one in found.params for name in one.opts}
    return [f"no option {option}" for option in options if option not in known]


def _of_module(name: str, words: Sequence[str], options: Sequence[str]) -> list[str]:
    folder = name.partition(".")[0]
    if folder not in OURS:
        return []
    if importlib.util.find_spec(name) is None:
        return [f"no module {name}"]
    if name == "benchmarks" and words[:1] == ["run"]:
        return _of_cases(words[1:], options)
    if name == "fusion":
        return _of_fusion(words, options)
    return [f"no option {one}" for one in options if f'"{one}"' not in _sources(folder)]


def _of_cases(words: Sequence[str], options: Sequence[str]) -> list[str]:
    last = next((index for index, word in enumerate(words) if word.startswith("-")), len(words))
    names = [word for word in words[:last] if word not in ("CASE", "...")]
    known = OF_ALL_CASES | {
        f"--{option.replace('_', '-')}"
        for name in names or CASES
        if name in CASES
        for option in CASES[name].options
    }
    unknown = [f"no case {name}" for name in names if name not in CASES]
    return unknown + [f"no option {option}" for option in options if option not in known]


@cache
def _sources(folder: str) -> str:
    return "".join(path.read_text() for path in sorted((ROOT / folder).rglob("*.py")))


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_there(page: Path) -> None:
    assert [(words, found) for words in commands(page) if (found := problems(words))] == []


def test_commands_are_found_and_what_is_not_there_is_named(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`fusion bench A\nB --nothing`, `make nothing`, `TF_X=1 python -m examples.nothing`\n"
        "```text\n$ python -m benchmarks run startup --starts 1 nothing --rows 1 # as ever\n"
        "$ fusion tables nothing | head\nfusion doctor\n```\n"
        "`python -m benchmarks run nothing`, `python -m modelzoo.train dlrm --nothing`, `fusion`\n"
    )
    assert [*map(problems, commands(page))] == [
        ["no option --nothing"],
        ["no target nothing"],
        ["no module examples.nothing"],
        ["no case nothing"],
        ["no option --nothing"],
        ["no option --rows"],
        ["no command nothing"],
        [],
    ]


@pytest.mark.parametrize("name", ["docs/native.md", "examples/native/README.md"])
def test_pages_show_how_many_ops_a_library_has(name: str) -> None:
    shown = re.findall(r"^libfusion_ops.so: (\d+) ops, ", (ROOT / name).read_text(), re.MULTILINE)
    assert shown == [str(len(SPECS))]
