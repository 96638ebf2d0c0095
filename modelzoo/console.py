"""Commands that say in a line what a user can act on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import click
import tensorflow as tf

from modelzoo.criteo.schema import DataError


@contextmanager
def told_plainly() -> Iterator[None]:
    """Makes one line of wrong options, what is not supported, files and TensorFlow's errors.

    Raises:
        click.ClickException: for these.
    """
    try:
        yield
    except (ValueError, NotImplementedError, OSError, tf.errors.OpError) as error:
        # What the Python of a pipeline raises comes with all that it went through.
        inside = re.search(rf"{DataError.__name__}: (.*)", str(error))
        told = str(error) if inside is None else inside.group(1)
        raise click.ClickException(" ".join(told.split())) from error
