"""The process that loads and measures models: `python -m fusion.saved_model.bench.worker`.

TensorFlow may crash on a damaged model, and a measurement should not share a process with anything.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import tensorflow as tf

import fusion  # noqa: F401  (registers the ops that a rewritten model uses)
from fusion.running.process_stats import op_stats
from fusion.runtime.machine import busy_elsewhere, machine
from fusion.saved_model.bench.feeds import Feeds, generated_feeds, read_feeds
from fusion.saved_model.bench.plans import Batch, Plan, bytes_of
from fusion.saved_model.bench.report import BenchReport, Measurement, Ratio
from fusion.saved_model.bench.requests import read_rows, request_plans, rows_of
from fusion.saved_model.bench.run import BenchRequest
from fusion.saved_model.bench.selection import choose_signature
from fusion.saved_model.bench.sides import WAYS, Side
from fusion.saved_model.bench.timing import Load, interleaved, run_clients, spread
from fusion.saved_model.child import allow_to_reserve, be_a_safe_child, report_error
from fusion.saved_model.errors import ModelError, VerificationError, reason_of
from fusion.saved_model.inputs.signature import Signature
from fusion.saved_model.model.meta_graph import used_ops
from fusion.saved_model.model.source import SourceModel, read_saved_model
from fusion.saved_model.verify.compare import compare_outcomes
from fusion.saved_model.verify.outcome import Outcome, OutcomeWriter
from fusion.saved_model.verify.result import Verification
from fusion.saved_model.verify.values import varying_outputs

_ROUNDS = 5
"""The turns in which two models are called under one load; each has this part of the time."""

Progress = Callable[[str], None]


def main(arguments: Sequence[str]) -> int:
    """Measures what a file asks for; says on a line of the output what it is at.

    Args:
        arguments: the file with the request, and where the report goes, or else {"error": why not,
            "differ": whether because the outputs of two models do}.
    """
    be_a_safe_child()
    request = BenchRequest.from_dict(json.loads(Path(arguments[0]).read_text()))
    try:
        result = measure(request, lambda line: print(line, flush=True)).to_dict()
    except ModelError as error:
        result = {"error": str(error), "differ": isinstance(error, VerificationError)}
    except Exception as error:
        report_error(error)
        return 1
    Path(arguments[1]).write_text(json.dumps(result))
    return 0


def measure(request: BenchRequest, progress: Progress) -> BenchReport:
    """Measures models in this process.

    Raises:
        ModelError: a model cannot be loaded or does not run, or the outputs of two differ.
    """
    _limit_threads(request.threads)
    models = [read_saved_model(path) for path in request.models]
    allow_to_reserve(
        {op for model in models for meta in model.meta_graphs for op in used_ops(meta)}
    )
    signatures = [choose_signature(model, request.tags, request.signature) for model in models]
    plans = _plans(request, models, signatures)
    measurements: list[Measurement] = []
    ratios: list[Ratio] = []
    verified: dict[str, None] = {}
    others = busy_elsewhere()
    for way in WAYS:
        for plan in plans:
            with _loaded(way, models, plan.signatures, progress) as sides:
                progress(f"{way}: running once")
                agreement = _verified(way, sides, models, plan, request)
                verified[agreement.summary()] = None
                for loads, new_ratios in _measured(way, sides, plan, request, progress):
                    measurements += loads
                    ratios += new_ratios
    return BenchReport(
        models=request.models,
        signature=signatures[0].title,
        inputs="generated" if request.inputs is None else request.inputs,
        outputs="; ".join(verified) if len(models) > 1 else None,
        seconds=request.seconds,
        machine=machine(),
        busy_elsewhere=others(),
        measurements=tuple(measurements),
        ratios=tuple(ratios),
        request_inputs=plans[0].request_inputs,
    )


def _plans(
    request: BenchRequest, models: Sequence[SourceModel], signatures: Sequence[Signature]
) -> list[Plan]:
    """Returns what is called with what."""
    inputs, (model, signature) = request.inputs, (models[0], signatures[0])
    if request.requests:
        if inputs is None:
            sizes = {rows_of(batch) for batch in request.requests}
            rows = generated_feeds(model, signature, sizes)
        else:
            size = request.batch_size
            rows = read_rows(inputs, model, signature, request.requests, size)
        return request_plans(request.requests, signature, models[1], rows)
    if inputs is None:
        feeds = generated_feeds(model, signature, request.batches)
    else:
        feeds = read_feeds(inputs, model, signature, request.batch_size)
    batches = {Batch(size): [arrays] * len(models) for size, arrays in feeds.items()}
    return [Plan(signatures, batches)]


def _limit_threads(count: int | None) -> None:
    """Gives TensorFlow's pools so many threads, fusion's too, which follows them."""
    if count is None:
        return
    tf.config.threading.set_intra_op_parallelism_threads(count)
    tf.config.threading.set_inter_op_parallelism_threads(count)
    options = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=count, inter_op_parallelism_threads=count
    )
    # The first session of a process makes the pools of all.
    tf.compat.v1.Session(graph=tf.Graph(), config=options).close()


@contextlib.contextmanager
def _loaded(
    way: str, models: Sequence[SourceModel], signatures: Sequence[Signature], progress: Progress
) -> Iterator[list[Side]]:
    """Yields the models loaded for one way of calling them, and frees them."""
    with contextlib.ExitStack() as stack:
        sides: list[Side] = []
        for model, signature in zip(models, signatures, strict=True):
            progress(f"{way}: loading {model.path}")
            try:
                side = WAYS[way](model, signature)
            except Exception as error:  # whatever TensorFlow raises, it is the answer
                raise ModelError(f"{model.path} cannot be loaded: {reason_of(error)}") from error
            stack.callback(side.close)
            sides.append(side)
        yield sides


def _verified(
    way: str,
    sides: Sequence[Side],
    models: Sequence[SourceModel],
    plan: Plan,
    request: BenchRequest,
) -> Verification:
    """Runs each model on all inputs and compares its outputs with the first model's.

    Raises:
        ModelError: a model does not run.
        VerificationError: the outputs differ.
    """
    with tempfile.TemporaryDirectory(prefix="fusion-bench-") as name:
        directories = [Path(name, str(index)) for index in range(len(sides))]
        title = plan.signatures[-1].title
        for index, directory in enumerate(directories):
            directory.mkdir()
            with contextlib.closing(OutcomeWriter(directory)) as writer:
                for batch, arrays in plan.feeds.items():
                    outcome = Outcome(way, title, f"batch {batch}")
                    _run_once(outcome, sides[index], models[index], arrays[index], writer)
        tolerance = max(request.tolerance, plan.rounding)
        result = compare_outcomes([title], directories[0], directories[-1], tolerance)
    if result.differences:
        raise VerificationError(
            f"the outputs of {models[-1].path} differ, nothing measured: {result.summary()}; "
            "--tolerance allows for rounding"
        )
    return result


def _run_once(
    outcome: Outcome, side: Side, model: SourceModel, arrays: Feeds, writer: OutcomeWriter
) -> None:
    """Runs one batch, and once more to see which outputs vary by themselves."""
    try:
        first, second = side.outputs(arrays), side.outputs(arrays)
    except Exception as error:  # whatever TensorFlow raises, it is the answer
        raise ModelError(
            f"{model.path}: signature {outcome.signature!r} does not run on {outcome.case} "
            f"({outcome.loader}): {reason_of(error)}; give inputs that it takes with --inputs"
        ) from error
    varying = varying_outputs(first, second)
    writer.write(replace(outcome, outputs=tuple(first), varying=varying), first)


def _measured(
    way: str,
    sides: Sequence[Side],
    plan: Plan,
    request: BenchRequest,
    progress: Progress,
) -> Iterator[tuple[list[Measurement], list[Ratio]]]:
    """Yields for each load the models' measurements, and of two models their ratio."""
    for batch, arrays in plan.feeds.items():
        pairs_of_both = [*zip(sides, arrays, strict=True)]
        parts = [side.shares(feeds) for side, feeds in pairs_of_both]
        calls = [side.call(feeds) for side, feeds in pairs_of_both]
        for clients in request.clients:
            progress(f"{way}: batch {batch}, {clients} client{'s' * (clients > 1)}")
            runs = {
                model: partial(_round, call, clients, request.seconds / _ROUNDS)
                for model, call in enumerate(calls)
            }
            rounds = interleaved(runs, _ROUNDS)
            loads = [
                _measurement((way, batch.rows, clients, model), rounds[model], parts[model])
                for model in range(len(calls))
            ]
            if batch.requests:
                loads = [_of_requests(load, batch, plan) for load in loads]
            pairs = zip(rounds[0], rounds[1], strict=True) if len(calls) > 1 else ()
            ratios = [b[0].calls_per_s / a[0].calls_per_s for a, b in pairs]
            yield loads, [_ratio(way, batch, clients, ratios)] if ratios else []


def _of_requests(load: Measurement, batch: Batch, plan: Plan) -> Measurement:
    """Returns a measurement with what there is of requests alone."""
    name, size = plan.signatures[load.model].name, bytes_of(plan.feeds[batch][load.model])
    return replace(load, requests=batch.requests, signature=name, input_bytes=size)


def _ratio(way: str, batch: Batch, clients: int, ratios: Sequence[float]) -> Ratio:
    of = spread(ratios)
    load = (way, batch.rows, clients)
    return Ratio(*load, of["median"], of["low"], of["high"], batch.requests)


def _round(call: Callable[[], object], clients: int, seconds: float) -> tuple[Load, float]:
    """Returns what `run_clients` does, and the milliseconds in fused ops of a call."""
    before = sum(op.milliseconds for op in op_stats())
    load = run_clients(call, clients, seconds)
    within = sum(op.milliseconds for op in op_stats()) - before
    return load, within / (len(load.latencies) + 1)  # it makes a call that it does not time


def _measurement(
    what: tuple[str, int, int, int],
    rounds: Sequence[tuple[Load, float]],
    parts: Mapping[str, float],
) -> Measurement:
    way, batch, clients, model = what
    latencies = np.concatenate([load.latencies for load, _ in rounds]) * 1e3
    p50, p90, p99 = (float(latency) for latency in np.percentile(latencies, (50, 90, 99)))
    rate = batch * float(np.mean([load.calls_per_s for load, _ in rounds]))
    within = float(np.mean([milliseconds for _, milliseconds in rounds]))
    share = min(within / float(np.mean(latencies)), 1.0)
    return Measurement(
        way, batch, clients, model, len(latencies), p50, p90, p99, rate, share, parts
    )


if __name__ == "__main__":
    tf.get_logger().setLevel("ERROR")
    sys.exit(main(sys.argv[1:]))
