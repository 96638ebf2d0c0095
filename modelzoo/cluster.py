"""The processes of a cluster: those of this machine, or those that `TF_CONFIG` names.

`python -m modelzoo.cluster` is a worker or a server for as long as its standard input is open.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

CONFIG = "TF_CONFIG"
"""The environment's variable that says which processes there are, and which one this is."""

HERE = {"chief": 1, "worker": 2, "ps": 2}
"""The processes that are started on this machine where nobody else did, by job."""


def tasks(cluster: Mapping[str, int]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields a name for each process and the variables that tell it what it is.

    Args:
        cluster: how many processes each job has; none for a single process without a cluster.
    """
    if not cluster:
        yield "only", {}
        return
    addresses = {job: [f"127.0.0.1:{_free_port()}" for _ in range(n)] for job, n in cluster.items()}
    for job, several in addresses.items():
        for index in range(len(several)):
            config = {"cluster": addresses, "task": {"type": job, "index": index}}
            yield f"{job}_{index}", {CONFIG: json.dumps(config)}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def own_job() -> str | None:
    """The job of this process: chief, worker, ps or another; None without a cluster.

    Raises:
        ValueError: the variable is not what TensorFlow takes.
    """
    text = os.environ.get(CONFIG)
    if not text:
        return None
    try:
        return str(json.loads(text)["task"]["type"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{CONFIG} has no task with a type: {text!r}") from error


def start_here(enable: bool) -> None:
    """Makes this process the chief of a cluster on this machine, and starts the others.

    They end when this process does, however it ends.

    Args:
        enable: whether they call `fusion.enable`.
    """
    # Nobody ever closes the end that is written to, but the system when this process is gone.
    theirs, _ = os.pipe()
    started = {}
    for name, config in tasks(HERE):
        if name == "chief_0":
            os.environ.update(config)
            continue
        order = [sys.executable, "-m", "modelzoo.cluster", *(["--enable"] if enable else [])]
        environment = {**os.environ, **config}
        if name.startswith("ps"):
            environment["CUDA_VISIBLE_DEVICES"] = "-1"  # tables are on the CPU
        started[name] = subprocess.Popen(
            order,
            env=environment,
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the chief
        )
    os.close(theirs)
    threading.Thread(target=_watch, args=(started,), daemon=True).start()


def _watch(started: Mapping[str, subprocess.Popen[bytes]]) -> None:
    """Ends this process when one of the others has ended, which TensorFlow waits for forever."""
    while True:
        time.sleep(0.5)
        for name, process in started.items():
            if (status := process.poll()) is not None:
                print(f"Error: {name} ended with status {status}", file=sys.stderr, flush=True)
                os._exit(1)


def start_server() -> Any:
    """Starts what the chief gives work to, in this process; its `join` never ends."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m modelzoo.cluster", description=__doc__)
    parser.add_argument("--enable", action="store_true", help="call fusion.enable()")
    enable = parser.parse_args().enable
    import fusion

    if enable:
        fusion.enable()
    server = start_server()
    sys.stdin.read()
    del server
    os._exit(0)  # it never ends by itself


if __name__ == "__main__":
    main()
