"""The options of commands that run models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


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
    limit = click.FloatRange(min=1)
    return click.option("--timeout", type=limit, default=1800.0, show_default=True, help=help)


def tolerance(help: str) -> Decorator:
    """Adds `--tolerance`, a share of the largest element of an output."""
    limit = click.FloatRange(min=0)
    return click.option("--tolerance", type=limit, default=0.0, show_default=True, help=help)
