"""Progress of long commands, shown on standard error while they run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from fusion.cli.require import Requirement
from fusion.passes.report.report import FusionReport
from fusion.printable import counted
from fusion.saved_model.rewriting.options import Observer, Step

_MEGABYTE = 1e6
_SECONDS = 30.0
_STEPS = (*Step,)


class StepBar(Observer):
    """Shows the step, how much of it is written, and the time so far."""

    def __init__(self, bars: Progress) -> None:
        """Makes rich's progress bar."""
        self._bars = bars
        self._task = bars.add_task("", amount="")

    def begins(self, step: Step) -> None:
        """Shows the next step."""
        name = f"{_STEPS.index(step) + 1} of {len(_STEPS)}: {step}"
        self._bars.reset(self._task, description=name, amount="")
        self._bars.refresh()

    def copied(self, done: int, total: int) -> None:
        """Shows how much is written."""
        amount = f"{done / _MEGABYTE:,.1f} of {total / _MEGABYTE:,.1f} MB"
        self._bars.update(self._task, amount=amount, refresh=True)


class Checking(Observer):
    """Ends a rewrite that fuses too few columns; forwards all else to another observer."""

    def __init__(self, other: Observer, requirement: Requirement, verb: str) -> None:
        """Takes the other observer, and what is said of columns that are fused."""
        self._other, self._requirement, self._verb = other, requirement, verb

    def begins(self, step: Step) -> None:
        """Passes it on."""
        self._other.begins(step)

    def copied(self, done: int, total: int) -> None:
        """Passes it on."""
        self._other.copied(done, total)

    def fused(self, report: FusionReport) -> None:
        """Raises TooFewColumnsError."""
        self._requirement.check(report, f"{self._verb}, nothing written", report.to_dict())


@contextmanager
def step_bar() -> Iterator[Observer]:
    """A block in which standard error shows the steps, if it is a terminal; cleared at its end."""
    out = Console(stderr=True)
    if not out.is_terminal:  # rich would end the lines that it does not write
        yield Observer()
        return
    columns = (TextColumn("{task.description}"), TextColumn("{task.fields[amount]}"))
    bars = Progress(SpinnerColumn(), *columns, TimeElapsedColumn(), console=out, transient=True)
    with bars:
        yield StepBar(bars)


class KernelProgress:
    """Says which kernel is compiled, and about how long the others will take."""

    def __init__(self, show: Callable[[str], None], seconds: float = 0.0) -> None:
        """Begins.

        Args:
          show: shows a line.
          seconds: between two lines, at least.
        """
        self._show, self._seconds = show, seconds
        self._first: tuple[float, int] | None = None
        self._shown = 0.0

    def __call__(self, number: int, count: int, name: str) -> None:
        """Reports a kernel before it is compiled: its number, the count of all, and its name."""
        now = time.monotonic()
        if self._first is None:
            self._first, self._shown = (now, number), now
            text = f"compiling {counted(count - number + 1, 'kernel')}, a second or more for each"
            self._show(text if self._seconds else f"{number} of {count}: {name}")
            return
        if now - self._shown < self._seconds:
            return
        self._shown = now
        begun, first = self._first
        seconds = (now - begun) / (number - first) * (count - number + 1)
        self._show(f"{number} of {count}: {name}, about {_duration(seconds)} left")


def _duration(seconds: float) -> str:
    return counted(round(seconds), "second") if seconds < 90 else f"{round(seconds / 60)} minutes"


@contextmanager
def kernel_progress() -> Iterator[KernelProgress]:
    """A block in which standard error shows the kernels that are compiled.

    On a terminal that is a line that changes, elsewhere a line at the start and each half minute.
    """
    out = Console(stderr=True)
    if not out.is_terminal:
        yield KernelProgress(lambda line: click.echo(line, err=True), _SECONDS)
        return
    with out.status("starting") as status:
        yield KernelProgress(lambda line: status.update(Text(line)))
