"""Trains a model by each of TensorFlow's strategies, without fusion and with it, and compares.

All processes of a job are started on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from examples.distributed.cluster import tasks

#: The processes of a job, by strategy; none for a job of one process.
CLUSTERS: dict[str, dict[str, int]] = {
    "mirrored": {},
    "multi_worker": {"worker": 2},
    "parameter_server": {"chief": 1, "worker": 2, "ps": 2},
}
_SECONDS = 300


@dataclass(frozen=True)
class Trained:
    """A model that was trained without fusion ("stock") and with it ("fused").

    Attributes:
        losses: of each step, by run.
        weights: after training, by run, of each process that has them.
        columns_fused: by task, for those that had fusion.
    """

    losses: dict[str, list[float]]
    weights: dict[str, list[list[np.ndarray]]]
    columns_fused: dict[str, int]


def train(strategy: str, optimizer: str = "sgd", steps: int = 20) -> Trained:
    """Trains a model in processes of their own, all on this machine.

    Raises:
        RuntimeError: with the logs, if a process failed.
    """
    # Workers serve one chief, which has all of its steps done with fusion or without it.
    jobs = [["stock"], ["fused"]] if strategy == "parameter_server" else [["stock", "fused"]]
    options = [f"--optimizer={optimizer}", f"--steps={steps}"]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        told = [one for runs in jobs for one in _run(strategy, [*runs, *options], directory)]
        return Trained(
            losses={run: one[run] for one in told for run in ("stock", "fused") if run in one},
            weights={
                run: [_read(path) for path in sorted(directory.glob(f"*_{run}.npz"))]
                for run in ("stock", "fused")
            },
            columns_fused={
                one["task"]: one["columns_fused"] for one in told if "columns_fused" in one
            },
        )


def _run(strategy: str, options: Sequence[str], directory: Path) -> list[dict[str, Any]]:
    """Runs a job from beginning to end; returns what each of its processes tells."""
    with ExitStack() as stack:
        running = [
            stack.enter_context(_started([strategy, *options], config, directory / task))
            for task, config in tasks(CLUSTERS[strategy])
        ]
        try:
            # The first ones train; servers go on until their input is closed, as it is here.
            return [json.loads(process.communicate(timeout=_SECONDS)[0]) for process in running]
        except (json.JSONDecodeError, subprocess.TimeoutExpired) as error:
            logs = "\n".join(log.read_text()[-3000:] for log in sorted(directory.glob("*.log")))
            raise RuntimeError(f"a process of {strategy} failed:\n{logs}") from error


@contextmanager
def _started(
    options: Sequence[str], config: dict[str, str], path: Path
) -> Iterator[subprocess.Popen[str]]:
    """Starts a process, and ends it in the end."""
    with (
        path.with_suffix(".log").open("w") as log,
        subprocess.Popen(
            [sys.executable, "-m", "examples.distributed.train", *options, f"--weights={path}"],
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
        trained = train(strategy, arguments.optimizer, arguments.steps)
        stock, fused = trained.losses["stock"], trained.losses["fused"]
        equal = stock == fused and all(
            np.array_equal(one, other)
            for several, others in zip(*trained.weights.values(), strict=True)
            for one, other in zip(several, others, strict=True)
        )
        print(f"{strategy}: the loss went from {fused[0]:.4f} to {fused[-1]:.4f}")
        print(f"  losses and weights have the same bits without fusion: {equal}")
        for task, count in trained.columns_fused.items():
            print(f"  {task}: {count} columns fused")


if __name__ == "__main__":
    main()
