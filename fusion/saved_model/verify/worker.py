"""The process whose children load and run models: `python -m fusion.saved_model.verify.worker`.

Models do not run in the tool's own process, because TensorFlow may crash on a damaged model, and
each has a process of its own, so that nothing of one can reach the other. Those are forked from
one that has imported TensorFlow and used nothing of it, which takes most of the time.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import fusion  # noqa: F401  (registers the ops that a rewritten model uses)
from fusion.saved_model.child import allow_to_reserve, be_a_safe_child, report_error
from fusion.saved_model.errors import reason_of
from fusion.saved_model.inputs.constraints import Array
from fusion.saved_model.inputs.signature import Signature, signatures
from fusion.saved_model.model.meta_graph import used_ops
from fusion.saved_model.model.source import read_saved_model
from fusion.saved_model.verify.batches import Batch, Batches
from fusion.saved_model.verify.job import Job, Run
from fusion.saved_model.verify.observe import observe
from fusion.saved_model.verify.outcome import (
    LOAD_FAILED,
    MESSAGES,
    OS_FAILED,
    Outcome,
    OutcomeWriter,
)
from fusion.saved_model.verify.runner import Runner, loaders
from fusion.saved_model.verify.values import varying_outputs


def main(arguments: Sequence[str]) -> int:
    """Runs the models of a job, one after the other.

    Args:
        arguments: a file descriptor, to write the exit status of each model's process to; the file
            of the job.
    """
    job = Job.read(Path(arguments[2]))
    be_a_safe_child()
    with open(int(arguments[1]), "w") as statuses:
        for run in job.runs:
            child = os.fork()
            if child == 0:
                _run_as_child(job, run)
            _, status = os.waitpid(child, 0)
            print(os.waitstatus_to_exitcode(status), file=statuses, flush=True)
    return 0


def _run_as_child(job: Job, run: Run) -> NoReturn:
    """Runs a model in a forked process and ends it, with all that is printed in a file."""
    status = 1
    try:
        # What ends with the parent is not inherited.
        be_a_safe_child()
        with open(run.directory / MESSAGES, "ab") as messages:
            os.dup2(messages.fileno(), 1)
            os.dup2(messages.fileno(), 2)
        status = _run(job, run)
    except OSError as error:
        status = OS_FAILED + (error.errno or 0)
    except BaseException as error:
        report_error(error)
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _run(job: Job, run: Run) -> int:
    """Runs the signatures of a model on the batches; returns the exit status."""
    batches = Batches(job)
    proto = read_saved_model(run.model).proto
    allow_to_reserve({op for meta in proto.meta_graphs for op in used_ops(meta)})
    # What one of two models is not meant for is no difference of the two.
    others = [loaders(read_saved_model(one.model).proto) for one in job.runs]
    ways = {k: load for k, load in loaders(proto).items() if all(k in other for other in others)}
    writer = OutcomeWriter(run.directory)
    try:
        for tags in batches.tags:
            meta = next(m for m in proto.meta_graphs if tuple(m.meta_info_def.tags) == tags)
            if job.only is not None:
                _look_inside(job.only, run, proto, signatures(meta), batches, writer)
                continue
            for name, load in ways.items():
                try:
                    runner = load(run.model, tags)
                except Exception as error:  # whatever TensorFlow raises, it is the answer
                    report_error(error)
                    return LOAD_FAILED
                with contextlib.closing(runner):
                    _run_signatures(name, runner, signatures(meta), job, batches, writer)
                del runner
                gc.collect()
    finally:
        writer.close()
    return 0


def _run_signatures(
    loader: str,
    runner: Runner,
    all_signatures: Sequence[Signature],
    job: Job,
    batches: Batches,
    writer: OutcomeWriter,
) -> None:
    """Runs all signatures, and what there is of those in which a request has one row."""
    known = {signature.name: signature for signature in all_signatures}
    checks = {check.name: check for check in job.requests}
    for name, signature in known.items():
        if name not in checks:
            _run_all(loader, runner, signature, signature.title, batches.of(signature), writer)
    for name, check in checks.items():
        if (original := known.get(check.of)) is not None:
            own = known.get(name)
            drawn = batches.requests(check, original, are_repeated=own is None)
            title = replace(original, name=name).title
            _run_all(loader, runner, own or original, title, drawn, writer)


def _run_all(
    loader: str,
    runner: Runner,
    signature: Signature,
    title: str,
    drawn: Iterable[Batch],
    writer: OutcomeWriter,
) -> None:
    for batch in drawn:
        outcome = Outcome(
            loader,
            title,
            batch.name,
            may_raise=batch.may_raise,
            violation=batch.violation,
        )
        if isinstance(batch.inputs, str):
            writer.write(replace(outcome, error="Unsupported", message=batch.inputs), {})
        else:
            _run_once(outcome, runner, signature, batch.inputs, writer)


def _run_once(
    outcome: Outcome,
    runner: Runner,
    signature: Signature,
    inputs: dict[str, Array],
    writer: OutcomeWriter,
) -> None:
    """Runs a case, once more to see which outputs vary by themselves, and writes the outcome."""
    try:
        first = runner.run(signature, inputs)
        second = runner.run(signature, inputs)
    except Exception as error:  # both models must fail alike, whatever they raise
        writer.write(replace(outcome, error=type(error).__name__, message=reason_of(error)), {})
        return
    varying = varying_outputs(first, second)
    writer.write(replace(outcome, outputs=tuple(first), varying=varying), first)


def _look_inside(
    only: tuple[str, str],
    run: Run,
    proto: saved_model_pb2.SavedModel,
    all_signatures: Sequence[Signature],
    batches: Batches,
    writer: OutcomeWriter,
) -> None:
    """Writes what the observed tensors were, as `number/time/value` and `number/time/widths`."""
    title, chosen = only
    for signature in all_signatures:
        for case, inputs, *_ in batches.of(signature) if signature.title == title else ():
            if case != chosen or isinstance(inputs, str):
                continue
            try:
                sights = observe(run.model, proto, signature, inputs, run.observed, run.directory)
            except Exception as error:  # whatever TensorFlow raises over a graph with PyFuncs
                why = type(error).__name__
                failed = Outcome("session", title, case, error=why, message=reason_of(error))
                writer.write(failed, {})
                return
            values: dict[str, Array] = {}
            for time, sight in enumerate(sights):
                values[f"{sight.number}/{time}/value"] = sight.value
                values[f"{sight.number}/{time}/widths"] = sight.widths
            writer.write(Outcome("session", title, case, outputs=tuple(values)), values)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    tf.get_logger().setLevel("ERROR")
    sys.exit(main(sys.argv))
