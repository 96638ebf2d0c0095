"""Children of a fork that call TensorFlow after their parent did: they may wait forever.

The threads that run ops are the parent's alone. That is so with stock TensorFlow, which says
nothing about it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from pathlib import Path
from typing import Any

from fusion.runtime.process import single
from fusion.runtime.tensorflow.private import pywrap_tf_session, pywrap_tfe

MESSAGE = (
    "fusion: process {pid} was forked from one in which TensorFlow had run. The threads that run "
    "ops are only in that one, so that this call may wait forever. Use TensorFlow after forks "
    "alone, or start processes by spawn; see docs/forks.md\n"
)

#: What runs ops: eagerly, in functions, in Sessions.
_CALLS = (
    (pywrap_tfe, "TFE_Py_FastPathExecute"),
    (pywrap_tfe, "TFE_Py_Execute"),
    (pywrap_tf_session, "TF_SessionRun_wrapper"),
    (pywrap_tf_session, "TF_SessionRunCallable"),
)


#: Linux's name of the threads that run ops.
_THREAD = "tf_Compute"


class _Forks:
    """The forks of a process."""

    def __init__(self) -> None:
        self._has_threads = False
        os.register_at_fork(before=self._before, after_in_child=self._in_child)

    def _before(self) -> None:
        with contextlib.suppress(OSError):  # a thread that ends meanwhile
            names = Path("/proc/self/task").glob("*/comm")
            self._has_threads = any(name.read_text().strip() == _THREAD for name in names)

    def _in_child(self) -> None:
        if self._has_threads:
            _warn_at_next_call()


def _warn_at_next_call() -> None:
    """Has the next call of TensorFlow say what may become of it."""
    originals = [(module, name, getattr(module, name)) for module, name in _CALLS]

    def warn_once() -> None:
        for module, name, original in originals:
            setattr(module, name, original)
        sys.stderr.write(MESSAGE.format(pid=os.getpid()))
        sys.stderr.flush()

    for module, name, original in originals:

        @functools.wraps(original)
        def warned(*args: Any, _call: Any = original, **named: Any) -> Any:
            warn_once()
            return _call(*args, **named)

        setattr(module, name, warned)


def warn_children() -> None:
    """Watches the forks of this process from now on."""
    single("forks", _Forks)
