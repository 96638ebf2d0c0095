"""The processes of a cluster: those of this machine, or those that `TF_CONFIG` names.

`python -m modelzoo.cluster` is a worker or a server of `ParameterServerStrategy`, and with a module
and its arguments it is that program, for as long as its standard input is open.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Container, Mapping, Sequence

from examples.distributed.cluster import CONFIG, start_server, tasks


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


def is_first() -> bool:
    """Whether no process trains before this one: a chief, or else the first worker."""
    job = own_job()
    if job in (None, "chief"):
        return True
    config = json.loads(os.environ[CONFIG])
    has_chief = bool(config.get("cluster", {}).get("chief"))
    return job == "worker" and not has_chief and config["task"].get("index", 0) == 0


def start_here(
    cluster: Mapping[str, int], arguments: Sequence[str], on_cpu: Container[str] = ()
) -> None:
    """Makes this process the first of a cluster on this machine, and starts the others.

    They end when this process does, however it ends, and this one when another one fails.

    Args:
        cluster: how many processes each job has, that of this process first.
        arguments: of `python -m modelzoo.cluster` in the others.
        on_cpu: the jobs whose processes have no GPU.
    """
    # Nobody ever closes the end that is written to, but the system when this process is gone.
    theirs, _ = os.pipe()
    started = {}
    (_, own), *others = tasks(cluster)
    os.environ.update(own)
    for name, config in others:
        order = [sys.executable, "-m", "modelzoo.cluster", *arguments]
        environment = {**os.environ, **config}
        if name.split("_")[0] in on_cpu:
            environment["CUDA_VISIBLE_DEVICES"] = "-1"
        started[name] = subprocess.Popen(
            order,
            env=environment,
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the first
        )
    os.close(theirs)
    threading.Thread(target=_watch, args=(started,), daemon=True).start()


def _watch(started: Mapping[str, subprocess.Popen[bytes]]) -> None:
    """Ends this process when one of the others has failed, which TensorFlow waits for forever."""
    while True:
        time.sleep(0.5)
        for name, process in started.items():
            if status := process.poll():
                print(f"Error: {name} ended with status {status}", file=sys.stderr, flush=True)
                os._exit(1)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m modelzoo.cluster", description=__doc__)
    parser.add_argument("--enable", action="store_true", help="call fusion.enable()")
    parser.add_argument("module", nargs="?", help="a program to run, and no server")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the program")
    given = parser.parse_args()
    if given.module is not None:
        threading.Thread(target=_end_with_input, daemon=True).start()
        sys.argv[1:] = given.arguments
        runpy.run_module(given.module, run_name="__main__", alter_sys=True)
        return
    import fusion

    if given.enable:
        fusion.enable()
    server = start_server()
    sys.stdin.read()
    del server
    os._exit(0)  # it never ends by itself


def _end_with_input() -> None:
    """Ends this process when nobody has the other end of its standard input any more."""
    # Not by `sys.stdin`, which Python locks at its end.
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
