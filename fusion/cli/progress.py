"""What a rewrite is at, shown on a terminal while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from fusion.cli.require import Requirement
from fusion.passes.report.report import FusionReport
from fusion.saved_model.rewrite_options import Observer, Step

_MEGABYTE = 1e6
_STEPS = (*Step,)


class StepBar(Observer):
    """Shows the step, what is written of it, and the time that it takes so far."""

    def __init__(self, bars: Progress) -> None:
        """Shows them by one of rich's."""
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
    """Ends a rewrite that fuses too few columns, and passes all else on to another observer."""

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
    """A block in which standard error shows the steps, if it is a terminal; nothing of it stays."""
    out = Console(stderr=True)
    if not out.is_terminal:  # rich would end the lines that it does not write
        yield Observer()
        return
    columns = (TextColumn("{task.description}"), TextColumn("{task.fields[amount]}"))
    bars = Progress(SpinnerColumn(), *columns, TimeElapsedColumn(), console=out, transient=True)
    with bars:
        yield StepBar(bars)
