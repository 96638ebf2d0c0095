"""Programs in several processes, which are the workers of one strategy."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(module: str, arguments: list[str], workers: int = 1, seconds: int = 300) -> list[str]:
    """What a program prints last, in each of so many workers; one is no worker.

    Args:
      module: the program.
      arguments: of it.
      workers: how many there are.
      seconds: after which all are killed.
    """
    addresses = [f"localhost:{port}" for port in _free_ports(workers)]
    started = []
    for index in range(workers):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        config = {} if workers == 1 else {"TF_CONFIG": json.dumps(task)}
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **config},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        ended = [process.communicate(timeout=seconds) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (_, errors) in zip(started, ended, strict=True):
        assert process.returncode == 0, errors[-4000:]
    return [output.splitlines()[-1] for output, _ in ended]


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("localhost", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
