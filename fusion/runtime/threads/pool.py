"""The pool of threads that help kernels, one in a process; `jobs` has their code.

They are started when the first kernel that may use them is made. A child of a fork has none until
such a kernel is made in it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import threading

import tensorflow as tf

from fusion.runtime.native import objects
from fusion.runtime.native.compiler import Compilation
from fusion.runtime.native.compiling.background import background_compiler
from fusion.runtime.native.objects import Recipe
from fusion.runtime.process import keep_forever, single
from fusion.runtime.tensorflow.instances import instances
from fusion.runtime.tensorflow.private import BaseSession
from fusion.runtime.threads.layout import THREADS_VARIABLE, Pool

_logger = logging.getLogger("fusion")


class _Pool:
    """The memory of the pool, and the start of its threads."""

    def __init__(self) -> None:
        self.words = (ctypes.c_int64 * Pool.SIZE)()
        keep_forever(self.words)
        self.renew_lock()
        os.register_at_fork(after_in_child=self.forget_threads)

    def renew_lock(self) -> None:
        self.lock = threading.Lock()

    def forget_threads(self) -> None:
        self.renew_lock()
        ctypes.memset(self.words, 0, ctypes.sizeof(self.words))

    def start(self, helpers: int, address: int) -> None:
        """Starts threads that run the function at an address."""
        libc = ctypes.CDLL(None)
        ctypes.memset(self.words, 0, ctypes.sizeof(self.words))
        libc.sem_init(self.words, 0, 0)
        serve = ctypes.c_void_p(address)
        pool = ctypes.c_void_p(ctypes.addressof(self.words))
        started = 0
        for _ in range(helpers):
            handle = ctypes.c_uint64()
            if libc.pthread_create(ctypes.byref(handle), None, serve, pool) != 0:
                break
            libc.pthread_detach(handle)
            started += 1
        self.words[Pool.thread_count] = started


_pool = single("threads", _Pool)
_sessions = instances(BaseSession)


def pool_address() -> int:
    """The address of the pool; its threads help kernels once it is ready."""
    return ctypes.addressof(_pool.words)


def is_ready() -> bool:
    """Whether the pool has all its threads in this process."""
    return bool(_pool.words[Pool.is_ready])


def start_pool() -> None:
    """Starts all threads of the pool; none if one thread may work on an op."""
    helpers = thread_count() - 1
    if helpers + 1 >= len(os.sched_getaffinity(0)):  # else a quota leaves fewer processors
        background_compiler().begin()
    address = serve_address() if helpers > 0 else 0
    with _pool.lock:
        if not _pool.words[Pool.is_ready]:
            if helpers > 0:
                _pool.start(helpers, address)
            _pool.words[Pool.is_ready] = 1


def thread_count() -> int:
    """How many threads may work on one op."""
    count = ctypes.c_int64()
    with objects.loading():
        address = counter_address()
    write_count = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(address)
    write_count(tensorflow_threads(), ctypes.addressof(count))
    return count.value


def tensorflow_threads() -> int:
    """The number that TensorFlow's API was given for its own threads within an op, 0 for none.

    That is tf.config's, or the minimum over the ConfigProtos of the v1 Sessions in use that were
    made since this module was imported.
    """
    chosen: int = tf.config.threading.get_intra_op_parallelism_threads()
    return chosen or min(filter(None, map(_session_threads, _sessions.living())), default=0)


def _session_threads(session: BaseSession) -> int:
    config = getattr(session, "_config", None)  # one that is being made, or could not be
    return 0 if config is None else max(config.intra_op_parallelism_threads, 0)


def warn_of_setting() -> None:
    """Logs a warning if `FUSION_NUM_THREADS` is not a positive number."""
    setting = os.environ.get(THREADS_VARIABLE)
    if setting is not None and not re.fullmatch("0*[1-9][0-9]*", setting):
        _logger.warning(
            "%s is %r, which is not a positive number, and ignored: there are as many threads as "
            "without it",
            THREADS_VARIABLE,
            setting,
        )


def counter_address() -> int:
    """The address of the function that computes the number of threads."""
    return objects.recipe_address(*thread_count_recipe())


def thread_count_recipe() -> tuple[str, Recipe]:
    """The name of the function that computes the number of threads, and how it is made."""
    module, name = "fusion.runtime.threads.native_start", "write_thread_count"
    return "thread_count", Recipe(Compilation(module, name, 2, "thread_count"))


def serve_address() -> int:
    """The address of the function of a thread of the pool."""
    return objects.recipe_address(*serve_recipe())


def serve_recipe() -> tuple[str, Recipe]:
    """The name of the function of a thread of the pool, and how it is made."""
    return "serve", Recipe(Compilation("fusion.runtime.threads.jobs", "serve", 1, "serve"))


def forget_recipe() -> tuple[str, Recipe]:
    """The name of the function that resets a library's pool after a fork, and how it is made."""
    module, name = "fusion.runtime.threads.native_start", "forget_threads"
    return name, Recipe(Compilation(module, name, 1, name))
