"""Running models in processes of their own, which may crash or never end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

from fusion.runtime.registration.library.chosen import LIBRARY_VARIABLE
from fusion.saved_model.child import child_environment, child_process, error_text
from fusion.saved_model.errors import CannotRun, ModelError
from fusion.saved_model.verify.job import Job
from fusion.saved_model.verify.outcome import LOAD_FAILED, MESSAGES, OS_FAILED

_JOB_FILE = "job.json"
_WORKER = "fusion.saved_model.verify.worker"


def run_models(job: Job, timeout: float) -> None:
    """Runs the models of a job; its directories must not exist.

    Args:
        job: the models.
        timeout: seconds for each of them.

    Raises:
        CannotRun: a model cannot be loaded, or its process crashed.
        ModelError: it took too long.
    """
    for run in job.runs:
        run.directory.mkdir()
        (run.directory / MESSAGES).touch()
    first = job.runs[0].directory
    job.write(first / _JOB_FILE)
    read_end, write_end = os.pipe()
    with contextlib.ExitStack() as stack:
        statuses = stack.enter_context(open(read_end, "rb", buffering=0))
        with open(write_end, "wb"), open(first / MESSAGES, "ab") as messages:
            start = partial(
                subprocess.Popen,
                [sys.executable, "-m", _WORKER, str(write_end), str(first / _JOB_FILE)],
                stdin=subprocess.DEVNULL,
                stdout=messages,
                stderr=messages,
                cwd=first,
                env=_environment(job, first.parent),
                pass_fds=[write_end],
                start_new_session=True,
            )
            worker = stack.enter_context(child_process(start))
        for run in job.runs:
            if not select.select([statuses], [], [], timeout)[0]:
                raise ModelError(
                    f"cannot verify: {run.model} took more than {timeout:.0f} s; "
                    "--timeout (timeout=) allows for more"
                )
            line = statuses.readline()
            # The end of the file: the worker itself has ended, and said why in its own.
            status = int(line) if line else worker.wait() or 1
            folder = run.directory if line else first
            _raise_unless_run(run.model, status, folder / MESSAGES)


def _environment(job: Job, scratch: Path) -> dict[str, str]:
    chosen = {} if job.library is None else {LIBRARY_VARIABLE: str(job.library.absolute())}
    return child_environment(scratch) | chosen


def _raise_unless_run(model: Path, status: int, messages: Path) -> None:
    if status < 0:
        name = signal.Signals(-status).name
        text = f"cannot verify: TensorFlow crashed ({name}) while running {model}"
        raise CannotRun(model, text)
    if status == LOAD_FAILED:
        raise CannotRun(model, f"cannot verify: {model} cannot be loaded: {error_text(messages)}")
    if status > OS_FAILED:
        why = os.strerror(status - OS_FAILED).lower()
        raise ModelError(f"cannot verify: running {model} failed: {why}")
    if status:
        raise ModelError(f"cannot verify: running {model} failed: {error_text(messages)}")
