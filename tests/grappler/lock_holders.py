"""Keeps Python's lock while graphs are optimized: `python -m tests.grappler.lock_holders NAME`.

TensorFlow does so by itself in most of these calls: it waits with the lock (the GIL) in its hands
for threads of its own, which optimize graphs and make kernels.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partialmethod
from typing import Any

import numpy as np
import tensorflow as tf

import fusion
from fusion.running import grappler
from fusion.runtime.registration import op_kernels
from fusion.runtime.registration.creation import KernelsRecord, ServerRecord
from fusion.runtime.upcalls import service
from tests.grappler.lookups import TABLE, expected, ids, look_up, new_function

#: Seconds after which nothing goes on any more, and the stacks of all threads are printed.
DEADLINE = 240

_DENSE = np.ones([4, 2], np.float32)


@contextlib.contextmanager
def _enabled() -> Iterator[None]:
    fusion.enable()
    yield
    fusion.disable()


@contextlib.contextmanager
def _disabled() -> Iterator[None]:
    fusion.enable()
    fusion.disable()
    yield


@contextlib.contextmanager
def _behind_a_scope() -> Iterator[None]:
    with fusion.fused():
        pass
    yield


MODES = (_enabled, _disabled, _behind_a_scope, fusion.fused)


def _saved(signature: list[tf.TensorSpec], function: Callable[..., Any], table: Any) -> str:
    """A SavedModel of a function of a variable."""
    module, path = tf.Module(), tempfile.mkdtemp()
    module.table = tf.Variable(table)
    module.run = tf.function(lambda *args: {"y": function(module.table, *args)}, signature)
    tf.saved_model.save(module, path, signatures=module.run.get_concrete_function())
    return path


def _dense_model() -> str:
    return _saved([tf.TensorSpec([None, 4])], lambda table, x: tf.nn.relu(x @ table) + 1.0, _DENSE)


def _lookup_model() -> str:
    signature = [
        tf.TensorSpec([None, 2], tf.int64),
        tf.TensorSpec([None], tf.int64),
        tf.TensorSpec([2], tf.int64),
    ]
    return _saved(signature, lambda table, *args: look_up(table, tf.SparseTensor(*args)), TABLE)


def saved_model() -> None:
    assert tf.lite.TFLiteConverter.from_saved_model(_dense_model()).convert()


def saved_model_with_lookups() -> None:
    converter = tf.lite.TFLiteConverter.from_saved_model(_lookup_model())
    ops = tf.lite.OpsSet
    converter.target_spec.supported_ops = [ops.TFLITE_BUILTINS, ops.SELECT_TF_OPS]
    assert converter.convert()


def _layers(keras: Any) -> Any:
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])


def keras_3_model() -> None:
    assert tf.lite.TFLiteConverter.from_keras_model(_layers(tf.keras)).convert()


def tf_keras_model() -> None:
    import tf_keras

    assert tf.lite.TFLiteConverter.from_keras_model(_layers(tf_keras)).convert()


def export_to_litert() -> None:
    model = _layers(tf.keras)
    try:
        model.export(tempfile.mkdtemp() + "/model.tflite", format="litert")
    except ValueError as error:
        if "format" not in str(error):  # which a Keras of before does not know
            raise


def quantize_saved_model() -> None:
    quantization = tf.quantization.experimental
    options = quantization.QuantizationOptions(
        signature_keys=["serving_default"],
        tags={"serve"},
        quantization_method=quantization.QuantizationMethod(
            preset_method="METHOD_DYNAMIC_RANGE_INT8"
        ),
    )
    quantization.quantize_saved_model(
        _dense_model(), tempfile.mkdtemp(), options, overwrite_output_directory=True
    )


def _dlpack(tensor: tf.Tensor) -> Any:
    """The value of a tensor that may be pending, which is waited for with the lock."""
    return tf.experimental.dlpack.from_dlpack(tf.experimental.dlpack.to_dlpack(tensor)).numpy()


@contextlib.contextmanager
def _asynchronous() -> Iterator[None]:
    tf.config.experimental.set_synchronous_execution(False)
    yield
    tf.config.experimental.set_synchronous_execution(True)


def _called_by_an_executor(function: Any) -> Any:
    """A function that calls another one, which TensorFlow optimizes when the call is run."""
    inner = tf.function(function, experimental_attributes={"_noinline": True})
    return tf.function(lambda *args: inner(*args) + 0.0)


def dlpack() -> None:
    x = tf.constant(_DENSE)
    for _ in range(5):
        function = _called_by_an_executor(lambda x: tf.nn.relu(x @ tf.transpose(x)) + 1.0)
        function.get_concrete_function(x)
        with _asynchronous():
            np.testing.assert_array_equal(_dlpack(function(x)), np.full([4, 4], 3.0))


def dlpack_of_lookups() -> None:
    """Whoever has the lock first: what is fused needs no lock to run, the rest is stock."""
    one = ids()
    for nested in (False, True):
        function = new_function()
        if nested:
            function = _called_by_an_executor(function.python_function)
        function.get_concrete_function(one)
        with _asynchronous():
            np.testing.assert_array_equal(_dlpack(function(one)), expected())


def in_each_mode(program: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        for mode in MODES:
            with mode():
                program()
        assert fusion.stats().failures == 0, fusion.stats()

    return run


def _keep_lock_until_abandoned(request: service.Request, wait: Callable[[], Any]) -> None:
    """Waits with the lock by what `wait` does in between."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e4)
    while not request.is_abandoned:
        wait()
    sys.setswitchinterval(interval)


def _sleep() -> None:
    """For a hundredth of a second, with the lock."""
    ctypes.PyDLL(None).usleep(10_000)


def _spin() -> None:
    """Not at all: time without the lock counts less while the process computes."""


class _Stopped:
    """Stops a function on its first call, until this thread has kept the lock for too long."""

    def __init__(self, function: Callable[..., Any], request_of: Callable[..., Any]) -> None:
        self.function, self.request_of = function, request_of
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.calls = 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        if self.calls == 1:
            self.request = self.request_of(*args)
            self.inside.set()
            self.go_on.wait()
        return self.function(*args)

    def run(self, work: Callable[[], Any], wait: Callable[[], Any]) -> list[Any]:
        """What `work` returns, or raises; the lock is kept by waiting so."""
        results: list[Any] = []

        def work_and_note() -> None:
            try:
                results.append(work())
            except tf.errors.OpError as error:
                results.append(error)

        thread = threading.Thread(target=work_and_note)
        thread.start()
        self.inside.wait()
        _keep_lock_until_abandoned(self.request, wait)
        thread.join()
        return results


def lock_lost_in_the_pass() -> None:
    """The pass has begun when another thread takes the lock, and keeps it."""
    records: list[logging.LogRecord] = []
    logged = threading.Event()

    def note(record: logging.LogRecord) -> None:
        records.append(record)
        logged.set()

    handler = logging.Handler()
    handler.emit = note  # type: ignore[method-assign]
    logging.getLogger("fusion").addHandler(handler)
    fuse = grappler._fuse
    stopped = grappler._fuse = _Stopped(fuse, lambda item: item._request)  # type: ignore[assignment]
    fusion.enable()
    one, function = ids(), new_function()
    (output,) = stopped.run(lambda: function(one), _sleep)
    np.testing.assert_array_equal(output, expected())
    stats = fusion.stats()
    assert stats.timeouts == 1, stats
    assert stats.to_dict()["timeouts"] == 1
    assert "1 timeout" in str(stats)
    # TensorFlow shows each graph twice, and the lock was free again.
    assert stats.columns_fused == 1
    report = stats.last_report
    stopped.go_on.set()
    logged.wait()
    # What comes too late does not count.
    assert "(the GIL)" in records[0].getMessage()
    assert stopped.calls == 2
    assert fusion.stats().columns_fused == 1
    assert fusion.stats().last_report == report
    assert fusion.stats().failures == 0
    assert len(records) == 1, records


def busy_for_long() -> None:
    """A pass that takes its time is waited for, as long as others get the lock."""
    fuse = grappler._fuse
    done = threading.Event()

    def take_long(item: Any, *args: Any, **kwargs: Any) -> Any:
        # Three times as long as a pass without the lock would have.
        done.wait(3.0)
        done.set()  # once: TensorFlow shows each graph twice
        return fuse(item, *args, **kwargs)

    grappler._fuse = take_long
    with fusion.fused():
        np.testing.assert_array_equal(new_function()(ids()), expected())
    assert fusion.stats().columns_fused == 1
    assert fusion.stats().timeouts == 0


def hardly_any_processor() -> None:
    """A process that waits for a processor does nothing either, and nobody keeps its lock."""
    with fusion.fused():
        new_function()(ids())  # threads and kernels are there
    before = fusion.stats().columns_fused
    processor = {min(os.sched_getaffinity(0))}
    spin = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(spin) for _ in range(3)]
    end = threading.Event()

    def compute() -> None:
        while not end.is_set():
            sum(range(100))

    threads = [threading.Thread(target=compute) for _ in range(2)]
    try:
        for thread in threads:
            thread.start()
        for other in others:
            os.sched_setaffinity(other.pid, processor)
        for number in map(int, os.listdir("/proc/self/task")):
            os.sched_setaffinity(number, processor)
            os.setpriority(os.PRIO_PROCESS, number, 19)
        with fusion.fused():
            np.testing.assert_array_equal(new_function()(ids()), expected())
    finally:
        end.set()
        for other in others:
            other.kill()
            other.wait()
    assert fusion.stats().columns_fused == before + 1
    assert fusion.stats().timeouts == 0


def kernel_without_the_lock() -> None:
    """A node of a fused op fails where nobody can make its kernel, and says so."""
    for kernels in op_kernels._kernels.values():
        server = kernels.words[KernelsRecord.server]
        ctypes.c_int64.from_address(server + 8 * ServerRecord.patience_ns).value = 100_000_000
    table, one = tf.Variable(TABLE), ids()
    function = tf.function(
        lambda one: fusion.fused_safe_embedding_lookup_sparse(table, one, combiner="mean")
    )
    function.get_concrete_function(one)
    serve = op_kernels.Kernels.serve
    stopped = _Stopped(serve, lambda self, request: request)
    op_kernels.Kernels.serve = partialmethod(stopped)  # type: ignore[assignment]
    (error,) = stopped.run(lambda: function(one), _spin)
    if not isinstance(error, tf.errors.DeadlineExceededError):
        raise AssertionError(repr(error))
    for text in ("PruneInvalidAndFillEmptyRows: no kernel", "(the GIL)"):
        if text not in str(error):
            raise AssertionError(error)
    stopped.go_on.set()
    np.testing.assert_array_equal(function(one), expected())


def exit_with_work_pending() -> None:
    fusion.enable()
    one = ids()
    tf.config.experimental.set_synchronous_execution(False)
    for _ in range(20):
        new_function()(one)
    print("the end")


IN_EACH_MODE = (
    saved_model,
    saved_model_with_lookups,
    keras_3_model,
    tf_keras_model,
    export_to_litert,
    quantize_saved_model,
    dlpack,
    dlpack_of_lookups,
)

PROGRAMS = {
    **{program.__name__: in_each_mode(program) for program in IN_EACH_MODE},
    **{
        program.__name__: program
        for program in (
            lock_lost_in_the_pass,
            busy_for_long,
            hardly_any_processor,
            kernel_without_the_lock,
            exit_with_work_pending,
        )
    },
}

if __name__ == "__main__":
    faulthandler.dump_traceback_later(DEADLINE, exit=True)
    PROGRAMS[sys.argv[1]]()
