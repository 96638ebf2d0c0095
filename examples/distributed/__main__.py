"""Trains a model by each of TensorFlow's strategies, without fusion and with it, and compares.

All processes of a job are started on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

#: The processes of a job, by strategy; none for a job of one process.
CLUSTERS: dict[str, dict[str, int]] = {
    "mirrored": {},
    "multi_worker": {"worker": 2},
    "parameter_server": {"chief": 1, "worker": 2, "ps": 2},
}
_SECONDS = 300


@dataclass(frozen=True)
class Job:
    """What the processes of a job told.

    Attributes:
        told: by each of them, its task, the losses if it trained, how many columns were fused.
        weights: of the model, by each process that trained it.
    """

    told: list[dict[str, Any]]
    weights: list[list[np.ndarray]]

    @property
    def losses(self) -> list[float]:
        """The loss of each step."""
        return next(one["losses"] for one in self.told if "losses" in one)

    def fused(self, task: str) -> list[int]:
        """How many columns the processes of a kind have fused."""
        return [one.get("columns_fused", 0) for one in self.told if one["task"].startswith(task)]


def run(strategy: str, optimizer: str = "sgd", steps: int = 20, stock: bool = False) -> Job:
    """Runs a job from beginning to end.

    Raises:
        RuntimeError: with the logs, if a process failed.
    """
    options = [strategy, f"--optimizer={optimizer}", f"--steps={steps}"]
    options += ["--stock"] if stock else []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        running = [
            stack.enter_context(_started(options, config, directory / task))
            for task, config in _tasks(CLUSTERS[strategy])
        ]
        try:
            # The first ones train; servers go on until their input is closed, as it is here.
            told = [json.loads(process.communicate(timeout=_SECONDS)[0]) for process in running]
        except (json.JSONDecodeError, subprocess.TimeoutExpired) as error:
            logs = "\n".join(log.read_text()[-3000:] for log in sorted(directory.glob("*.log")))
            raise RuntimeError(f"a process of {strategy} failed:\n{logs}") from error
        return Job(told, [_read(file) for file in sorted(directory.glob("*.npz"))])


def _tasks(cluster: dict[str, int]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields a name for each process and the variables that tell it what it is."""
    if not cluster:
        yield "only", {}
        return
    addresses = {job: [f"127.0.0.1:{_free_port()}" for _ in range(n)] for job, n in cluster.items()}
    for job, several in addresses.items():
        for index in range(len(several)):
            config = {"cluster": addresses, "task": {"type": job, "index": index}}
            yield f"{job}_{index}", {"TF_CONFIG": json.dumps(config)}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def _started(
    options: Sequence[str], config: dict[str, str], path: Path
) -> Iterator[subprocess.Popen[str]]:
    """Starts a process, and ends it in the end."""
    with (
        path.with_suffix(".log").open("w") as log,
        subprocess.Popen(
            [sys.executable, "-m", "examples.distributed.train", *options, f"--weights={path}.npz"],
            env={"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, **config},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def _read(path: Path) -> list[np.ndarray]:
    with np.load(path) as arrays:
        return [arrays[name] for name in arrays.files]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m examples.distributed", description=__doc__)
    parser.add_argument("strategy", nargs="?", choices=CLUSTERS, help="all, if none is given")
    parser.add_argument("--optimizer", default="sgd", help="sgd, adagrad, adam or ftrl")
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    for strategy in [arguments.strategy] if arguments.strategy else CLUSTERS:
        stock, fused = (
            run(strategy, arguments.optimizer, arguments.steps, stock) for stock in (True, False)
        )
        equal = stock.losses == fused.losses and all(
            np.array_equal(one, other)
            for several, others in zip(stock.weights, fused.weights, strict=True)
            for one, other in zip(several, others, strict=True)
        )
        print(f"{strategy}: the loss went from {fused.losses[0]:.4f} to {fused.losses[-1]:.4f}")
        print(f"  losses and weights have the same bits without fusion: {equal}")
        for one in fused.told:
            if "columns_fused" in one:
                print(f"  {one['task']}: {one['columns_fused']} columns fused")


if __name__ == "__main__":
    main()
