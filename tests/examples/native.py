"""The example server in C, as tests run it, and a model for it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import tensorflow as tf

NATIVE = Path(__file__).parents[2] / "examples/native"
ENVIRONMENT = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
ROWS = 100
PREDICT = "POST /v1/models/default:predict HTTP/1.1\r\n"


class Shop(tf.Module):
    """Baskets of three ids, of which 0 is none, and a word."""

    def __init__(self) -> None:
        self.items = tf.Variable(tf.random.stateless_normal([ROWS, 8], [1, 2]))

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 3], tf.int64, "items"),
            tf.TensorSpec([None], tf.string, "word"),
        ]
    )
    def serve(self, items: tf.Tensor, word: tf.Tensor) -> dict[str, tf.Tensor]:
        basket = tf.sparse.from_dense(items)
        vector = tf.nn.safe_embedding_lookup_sparse(self.items, basket, combiner="mean")
        return {"vector": vector, "upper": tf.strings.upper(word), "same": tf.identity(word)}


def make(*variables: str) -> subprocess.CompletedProcess[str]:
    """Builds the server with some variables of its Makefile."""
    command = ["make", "-C", str(NATIVE), f"PYTHON={sys.executable}", *variables]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def without_log(text: str) -> str:
    """What a server said, without TensorFlow's log, to which some releases write at their start."""
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if not re.match(r"[IWE]\d{4} |WARNING: All log", line))


class Process:
    """A server that runs."""

    def __init__(self, *command: object, **variables: str) -> None:
        self._process = subprocess.Popen(
            [*map(str, command)],
            env=ENVIRONMENT | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert " on 127.0.0.1:" in line, self._process.communicate()
        self.port = int(line.split(" on 127.0.0.1:")[1].split(",")[0])
        self.address = f"http://127.0.0.1:{self.port}"

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self._process.send_signal(number)

    def ended(self) -> tuple[int, str, str]:
        """Waits for its end; returns the status, and what it printed."""
        try:
            out, told = self._process.communicate(timeout=60)
        finally:
            self._process.kill()
        return self._process.returncode, out, without_log(told)


@contextmanager
def running(*command: object, **variables: str) -> Iterator[Process]:
    """A server that in the end is stopped, and then has said nothing else."""
    process = Process(*command, **variables)
    try:
        yield process
    finally:
        process.stop()
        ended = process.ended()
    assert ended == (0, "stopped\n", ""), ended


def inputs(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    words = [b"", b"\0zero", "größer".encode(), b"more than a small string has " * 3]
    rng = np.random.default_rng(seed)
    chosen = [words[(seed + one) % len(words)] for one in range(rows)]
    return {"items": rng.integers(0, ROWS, (rows, 3)), "word": np.array(chosen, object)}


def assert_same(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        assert ours[name].dtype == array.dtype
        assert ours[name].shape == array.shape
        assert ours[name].tolist() == array.tolist()


def exchanged(server: Process, sent: bytes) -> bytes:
    """All that the server answers to bytes that are no request."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))
