"""Files that commands write beside their main result, and what drawing them needs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click


def check_output_file(file: str | None, option: str) -> None:
    """Finds out before the work whether its result can be written to `file`.

    Raises:
        click.BadParameter: it cannot; the message names the option.
    """
    if file is None:
        return
    path = Path(file)
    if path.is_dir():
        raise click.BadParameter(f"{file} is a folder, give a file", param_hint=option)
    if not path.absolute().parent.is_dir():
        raise click.BadParameter(
            f"the folder of {file} does not exist, create it first", param_hint=option
        )
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise click.BadParameter(f"{file} cannot be written", param_hint=option)


def write_output_file(file: str, content: bytes) -> None:
    """Writes the result, whole or not at all where the file is a regular one.

    Raises:
        click.ClickException: the disk is full, or the like.
    """
    path = Path(os.path.realpath(file))
    is_regular = not path.exists() or path.is_file()
    written = path.with_name(f".{path.name}.{os.getpid()}.part") if is_regular else path
    try:
        try:
            written.write_bytes(content)
            if is_regular:
                os.replace(written, path)
        finally:
            if is_regular:
                written.unlink(missing_ok=True)
    except OSError as error:
        raise click.ClickException(f"{file} cannot be written: {error.strerror}") from error


@contextmanager
def drawing(option: str) -> Iterator[None]:
    """A block that imports what needs matplotlib.

    Raises:
        click.ClickException: there is no matplotlib; the message says how to install it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        message = f"{option} needs matplotlib: pip install 'tf-embedding-fusion[plot]'"
        raise click.ClickException(message) from error
