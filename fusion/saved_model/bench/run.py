"""`bench_models`: how long the calls of a model take, or those of two side by side."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fusion.saved_model.bench.feeds import read_feeds
from fusion.saved_model.bench.report import BenchReport
from fusion.saved_model.bench.requests import (
    check_requests,
    original_of,
    read_rows,
    request_signatures,
)
from fusion.saved_model.bench.selection import check_same_interface, choose_signature
from fusion.saved_model.child import child_environment, child_process, error_text
from fusion.saved_model.errors import ModelError, VerificationError
from fusion.saved_model.model.source import read_saved_model
from fusion.saved_model.verify import DEFAULT_BATCH_SIZE, DEFAULT_TIMEOUT

DEFAULT_BATCHES = (1, 64, 512, 4096)
DEFAULT_SECONDS = 2.0

_WORKER = "fusion.saved_model.bench.worker"
_WAYS = 2


@dataclass(frozen=True)
class BenchRequest:
    """What is to be measured, on its way to the process that does it.

    Attributes:
        models: the paths of one or two models.
        tags, signature: the signature's, for each model.
        batches: examples per call.
        clients: numbers of threads that call.
        seconds: for how long each model is called under each load.
        inputs: a file with the inputs, instead of generated ones of those batch sizes.
        batch_size: how many Examples of a TFRecord file of inputs are a batch.
        tolerance: see `compare_models`.
        threads: of each of TensorFlow's pools; None for as many as there are processors.
        requests: numbers of requests and of candidates of each, in place of `batches`; the second
            model is called with each request once.
    """

    models: tuple[str, ...]
    tags: tuple[str, ...]
    signature: str
    batches: tuple[int, ...]
    clients: tuple[int, ...]
    seconds: float
    inputs: str | None
    batch_size: int
    tolerance: float
    threads: int | None
    requests: tuple[tuple[int, int], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, ready for JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(plain: dict[str, Any]) -> BenchRequest:
        """Returns the request that gave `plain`, also after its way through JSON."""
        tuples = {key: tuple(value) for key, value in plain.items() if isinstance(value, list)}
        tuples["requests"] = tuple((count, each) for count, each in plain["requests"])
        return BenchRequest(**{**plain, **tuples})


def bench_models(
    model: str | os.PathLike[str],
    other: str | os.PathLike[str] | None = None,
    *,
    batches: Sequence[int] = DEFAULT_BATCHES,
    clients: Sequence[int] = (1,),
    signature: str | None = None,
    tags: Sequence[str] | None = None,
    seconds: float = DEFAULT_SECONDS,
    inputs: str | os.PathLike[str] | None = None,
    batch_size: int = DEFAULT_BATCH_SIZE,
    tolerance: float = 0.0,
    threads: int | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    progress: Callable[[str], None] | None = None,
    requests: Sequence[tuple[int, int]] = (),
) -> BenchReport:
    """Measures latency and throughput of a signature, in the graph and end to end.

    Everything runs in one child process, on the CPU. Two models take turns there under each load,
    after their outputs were compared. fusion's rewriting inside TensorFlow is off in it: each model
    runs as its file has it.

    Args:
        model: a SavedModel; its graph says what inputs make sense.
        other: a second one with the same inputs and outputs.
        batches: examples per call, each at least 1.
        clients: numbers of threads that call at the same time, each at least 1.
        signature: its name; "serving_default" by default, or the only one.
        tags: of its meta graph; "serve" by default, or those of the only one.
        seconds: for how long each model is called under each load (way, batch, clients).
        inputs: a file of recorded inputs, see `compare_models`, of which the first batch is used,
            instead of generated inputs of the sizes in `batches`.
        batch_size: how many Examples of a TFRecord file of inputs are a batch.
        tolerance: by how much the outputs of two models may differ, see `compare_models`.
        threads: of each of TensorFlow's pools and of fusion's; by default as many as there are
            processors.
        timeout: seconds that all the rest may take, beside the measuring.
        progress: is called with what is being done.
        requests: pairs of a number of requests and of the candidates of each, in place of
            `batches`. The model is called with a row of its request for each candidate, and `other`
            by the signatures that `fuse_saved_model` with `request_inputs` has added to it: by
            NAME_request with one request, by NAME_requests with several; without `other`, the model
            itself. Their outputs may differ by `REQUEST_ROUNDING`.

    Returns:
        The measurements, and of two models the second one's throughput over the first's.

    Raises:
        ModelError: a model, a signature or the inputs cannot be used; two models have other
            inputs or outputs, or give other values (`VerificationError`); a model has no signature
            for requests; the process crashed or took too long.
        ValueError: an argument is out of its range.
    """
    _check(batches, clients, seconds, tolerance, threads)
    check_requests(requests)
    sources = [read_saved_model(path) for path in (model, other) if path is not None]
    if requests and len(sources) == 1:
        sources *= 2
    signature = original_of(sources[1]) if requests and signature is None else signature
    chosen = choose_signature(sources[0], tags, signature)
    for source in sources[1:]:
        check_same_interface(chosen, choose_signature(source, chosen.tags, chosen.name), source)
    if requests:
        request_signatures(sources[1], chosen, requests)
        if inputs is not None:
            read_rows(inputs, sources[0], chosen, requests, batch_size)
    elif inputs is not None:
        batches = tuple(read_feeds(inputs, sources[0], chosen, batch_size))
    request = BenchRequest(
        models=tuple(str(source.path) for source in sources),
        tags=chosen.tags,
        signature=chosen.name,
        batches=tuple(batches),
        clients=tuple(clients),
        seconds=seconds,
        inputs=None if inputs is None else os.path.abspath(inputs),
        batch_size=batch_size,
        tolerance=tolerance,
        threads=threads,
        requests=tuple(requests),
    )
    loads = _WAYS * len(request.requests or request.batches) * len(request.clients)
    limit = timeout + 2 * seconds * loads * len(sources)
    return _in_a_child(request, limit, progress or (lambda line: None))


def _check(
    batches: Sequence[int],
    clients: Sequence[int],
    seconds: float,
    tolerance: float,
    threads: int | None,
) -> None:
    for name, numbers in (("batches", batches), ("clients", clients)):
        if not numbers or any(number < 1 for number in numbers):
            raise ValueError(f"{name} must be one or more numbers from 1 on, got {list(numbers)}")
    if not seconds > 0:
        raise ValueError(f"seconds must be greater than 0, got {seconds}")
    if not tolerance >= 0:
        raise ValueError(f"tolerance must not be less than 0, got {tolerance}")
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")


def _in_a_child(
    request: BenchRequest, limit: float, progress: Callable[[str], None]
) -> BenchReport:
    """Lets a process of its own measure; raises ModelError unless it gives a report."""
    with tempfile.TemporaryDirectory(prefix="fusion-bench-") as name:
        folder = Path(name)
        job, result, messages = folder / "request.json", folder / "report.json", folder / "stderr"
        job.write_text(json.dumps(request.to_dict()))
        status, late = _run(job, result, messages, limit, progress)
        what = " and ".join(request.models)
        if late:
            raise ModelError(f"{what}: measuring took more than {limit:.0f} s")
        if status < 0:
            crash = signal.Signals(-status).name
            raise ModelError(f"TensorFlow crashed ({crash}) while running {what}")
        if status:
            error = RuntimeError(messages.read_text(errors="replace").strip())
            raise ModelError(f"measuring {what} failed: {error_text(messages)}") from error
        plain = json.loads(result.read_text())
    if "error" in plain:
        raise (VerificationError if plain["differ"] else ModelError)(plain["error"])
    return BenchReport.from_dict(plain)


def _run(
    job: Path, result: Path, messages: Path, limit: float, progress: Callable[[str], None]
) -> tuple[int, bool]:
    """Runs the worker; returns its exit status, and whether it was stopped for taking too long."""
    with open(messages, "wb") as errors:
        start = partial(
            subprocess.Popen,
            [sys.executable, "-m", _WORKER, str(job), str(result)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=job.parent,
            env=child_environment(job.parent),
            text=True,
            errors="replace",
            start_new_session=True,
        )
        late = threading.Event()
        with child_process(start) as worker:

            def stop() -> None:
                late.set()
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(worker.pid, signal.SIGKILL)

            timer = threading.Timer(limit, stop)
            try:
                timer.start()
                assert worker.stdout is not None
                with worker.stdout as lines:
                    for line in lines:
                        progress(line.strip())
                return worker.wait(), late.is_set()
            finally:
                timer.cancel()
