"""Updates of tables that strategies train: stock's bits, and fused or with a reason."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from examples.distributed.cluster import tasks
from tests import zygote

PROGRAM = [sys.executable, "-m", "tests.grappler.strategies"]

#: A parameter server that has nothing of fusion.
SERVER = """
import sys
from examples.distributed.cluster import start_server

server = start_server()
assert "fusion" not in sys.modules
sys.stdin.read()
"""


def check(*arguments: str, **environment: str) -> None:
    """Runs a program to its end."""
    run = zygote.run(
        [*PROGRAM, *arguments], env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert run.stdout.endswith("done\n"), run.stderr


def test_of_replicas_they_are_fused_or_stay() -> None:
    check("mirrored")


@pytest.mark.parametrize("where", ["here", "apart"])
def test_of_parameter_servers_they_are_fused_in_a_process_that_has_the_ops(where: str) -> None:
    environments = dict(tasks({"chief": 1, "worker": 1, "ps": 1}))
    if where == "here":
        check("parameter_server", where, **environments["chief_0"])
        return
    server = zygote.start(
        [sys.executable, "-c", SERVER],
        server=zygote.without_fusion(),
        env={**os.environ, **environments["ps_0"]},
        stdin=subprocess.PIPE,
    )
    try:
        check("parameter_server", where, **environments["chief_0"])
    finally:
        server.kill()
        server.wait()
