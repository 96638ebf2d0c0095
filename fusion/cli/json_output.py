"""`--json`: what a command found, as one JSON object on standard output and nothing else there.

All of them begin alike: the command, the version of fusion, and the exit status; if that is not 0
because of an error, also its message. The command's own fields follow.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import click

from fusion.version import __version__

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print what was found as one JSON object."
)


def show_json(fields: Mapping[str, Any], status: int = 0) -> int:
    """Prints the result of the running command; returns the status."""
    click.echo(document(fields, status))
    return status


def document(fields: Mapping[str, Any], status: int = 0, command: str | None = None) -> str:
    """Returns the object, with line ends.

    Args:
        fields: of the command; numbers that JSON has no text for become null.
        status: the exit status.
        command: its name, as "tables push"; by default that of the one which runs.
    """
    if command is None:
        command = click.get_current_context().command_path.partition(" ")[2]
    head = {"command": command, "version": __version__, "status": status}
    return json.dumps(_finite({**head, **fields}), indent=2)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
