"""`fusion doctor`: what works on this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click
from rich.table import Table
from rich.text import Text

from fusion.cli.command import Command
from fusion.cli.json_output import json_option, show_json
from fusion.cli.report import cell, console, say
from fusion.printable import counted
from fusion.version import __version__

if TYPE_CHECKING:
    from fusion.runtime.registration.library.manifest import Manifest

BROKEN = 1
"""Exit status when something does not work."""


@click.command(cls=Command)
@click.argument("library", required=False)
@json_option
def doctor(library: str | None, as_json: bool) -> int:
    """Show versions, symbols, ops, devices and the kernel cache, and what is wrong with them.

    Of a LIBRARY that `fusion build-ops` wrote, show what is in it.
    """
    if library is not None:
        return _show_library(library, as_json)
    from fusion.ops.base.facts import facts as facts_of_gpus
    from fusion.ops.registered import SPECS
    from fusion.runtime.doctor import facts

    checks = [("fusion", __version__, True), *facts(SPECS), *facts_of_gpus()]
    broken = [name for name, _, ok in checks if not ok]
    status = BROKEN if broken else 0
    if as_json:
        named = [dict(zip(("name", "value", "ok"), check, strict=True)) for check in checks]
        return show_json({"checks": named, "broken": broken}, status)
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for _ in range(3):
        table.add_column(overflow="fold")
    for name, value, ok in checks:
        verdict = Text("ok", "green") if ok else Text("BROKEN", "red")
        table.add_row(verdict, cell(name), cell(value))
    console().print(table)
    say(f"broken: {', '.join(broken)}" if broken else "everything works")
    return status


def _show_library(path: str, as_json: bool) -> int:
    from fusion.runtime.registration.library.manifest import read_manifest

    try:
        manifest = read_manifest(path)
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        return show_json({"library": path, **asdict(manifest)})
    show_manifest(manifest)
    return 0


def show_manifest(manifest: Manifest) -> None:
    """Prints what a library of ops says of itself."""
    say(f"fusion {manifest.fusion}")
    say(f"{counted(len(manifest.ops), 'op')}: {', '.join(manifest.ops)}")
    for cpu, kernels in manifest.cpus.items():
        say(f"{counted(len(kernels), 'kernel')} for {cpu}: {', '.join(kernels)}")
