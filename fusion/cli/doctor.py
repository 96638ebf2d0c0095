"""`fusion doctor`: what works on this machine."""

from __future__ import annotations

import click
from rich.table import Table
from rich.text import Text

from fusion.cli.report import cell, console, say
from fusion.version import __version__

BROKEN = 1
"""Exit status when something does not work."""


@click.command()
def doctor() -> int:
    """Show versions, symbols, ops, devices and the kernel cache, and what is wrong with them."""
    from fusion.ops import SPECS
    from fusion.ops.gpu.facts import facts as facts_of_gpus
    from fusion.runtime.doctor import facts

    checks = [("fusion", __version__, True), *facts(SPECS), *facts_of_gpus()]
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for name, value, ok in checks:
        verdict = Text("ok", "green") if ok else Text("BROKEN", "red")
        table.add_row(verdict, cell(name), cell(value))
    console().print(table)
    broken = [name for name, _, ok in checks if not ok]
    say(f"broken: {', '.join(broken)}" if broken else "everything works")
    return BROKEN if broken else 0
