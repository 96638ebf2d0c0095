"""Programs that are forked are told what others are, and tell what others tell."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import forks as module
from tests.forks import _popen, forks

__all__ = ["forks"]

_TELL = """
import json, os, sys
is_leader = os.getsid(0) == os.getpid()
print(json.dumps([sys.argv, sys.path[:2], os.getcwd(), os.environ["X"], is_leader]))
print(sys.stdin.read(), file=sys.stderr)
import __main__
print(__main__.__dict__ is globals(), __name__, "fusion" in sys.modules)
os.write(int(sys.argv[1]), b"passed")
raise SystemExit(3)
"""


_ENDLESS = {
    "program": ["-c", "import time; time.sleep(1000)"],
    "folder": "/",
    "environment": dict(os.environ),
    "files": [0, 1, 2],
    "session": False,
}


def has_tensorflow(*options: str) -> bool:
    code = "import sys; print('tensorflow' in sys.modules)"
    return subprocess.check_output([sys.executable, *options, "-c", code]) == b"True\n"


def test_plain_programs_are_forked_and_others_started() -> None:
    assert has_tensorflow()
    assert not has_tensorflow("-S")
    assert not has_tensorflow("-I")


@pytest.mark.parametrize("name", ["PYTHONHASHSEED", "TF_ENABLE_ONEDNN_OPTS", "OMP_NUM_THREADS"])
def test_what_is_read_early_starts_a_new_python(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    assert not has_tensorflow()


@pytest.mark.parametrize("kind", ["-c", "-m", "file"])
def test_they_are_told_the_same(kind: str, tmp_path: Path) -> None:
    (tmp_path / "tell.py").write_text(_TELL)
    program = {"-c": ["-c", _TELL], "-m": ["-m", "tell"], "file": [str(tmp_path / "tell.py")]}

    def run(popen: Callable[..., Any]) -> tuple[object, ...]:
        read, write = os.pipe()
        with popen(
            [sys.executable, *program[kind], str(write)],
            cwd=tmp_path,
            env={**os.environ, "X": "y", "PYTHONPATH": str(tmp_path / "elsewhere")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[write],
            start_new_session=True,
            text=True,
        ) as process:
            out, error = process.communicate("told")
        os.close(write)
        with open(read) as passed:
            text = passed.read()
        return (out.replace(str(write), "number"), error, text, process.returncode)

    ours = run(subprocess.Popen)
    assert ours == run(_popen)
    assert ours[1:] == ("told\n", "passed", 3)


def test_an_exception_ends_them() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "1 / 0"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"


def test_they_are_killed_and_waited_for() -> None:
    command = [sys.executable, "-c", "print(flush=True); input()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.kill()
        assert process.wait(60) == -signal.SIGKILL
        assert process.poll() == -signal.SIGKILL


def test_programs_of_forked_programs_are_forked() -> None:
    code = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))"
    inner = "import sys; sys.exit(7 if 'tensorflow' in sys.modules else 8)"
    assert subprocess.call([sys.executable, "-c", code, "-c", inner]) == 7
    assert subprocess.call([sys.executable, "-c", code, "-I", "-c", inner]) == 8


def test_the_server_outlives_those_that_end_before_they_order() -> None:
    server = module._server
    assert server is not None
    for message in (b"", json.dumps(_ENDLESS).encode()):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(server._address)
            if message:
                socket.send_fds(connection, [message], [0, 1, 2])
    assert has_tensorflow()
