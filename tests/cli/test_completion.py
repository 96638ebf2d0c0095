"""`fusion completion`, in the shell."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

import click
import pytest

from fusion.cli import main
from fusion.cli.app import cli
from fusion.cli.commands.completion import script
from tests.cli.test_json import all_commands

#: How each is started without a user's settings.
SHELLS = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"]}
_COMPLETE = """
{script}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_fusion_completion
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def completed(*words: str) -> list[str]:
    """What bash would complete of the last word."""
    quoted = " ".join(f"'{word}'" for word in ("fusion", *words))
    code = _COMPLETE.format(script=script(cli, "bash"), words=quoted)
    done = subprocess.run(
        ["bash", "--norc", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_the_command_prints_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in SHELLS:
        assert main(["completion", shell]) == 0
        assert capsys.readouterr().out == script(cli, shell)
    assert main(["completion", "fish"]) == 2
    assert "'fish' is not one of 'bash', 'zsh'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ins"], ["inspect"]),
        (["re"], ["rewrite"]),
        (["--ver"], ["--version", "--verbose"]),
        (["--verbose", "ins"], ["inspect"]),
        (["tables", ""], ["push", "pull", "compare", "--help"]),
        (["tables", "pu"], ["push", "pull"]),
        (["tables", "push", "--pa"], ["--partitions"]),
        (["inspect", "model", "--js"], ["--json"]),
        (["rewrite", "--target", ""], ["fused", "stock"]),
        (["rewrite", "--target", "st"], ["stock"]),
        (["rewrite", "--target", "=", "st"], ["stock"]),
        (["rewrite", "--target", "="], ["fused", "stock"]),
        (["rewrite", "a", "b", "--dtype", "i"], ["int8", "int4"]),
        (["completion", ""], ["bash", "zsh"]),
        # Paths: nothing of ours, so that the shell completes them.
        (["inspect", ""], []),
        (["inspect", "mod"], []),
        (["rewrite", "inspect", "pl"], []),
        (["inspect", "--svg", "-"], []),
        (["frobnicate"], []),
    ],
)
def test_what_is_completed(words: list[str], expected: list[str]) -> None:
    assert completed(*words) == expected


def test_all_commands_and_options_are_known() -> None:
    assert {*cli.commands} <= {*completed("")}
    commands = {name: one for name, one in all_commands().items() if name != "completion"}
    for name, command in commands.items():
        options = [one.opts for one in command.params if isinstance(one, click.Option)]
        assert {*completed(*name.split(), "-")} == {"--help"}.union(*options)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_at_a_terminal_completes_commands_and_paths(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"not installed: {shell}")
    (tmp_path / "unusual model").mkdir()
    (tmp_path / "script").write_text(script(cli, shell))
    # A function that shows what it is called with stands for the program.
    lines = (
        ("fusion() { printf '<%s>' \"$@\"; echo; }; source ./script; echo rea''dy\n", "ready\r\n"),
        ("fusion insp\tunus\t --js\t; echo do''ne\n", "done\r\n"),
    )
    shown = _at_a_terminal(SHELLS[shell], lines, tmp_path)
    assert re.search(r"<inspect><unusual model/?><--json>", shown), shown


def _at_a_terminal(command: list[str], lines: Iterable[tuple[str, str]], folder: Path) -> str:
    """What a shell shows at whose terminal lines are typed, each until it shows what is given."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        environment = {"PATH": os.environ["PATH"], "PS1": "$ ", "TERM": "dumb", "HOME": str(folder)}
        os.execvpe(command[0], command, environment)
    shown, deadline = "", time.monotonic() + 60
    try:
        for line, end in lines:
            os.write(terminal, line.encode())
            while end not in shown and time.monotonic() < deadline:
                if select.select([terminal], [], [], 1)[0]:
                    shown += os.read(terminal, 1 << 16).decode(errors="replace")
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(terminal)
    return shown
