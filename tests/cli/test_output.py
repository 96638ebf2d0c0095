"""Where standard output, or a file of a result, cannot be written as usual."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

import click
import pytest
from rich.console import Console

from fusion.cli import start
from fusion.cli.commands.tables import _errors
from fusion.cli.output_file import write_output_file
from fusion.cli.report import plain_table, show_table
from tests import zygote
from tests.cli.interrupted import command_in

#: A model that is not there: with --json there is an error on both outputs.
MISSING = ["inspect", "--json", "missing"]


def _ended(command: list[str], output: int, folder: Path) -> tuple[int, list[str]]:
    with zygote.start(
        [*command_in(folder), *command],
        cwd=zygote.ROOT,
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        if process.stdout is not None:
            process.stdout.close()
        assert process.stderr is not None
        errors = process.stderr.read()
        return process.wait(), errors.splitlines()


def test_an_error_whose_reader_is_gone(tmp_path: Path) -> None:
    status, (line,) = _ended(MISSING, subprocess.PIPE, tmp_path)
    assert status == 141
    assert line.startswith("fusion: error: missing")


@pytest.mark.parametrize("command", [MISSING, ["doctor"], ["completion", "bash"]])
def test_standard_output_that_is_full(command: list[str], tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        status, lines = _ended(command, full.fileno(), tmp_path)
    assert status == 2
    assert lines[-1] == "fusion: error: cannot write: no space left on device"
    assert len(lines) == (2 if command is MISSING else 1)


def test_a_full_output_is_told_once(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        status, (line,) = _ended(["doctor", "--json"], full.fileno(), tmp_path)
    assert (status, line) == (2, "fusion: error: cannot write: no space left on device")


#: In the place of the package: writes to a file, to both outputs, and as C does.
STAND_IN = """
import os, sys

def main():
    with open("file", "w") as file:
        print("result", flush=True)
        print("error", file=sys.stderr)
        os.write(1, b"of C")
        os.write(2, b"of C")
        file.write("content")
    return 3
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_files_that_are_closed(closed: str, tmp_path: Path) -> None:
    package = tmp_path / "packages" / "fusion"
    (package / "cli").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "cli" / "__init__.py").write_text(STAND_IN)
    shutil.copy(start.__file__, package / "cli" / "start.py")
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *command_in(tmp_path), "doctor"]
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    done = subprocess.run(
        shell, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert (tmp_path / "file").read_text() == "content"
    assert done.stdout == ("" if ">&-" in closed.split() else "result\nof C")
    assert done.stderr == ("" if "2>&-" in closed.split() else "error\n")


def test_a_reader_of_tables_that_is_gone_is_no_error_of_tables() -> None:
    with pytest.raises(BrokenPipeError), _errors():
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")
    with pytest.raises(click.ClickException), _errors():
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset")


def test_results_go_into_pipes_by_their_names() -> None:
    reading, writing = os.pipe()
    with open(reading, "rb") as pipe:
        write_output_file(f"/dev/fd/{writing}", b"content")
        os.close(writing)
        assert pipe.read() == b"content"


def test_a_pipe_whose_reader_is_gone() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        with pytest.raises(BrokenPipeError):
            write_output_file(f"/proc/self/fd/{writing}", b"content")
    finally:
        os.close(writing)


def test_a_link_stays_one_and_its_file_gets_the_result(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    write_output_file(str(tmp_path / "link"), b"new")
    write_output_file(str(tmp_path / "link"), b"newer")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"newer"
    assert len(os.listdir(tmp_path)) == 2


def test_a_file_in_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"old and longer")
    # Root may write everywhere.
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    write_output_file(str(tmp_path / "file"), b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


@pytest.mark.parametrize("width", [12, 16, 22, 40])
def test_narrow_terminals_lose_no_characters(width: int) -> None:
    table = plain_table("name", "not fused because", "node")
    table.add_row("abcdefghijklmnopqrstuvwxyz", "0123456789" * 5, "/some/node")
    out = Console(width=width)
    with out.capture() as captured:
        show_table(out, table)
    shown = captured.get()
    assert max(map(len, shown.splitlines())) <= width
    letters = "".join(shown.split())
    assert letters.count("abcdefghijklmnopqrstuvwxyz") == 1
    if width < 40:
        assert "0123456789" * 5 in letters
    assert "/some/node" in letters
