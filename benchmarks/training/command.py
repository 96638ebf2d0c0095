"""The command `keras`: measures cases, each in a process of its own, and prints tables of them."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.training.cases import FRAMEWORKS, SLOTS, Case, select
from benchmarks.training.tables import is_met, tables

NAME = "keras"
ABOUT = (
    "Steps of training of 26 embeddings of dim 16, one id per row, side by side, and three dense "
    "layers of 256 units, batch 512: stock layers and optimizers, as they are and under "
    "`fusion.enable()`, in turns in one process, after losses and all variables were compared."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the command."""
    words: dict[str, Any] = {"nargs": "+", "default": [], "metavar": "NAME"}
    parser.add_argument("--framework", choices=FRAMEWORKS, **words, help=", ".join(FRAMEWORKS))
    parser.add_argument("--optimizer", choices=[*SLOTS], **words, help=", ".join(SLOTS))
    parser.add_argument("--rows", nargs="+", type=int, default=[], metavar="N", help="of a table")
    parser.add_argument("--distribution", choices=["uniform", "power-law"], default="uniform")
    parser.add_argument(
        "--steps", type=int, help="before the comparison; 200 by default, 20 of 1,000,000 rows"
    )
    parser.add_argument("--columns", type=int, help="how many tables, 26 by default")
    parser.add_argument("--seconds", type=float, default=15.0, help="of rounds, default 15")
    parser.add_argument(
        "--profile", action="store_true", help="print the time of each kind of op, before and after"
    )
    parser.add_argument("--quick", action="store_true", help="small and short, to try it out")


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """Yields what the options ask for.

    Raises:
        ValueError: there is no such case.
    """
    selected = select(
        options.framework, options.optimizer, options.rows, options.distribution.replace("-", " ")
    )
    for case in selected:
        asked = {"steps": options.steps, "columns": options.columns}
        changed = {name: value for name, value in asked.items() if value is not None}
        if "columns" in changed:
            changed["least"] = None
        one = dataclasses.replace(case, **changed)
        yield one.small() if options.quick else one


def run(options: argparse.Namespace) -> int:
    """Measures everything; returns 1 if a case failed, was not equal, or missed its bound."""
    from rich.console import Console

    from benchmarks.runner import WorkerFailed, run_worker, write_result

    try:
        asked = [*cases(options)]
    except ValueError as error:
        print(f"python -m benchmarks {NAME}: {error}", file=sys.stderr)
        return 2
    found, failures = [], []
    with Console(stderr=True).status("") as status:
        for number, case in enumerate(asked, 1):
            label = f"{number} of {len(asked)}: {case.title}"
            order = {"case": dataclasses.asdict(case), "effort": {"seconds": options.seconds}}
            try:
                say = _say(status, label)
                found.append(run_worker(NAME, order, say))
            except WorkerFailed as failure:
                failures.append(f"{case.title}: {failure}")
    facts = {"quick": options.quick, "scale": 1.0, "training": found}
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        write_result(options.out, NAME, ABOUT, 1, facts)
    print("\n\n".join([ABOUT, *tables(facts, options.profile)]))
    print("\n".join(failures), file=sys.stderr)
    return 1 if failures or not all(map(is_met, found)) else 0


def _say(status: Any, label: str) -> Any:
    return lambda line: status.update(f"{label}: {line}")


def work(order: Mapping[str, Any], say: Any) -> dict[str, Any]:
    """What a process of `run` measures."""
    from benchmarks.training.measure import Effort, measure

    case = Case(**{**order["case"], "hidden": tuple(order["case"]["hidden"])})
    return measure(case, Effort(**order["effort"]), say)
