"""Commands that need TensorFlow, whose import takes seconds; and options that commands share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import click

import fusion
from fusion.cli.signals import ended_at_once
from fusion.saved_model.model.source import find_model
from fusion.saved_model.split.folder import is_split

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Command(click.Command):
    """A command for which TensorFlow is imported when all its arguments are right."""

    def __init__(self, *args: Any, check: Callable[..., None] | None = None, **kwargs: Any) -> None:
        """Makes one of click's.

        Args:
          args: of click's.
          check: looks at the arguments, which it takes by name, and raises what `main` shows.
          kwargs: of click's.
        """
        super().__init__(*args, **kwargs)
        self._check = check

    def invoke(self, ctx: click.Context) -> Any:
        """Runs it."""
        if self._check is not None:
            self._check(**ctx.params)
        with ended_at_once():
            fusion.register()
        return super().invoke(ctx)


def check_model(path: str) -> None:
    """Looks whether a path leads to a SavedModel or a frozen graph, by its name and kind.

    Raises:
      ModelError: it does not.
    """
    find_model(path)


def check_model_or_split(path: str) -> None:
    """The same of a path that may be the folder of a split model, too."""
    if not is_split(path):
        find_model(path)


class FiniteRange(click.FloatRange):
    """A range of numbers that has neither infinity nor what is no number.

    Comparisons with NaN are false, so that click finds it inside of any range.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the number."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


def recorded_inputs(help: str) -> Decorator:
    """Adds `--inputs`, described by `help`, and `--batch-size`, as `inputs` and `batch_size`."""
    inputs = click.option("--inputs", metavar="FILE", help=help)
    batch_size = click.option(
        "--batch-size",
        type=click.IntRange(min=1),
        default=32,
        show_default=True,
        help="How many Examples of a TFRecord file are a batch.",
    )
    return lambda command: inputs(batch_size(command))


def timeout(help: str = "Seconds that loading and running one model may take.") -> Decorator:
    """Adds `--timeout`."""
    limit = FiniteRange(min=1)
    return click.option("--timeout", type=limit, default=1800.0, show_default=True, help=help)


def tolerance(help: str) -> Decorator:
    """Adds `--tolerance`, a share of the largest element of an output."""
    limit = FiniteRange(min=0)
    return click.option("--tolerance", type=limit, default=0.0, show_default=True, help=help)
