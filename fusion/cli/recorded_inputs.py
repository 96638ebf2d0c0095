"""The options of commands that run models: on recorded inputs instead of generated ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def recorded_inputs(help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds `--inputs`, told by `help`, and `--batch-size`, as `inputs` and `batch_size`."""
    inputs = click.option("--inputs", metavar="FILE", help=help)
    batch_size = click.option(
        "--batch-size",
        type=click.IntRange(min=1),
        default=32,
        show_default=True,
        help="How many Examples of a TFRecord file are a batch.",
    )
    return lambda command: inputs(batch_size(command))
