import ctypes
import resource
import time

import pytest

from fusion.runtime.native import objects, system
from fusion.runtime.native.compiler import compile_object
from fusion.runtime.native.memory import store


@pytest.fixture(scope="module")
def read():
    """A function that reads all three in compiled code."""

    def read_all(out):
        store(out, 0, system.now())
        store(out, 1, system.processor_time())
        store(out, 2, system.preemptions())

    address = objects.load(compile_object(read_all, 1, "read_all"), "read_all")
    compiled = ctypes.CFUNCTYPE(None, ctypes.c_int64)(address)

    def read():
        words = (ctypes.c_int64 * 3)()
        compiled(ctypes.addressof(words))
        return list(words)

    return read


def test_times_go_on(read):
    before, process, _ = read()
    time.sleep(0.01)
    after, process_after, _ = read()
    assert after - before >= 10_000_000
    assert process_after > process


def test_preemptions_are_those_of_the_system(read):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    _, _, found = read()
    assert before <= found <= resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
