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
    """Writes the result, whole or not at all where a file can be put in the place of another.

    Raises:
        click.ClickException: the disk is full, or the like.
    """
    path = Path(file)
    try:
        # A pipe has no folder that its name would lead to: /dev/stdout, and what a shell makes of
        # >(…). A file may be writable in a folder that is not.
        if path.exists() and not (path.is_file() and os.access(path.resolve().parent, os.W_OK)):
            path.write_bytes(content)
            return
        path = path.resolve()
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            part.write_bytes(content)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
    except BrokenPipeError:
        raise
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
