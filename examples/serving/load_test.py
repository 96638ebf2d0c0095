"""Measures models under load: `python -m examples.serving.load_test MODEL MODEL...`.

Each model gets a server of its own on this machine, and with --native a second one, that in C. The
clients call one server after the other, round by round, each with its next request as soon as the
last is answered. Before that the answers of all servers are compared.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from examples.native import client as native_client
from examples.serving.client import Client, read_response, request

_ROOT = Path(__file__).parents[2]
_NATIVE = _ROOT / "examples/native"
_REQUESTS = 16  # of each client, which it repeats
_SECONDS_TO_END = 60


@dataclass
class Load:
    """What the calls of one server took.

    Attributes:
        name: of the model, with "(C)" if the server is that in C.
        milliseconds: of each call.
        rates: of each round, requests per second.
    """

    name: str
    milliseconds: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)


class Different(Exception):
    """Two models gave different answers."""


@contextmanager
def served(model: str, *options: str, native: str | None = None) -> Iterator[str]:
    """Starts a server of a model; yields its address, and stops the server in the end.

    Args:
        model: the directory of a SavedModel.
        options: of the server.
        native: a library of ops, with which the server in C is started; None is that in Python.

    Raises:
        RuntimeError: it did not start; its message was printed.
    """
    command = [sys.executable, "-m", "examples.serving"] if native is None else _native(native)
    with subprocess.Popen(
        [*command, "--port", "0", *options, str(Path(model).absolute())],
        cwd=_ROOT,
        env={"TF_CPP_MIN_LOG_LEVEL": "3"} | os.environ,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            words = process.stdout.readline().split(" on ")
            if len(words) < 2:
                raise RuntimeError(f"{model}: its server did not start")
            address = words[-1].split(",")[0]
            yield address if native is None else f"{native_client.SCHEME}{address}"
            process.terminate()
            process.wait(_SECONDS_TO_END)
        finally:
            process.kill()


def _native(library: str) -> list[str]:
    """Builds the server in C, if it is not; returns its command."""
    subprocess.run(["make", "--silent", "-C", _NATIVE, f"PYTHON={sys.executable}"], check=True)
    return [str(_NATIVE / "build/server"), "--ops", str(Path(library).absolute())]


class Connection(Protocol):
    """What the clients of both servers can do."""

    def send(self, content: bytes) -> bytes:
        """Sends a serialized request; returns the serialized response."""


def connect(address: str) -> AbstractContextManager[Connection]:
    """Returns a client of either server."""
    is_native = address.startswith(native_client.SCHEME)
    return native_client.Client(address) if is_native else Client(address)


def made_up_requests(model: str, signature: str, rows: int, count: int) -> list[bytes]:
    """Returns requests of `rows` rows each: ids of their tables, the same in every run.

    Raises:
        ModelError: the model cannot be read, or its inputs cannot be made up.
        ValueError: its inputs do not consist of rows.
    """
    from fusion.saved_model.bench.feeds import generated_feeds
    from fusion.saved_model.bench.selection import choose_signature
    from fusion.saved_model.model.source import read_saved_model

    source = read_saved_model(model)
    total = rows * count
    feeds = generated_feeds(source, choose_signature(source, name=signature), [total])[total]
    if any(len(array) != total for array in feeds.values()):
        raise ValueError(f"{model}: the inputs of {signature!r} have no row for each example")
    parts = {name: np.split(array, count) for name, array in feeds.items()}
    return [request({name: parts[name][i] for name in parts}, signature) for i in range(count)]


def check_equal(
    addresses: Sequence[str], requests: Sequence[bytes], tolerance: float = 0.0
) -> None:
    """Compares the answers of all servers to all requests.

    Args:
        addresses: of the servers.
        requests: serialized.
        tolerance: what floats may differ by, as a share of the largest of an answer; 0 compares
            bits.

    Raises:
        Different: two answers differ.
    """
    with ExitStack() as stack:
        first, *others = (stack.enter_context(connect(address)) for address in addresses)
        for content in requests:
            expected = read_response(first.send(content))
            for other in others:
                answer = read_response(other.send(content))
                names = sorted(expected.keys() | answer.keys())
                differ = [
                    name
                    for name in names
                    if not _same(expected.get(name), answer.get(name), tolerance)
                ]
                if differ:
                    raise Different(
                        f"the models give different answers: {', '.join(differ)}; see "
                        "`fusion verify`"
                    )


def _same(one: NDArray[Any] | None, other: NDArray[Any] | None, tolerance: float) -> bool:
    from fusion.saved_model.verify.values import difference_of

    if one is None or other is None:
        return False
    return difference_of(one, other, tolerance) is None


def call(address: str, requests: Sequence[Sequence[bytes]], seconds: float, load: Load) -> None:
    """Lets clients call a server, each with its own requests, and notes what that took."""
    start = threading.Barrier(len(requests))

    def client(mine: Sequence[bytes]) -> list[float]:
        with connect(address) as connection:
            connection.send(mine[0])
            start.wait()
            end = time.perf_counter() + seconds
            took, now, turn = [], time.perf_counter(), 0
            while now < end:
                connection.send(mine[turn % len(mine)])
                before, now, turn = now, time.perf_counter(), turn + 1
                took.append(1000 * (now - before))
            return took

    with ThreadPoolExecutor(len(requests)) as pool:
        calls = [one for took in pool.map(client, requests) for one in took]
    load.milliseconds += calls
    load.rates.append(len(calls) / seconds)


def measure(
    models: Sequence[str],
    signature: str = "serving_default",
    clients: int = 8,
    rows: int = 32,
    seconds: float = 3.0,
    rounds: int = 5,
    max_rows: int = 1,
    native: str | None = None,
    tolerance: float = 0.0,
) -> list[Load]:
    """Returns what calls take, for each server.

    Args:
        models: SavedModels with the same signature.
        signature: its name.
        clients: that call at the same time.
        rows: of each request.
        seconds: that each model is called for, per round.
        rounds: in each of which every model has its turn.
        max_rows: of requests that a server in Python computes together.
        native: a library of ops for servers in C.
        tolerance: of answers, see `check_equal`.

    Raises:
        Different: the models give different answers.
    """
    requests = made_up_requests(models[0], signature, rows, _REQUESTS * clients)
    by_client = [requests[i::clients] for i in range(clients)]
    options = ("--signature", signature)
    with ExitStack() as stack:
        servers = [
            (stack.enter_context(served(model, *options, "--max-rows", str(max_rows))), Load(model))
            for model in models
        ]
        for model in models if native is not None else ():
            address = stack.enter_context(served(model, *options, native=native))
            servers.append((address, Load(f"{model} (C)")))
        check_equal([address for address, _ in servers], requests, tolerance)
        for turn in range(rounds):
            first = turn % len(servers)
            for address, load in servers[first:] + servers[:first]:
                call(address, by_client, seconds, load)
    return [load for _, load in servers]


def table(loads: Sequence[Load], rows: int) -> Iterator[str]:
    """Yields the lines of a table; the first server is the baseline."""
    width = max(len(load.name) for load in loads)
    yield f"{'':{width}}  p50 ms  p99 ms  requests/s  examples/s  over {loads[0].name}"
    for load in loads:
        p50, p99 = np.percentile(load.milliseconds, [50, 99])
        rate = statistics.median(load.rates)
        line = f"{load.name:{width}}  {p50:6.2f}  {p99:6.2f}  {rate:10,.0f}  {rate * rows:10,.0f}"
        pairs = zip(load.rates, loads[0].rates, strict=True)
        ratios = sorted(mine / first for mine, first in pairs)
        spread = f"  {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
        yield line if load is loads[0] else line + spread


def main() -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.serving.load_test",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", nargs="+", help="SavedModels; the first is the baseline")
    parser.add_argument("--signature", default="serving_default", help="default: %(default)s")
    parser.add_argument("--clients", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--rows", type=int, default=32, help="of a request; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=3.0, help="per turn; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--max-rows", type=int, default=1, help="of the servers: %(default)s")
    parser.add_argument("--native", metavar="LIBRARY", help="ops for the same models served in C")
    tolerance = "what floats may differ by, as in `fusion verify`; default: %(default)s, the bits"
    parser.add_argument("--tolerance", type=float, default=0.0, help=tolerance)
    options = vars(parser.parse_args())
    try:
        loads = measure(**options)
    except Exception as error:
        print(f"load_test: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    count = sum(len(load.milliseconds) for load in loads)
    together = f"up to {options['max_rows']} rows together" if options["max_rows"] > 1 else "alone"
    print(f"{options['clients']} clients, {options['rows']} rows a request, computed {together}")
    print(*table(loads, options["rows"]), sep="\n")
    share = options["tolerance"]
    equal = f"equal within {share:g} of the largest" if share else "equal to the bit"
    print(f"{count:,} calls in {options['rounds']} rounds; all answers compared, {equal}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
