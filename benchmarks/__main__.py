"""Measurements of fusion against stock TensorFlow, torch and FBGEMM, printed and kept as JSON."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import report, runner
from benchmarks.case import Case, Option
from benchmarks.catalog import CASES, SMOKE
from benchmarks.lookups.catalog import HEADLINES

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

_PROGRAM = "python -m benchmarks"

#: What the README shows.
_HEADLINES = Path(__file__).resolve().parent / "results" / "headlines"


def main() -> int:
    """The command line; the result is the exit code, 1 if a bound is missed or a process fails."""
    parser = argparse.ArgumentParser(prog=_PROGRAM, description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="all cases, and what each of them is")
    commands.add_parser("run", help="measure cases", add_help=False)
    commands.add_parser("smoke", help="some headlines beside those of the README, in three minutes")
    folder = commands.add_parser("report", help="write report.md and plots of results")
    folder.add_argument("folder", type=Path, help="of results, and where the report goes")
    worker = commands.add_parser("worker", help="measure a part of a case in this process")
    worker.add_argument("case", choices=CASES)
    worker.add_argument("part", type=json.loads)
    worker.add_argument("path", type=Path)
    options, words = parser.parse_known_args()
    if options.command == "run":
        return _run(words)
    if words:
        parser.error(f"unrecognized arguments: {' '.join(words)}")
    if options.command == "worker":
        runner.work(CASES[options.case], options.part, options.path)
        return 0
    if options.command == "report":
        return _report(options.folder)
    return _smoke() if options.command == "smoke" else _list()


def _list() -> int:
    for case in CASES.values():
        print(f"{case.name}: {case.about}")
        given = " ".join(f"--{_flag(name)} {_shown(one)}" for name, one in case.options.items())
        print(f"    {given}" if given else "", end="\n" if given else "")
    return 0


def _flag(name: str) -> str:
    return name.replace("_", "-")


def _shown(default: Option) -> str:
    return " ".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _run(words: Sequence[str]) -> int:
    names = [*itertools.takewhile(lambda word: not word.startswith("-"), words)]
    if unknown := sorted(set(names) - set(CASES)):
        print(f"no case {', '.join(unknown)}; there are {', '.join(CASES)}", file=sys.stderr)
        return 2
    is_of_headlines = "--headlines" in words
    every = HEADLINES if is_of_headlines else [n for n, one in CASES.items() if one.is_standard]
    cases = [CASES[name] for name in names or every]
    given = vars(_parser(cases).parse_args(words[len(names) :]))
    out, quick, processes = (given.pop(name) for name in ("out", "quick", "processes"))
    given = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
    for case in cases:
        if missing := [name for name, one in case.chosen(given, quick).items() if one == ()]:
            print(f"{case.name} needs --{_flag(missing[0])}", file=sys.stderr)
            return 2
    results = measured(cases, given, quick, processes, out)
    _tell(results.values())
    return 0 if all(map(report.is_met, results.values())) else 1


def _parser(cases: Sequence[Case]) -> argparse.ArgumentParser:
    """What takes the options of some cases."""
    usage = f"{_PROGRAM} run [CASE ...] [options]"
    parser = argparse.ArgumentParser(usage=usage, description="Measures cases.")
    parser.add_argument("--out", type=Path, help="a folder for <case>.json")
    parser.add_argument("--processes", type=int, help="measurements of each")
    parser.add_argument("--quick", action="store_true", help="small and short, to try it out")
    declared: dict[str, Option] = {}
    for case in cases:
        for name, default in case.options.items():
            declared.setdefault(name, default)
    for name, default in declared.items():
        how: dict[str, Any] = {"default": argparse.SUPPRESS, "help": f"default {_shown(default)}"}
        if default is False:
            how["action"] = "store_true"
        elif isinstance(default, tuple):
            how |= {"nargs": "+", "type": type(default[0]) if default else str}
        else:
            how["type"] = type(default)
        parser.add_argument(f"--{_flag(name)}", **how)
    return parser


def measured(
    cases: Iterable[Case],
    given: Mapping[str, Option],
    quick: bool = False,
    processes: int | None = None,
    out: Path | None = None,
) -> dict[str, dict[str, Any]]:
    """Measures cases, and keeps each result in a folder as soon as it is there."""
    results = {}
    with Console(stderr=True).status("") as status:
        for case in cases:
            result = runner.run(case, given, quick, processes, status.update)
            if out is not None:
                runner.write(result, out)
            results[case.name] = runner.with_rows(result)
    return results


def _tell(results: Iterable[Mapping[str, Any]]) -> None:
    """Prints tables, and on the standard error what makes them doubtful."""
    for result in results:
        print("\n\n".join([f"{result['case']}: {result['about']}", *report.tables(result["rows"])]))
        print()
        for failure in result["failures"]:
            print(failure, file=sys.stderr)
        if report.is_busy(result):
            print(f"{result['case']}: {report.BUSY}", file=sys.stderr)


def _smoke() -> int:
    found = measured([CASES[name] for name in SMOKE], {"headlines": True})
    _tell(found.values())
    print("\n".join(report.reproduced(found, runner.load(_HEADLINES))))
    return 1 if any(result["failures"] for result in found.values()) else 0


def _report(folder: Path) -> int:
    from benchmarks.plots import plot

    results = runner.load(folder)
    if not results:
        print(f"there are no results in {folder}", file=sys.stderr)
        return 2
    path = folder / "report.md"
    path.write_text(report.render(results, plot(results, folder)))
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
