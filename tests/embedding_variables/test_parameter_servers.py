"""Embedding variables on parameter servers, whose process knows the ops, or not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from examples.distributed.cluster import tasks
from tests import zygote
from tests.grappler.test_updates_of_strategies import SERVER

PROGRAM = [sys.executable, "-m", "tests.embedding_variables.parameter_servers"]


def run(what: str, environment: dict[str, str]) -> str:
    """What the program prints."""
    ran = zygote.run(
        [*PROGRAM, what], env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert ran.stdout.endswith("done\n"), ran.stderr
    return ran.stdout


@pytest.mark.parametrize("what", ["plain", "partitioner", "graphs"])
def test_partitions_are_trained_and_saved_where_they_are(what):
    run(what, dict(tasks({"chief": 1, "worker": 1, "ps": 2}))["chief_0"])


def test_a_server_that_has_not_imported_fusion_is_an_error():
    environments = dict(tasks({"chief": 1, "worker": 1, "ps": 2}))
    server = zygote.start(
        [sys.executable, "-c", SERVER],
        server=zygote.without_fusion(),
        env={**os.environ, **environments["ps_1"]},
        stdin=subprocess.PIPE,
    )
    try:
        printed = run("apart", environments["chief_0"])
    finally:
        server.kill()
        server.wait()
    assert "'ZerosOnDemand' is neither a type of a primitive operation nor a name of" in printed
    assert "remote target /job:ps/replica:0/task:1" in printed
