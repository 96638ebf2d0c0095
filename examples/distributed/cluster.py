"""The processes of a cluster on this machine, by `TF_CONFIG`."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from typing import Any

CONFIG = "TF_CONFIG"
"""The environment's variable that says which processes there are, and which one this is."""


def tasks(cluster: Mapping[str, int]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields the name and the environment variables of each process.

    Args:
        cluster: how many processes each job has; empty for a single process without a cluster.
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


def start_server() -> Any:
    """Starts the server of a worker or a parameter server here; its `join` never ends."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id
    )
