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
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

import fusion  # noqa: F401  (registers the ops that a rewritten model uses)
from fusion.saved_model.child import be_a_safe_child
from fusion.saved_model.errors import reason_of
from fusion.saved_model.source import SourceModel, read_saved_model
from fusion.saved_model.verify.dataflow import input_meaning
from fusion.saved_model.verify.inputs import CASES, Array, InputGenerator, Unsupported, vocabulary
from fusion.saved_model.verify.outcome import (
    LOAD_FAILED,
    MESSAGES,
    Outcome,
    OutcomeWriter,
    varying_outputs,
)
from fusion.saved_model.verify.runner import Runner, loaders
from fusion.saved_model.verify.signature import Signature, signatures

Feeds = list[tuple[str, dict[str, Array] | str]]


def main(arguments: Sequence[str]) -> int:
    """Runs models, one after the other.

    Args:
        arguments: a file descriptor, to write the exit status of each model's process to; the model
            whose graph says what the inputs mean; then, for each model to run, its path and the
            directory for its outcomes and messages.
    """
    reference, *rest = (Path(argument) for argument in arguments[1:])
    be_a_safe_child()
    with open(int(arguments[0]), "w") as statuses:
        for model, directory in zip(rest[::2], rest[1::2], strict=True):
            child = os.fork()
            if child == 0:
                _run_as_child(reference, model, directory)
            _, status = os.waitpid(child, 0)
            print(os.waitstatus_to_exitcode(status), file=statuses, flush=True)
    return 0


def _run_as_child(reference: Path, model: Path, directory: Path) -> NoReturn:
    """Runs a model in a forked process and ends it, with all that is printed in a file."""
    status = 1
    try:
        # What ends with the parent is not inherited.
        be_a_safe_child()
        with open(directory / MESSAGES, "ab") as messages:
            os.dup2(messages.fileno(), 1)
            os.dup2(messages.fileno(), 2)
        status = _run(reference, model, directory)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _run(reference: Path, model: Path, directory: Path) -> int:
    """Runs every signature of a model on the generated cases; returns the exit status."""
    source = read_saved_model(reference)
    proto = read_saved_model(model).proto
    writer = OutcomeWriter(directory)
    try:
        for meta in source.meta_graphs:
            feeds = _feeds(source, meta)
            mine = next(m for m in proto.meta_graphs if _tags(m) == _tags(meta))
            for name, load in loaders(proto).items():
                try:
                    runner = load(model, _tags(meta))
                except Exception as error:  # whatever TensorFlow raises, it is the answer
                    print(reason_of(error), file=sys.stderr)
                    return LOAD_FAILED
                with contextlib.closing(runner):
                    _run_all(name, runner, signatures(mine), feeds, writer)
                del runner
                gc.collect()
    finally:
        writer.close()
    return 0


def _tags(meta: meta_graph_pb2.MetaGraphDef) -> list[str]:
    return list(meta.meta_info_def.tags)


def _feeds(source: SourceModel, meta: meta_graph_pb2.MetaGraphDef) -> dict[str, Feeds]:
    """Returns for each signature its cases: the name, and the inputs or why there are none."""
    words = vocabulary(source.path, meta.graph_def)
    feeds: dict[str, Feeds] = {}
    for signature in signatures(meta):
        names = {spec.key: spec.tensor for spec in signature.inputs}
        generate = InputGenerator(signature, input_meaning(meta.graph_def, names), words)
        feeds[signature.name] = list(_cases(generate))
    return feeds


def _cases(
    generate: Callable[..., dict[str, Array]],
) -> Iterator[tuple[str, dict[str, Array] | str]]:
    for case in CASES:
        try:
            yield case.name, generate(case)
        except Unsupported as error:
            yield case.name, str(error)


def _run_all(
    loader: str,
    runner: Runner,
    all_signatures: Sequence[Signature],
    feeds: dict[str, Feeds],
    writer: OutcomeWriter,
) -> None:
    for signature in all_signatures:
        for case, inputs in feeds[signature.name]:
            if isinstance(inputs, str):
                outcome = Outcome(loader, signature.title, case, error="Unsupported")
                writer.write(outcome, {})
            else:
                _run_once(loader, runner, signature, case, inputs, writer)


def _run_once(
    loader: str,
    runner: Runner,
    signature: Signature,
    case: str,
    inputs: dict[str, Array],
    writer: OutcomeWriter,
) -> None:
    """Runs a case, once more to see which outputs vary by themselves, and writes the outcome."""
    try:
        first = runner.run(signature, inputs)
        second = runner.run(signature, inputs)
    except Exception as error:  # both models must fail alike, whatever they raise
        failed = Outcome(
            loader, signature.title, case, error=type(error).__name__, message=reason_of(error)
        )
        writer.write(failed, {})
        return
    done = Outcome(
        loader,
        signature.title,
        case,
        outputs=tuple(first),
        varying=varying_outputs(first, second),
    )
    writer.write(done, first)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    tf.get_logger().setLevel("ERROR")
    sys.exit(main(sys.argv[1:]))
