"""Options that commands share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


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
