"""Commands that are interrupted at many moments, of which tests/cli/test_signals.py takes few."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import zygote
from tests.cli.interrupted import interrupt_often
from tests.saved_model.conftest import models

__all__ = ["models"]

_COMMANDS = {
    "rewrite": ["rewrite", "MODEL", "OUT/dst"],
    "rewrite in packed tables": ["rewrite", "MODEL", "OUT/dst", "--table-dtype", "*=int8"],
    "split": ["split", "MODEL", "OUT/dst"],
    "verify": ["verify", "MODEL", "MODEL"],
    "bench": ["bench", "MODEL", "MODEL", "--seconds", "0.1", "--batch", "1"],
    "inspect": ["inspect", "MODEL"],
    "doctor": ["doctor"],
}


@pytest.mark.parametrize("name", _COMMANDS)
def test_commands_that_are_interrupted_leave_nothing(
    name: str, models: Path, tmp_path: Path
) -> None:
    """Forks, and a few processes of their own, to whose moments the start of Python belongs."""
    model = str(models / "tf2")
    arguments = [argument.replace("MODEL", model) for argument in _COMMANDS[name]]
    for count, start in ((40, zygote.start), (8, subprocess.Popen)):
        folder = tmp_path / str(count)
        folder.mkdir()
        assert interrupt_often(arguments, folder, count, start) == []
