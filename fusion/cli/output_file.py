"""Files that commands write beside their main result."""

from __future__ import annotations

import os
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
