"""What needs processes of its own.

The optimizer is registered once per process, come what may: a second time would abort it. And
threads do not lock each other out.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import zygote

ROOT = Path(__file__).parents[2]

HEAD = """
import importlib, sys, threading
import tensorflow as tf
import fusion
from fusion.runtime.optimizer import plugin as optimizer_plugin
from tests.grappler.lookups import is_fused
"""

MANY_TIMES = """
start = threading.Barrier(16)

def enable():
    start.wait()
    fusion.enable()

threads = [threading.Thread(target=enable) for _ in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert is_fused()
fusion.disable()

from fusion.running import grappler
importlib.reload(optimizer_plugin)
importlib.reload(grappler)
importlib.reload(fusion)
assert not is_fused()
fusion.enable()
assert is_fused()
seen = fusion.stats().graphs_seen
assert seen > 0

first = fusion
for name in [name for name in sys.modules if name.split(".")[0] == "fusion"]:
    del sys.modules[name]
import fusion
assert fusion is not first
assert fusion.stats().enabled
assert fusion.stats().graphs_seen == seen
fusion.enable()
assert is_fused()
first.disable()
assert not is_fused()
with fusion.fused(), first.fused():
    assert is_fused()
assert not is_fused()
"""

REFUSED = """
def refused(kind):
    try:
        fusion.enable()
    except kind as error:
        assert not fusion.stats().enabled
        return str(error)
    raise AssertionError(f"no {kind.__name__}")

item_symbols, path = optimizer_plugin._ITEM_SYMBOLS, optimizer_plugin.library.whole_path()
optimizer_plugin._ITEM_SYMBOLS = (*item_symbols, "TF_NoSuchFunction")
assert "TF_NoSuchFunction" in refused(tf.errors.UnimplementedError)
optimizer_plugin._ITEM_SYMBOLS = item_symbols

other = path.with_name("libtensorflow_framework.so.2")
optimizer_plugin.library.whole_path = lambda: other
message = refused(tf.errors.UnimplementedError)
assert tf.__version__ in message and str(other) in message, message
optimizer_plugin.library.whole_path = lambda: path.with_name("nothing.so")
refused(tf.errors.UnimplementedError)
optimizer_plugin.library.whole_path = lambda: path
assert not is_fused()
ids = tf.SparseTensor([[0, 1]], tf.constant([2], tf.int64), [2, 2])
assert fusion.fused_safe_embedding_lookup_sparse(tf.eye(3), ids).shape == [2, 3]

optimizer_plugin._PLUGIN_SYMBOL = "PyInit__ctypes"  # as if it were a library of optimizers
assert "_ctypes" in refused(tf.errors.AlreadyExistsError)
optimizer_plugin._PLUGIN_SYMBOL = "TF_InitGraph"

fusion.enable()
assert is_fused()
"""

REFUSED_BY_TENSORFLOW = """
optimizer_plugin._filled = lambda *_: optimizer_plugin._INIT(
    lambda params, status: optimizer_plugin._set_status(status, 13)
)
for _ in range(2):
    try:
        fusion.enable()
    except tf.errors.UnimplementedError as error:
        assert "refused" in str(error)
        importlib.reload(optimizer_plugin)  # no second attempt
    else:
        raise AssertionError("no UnimplementedError")
assert not is_fused()
"""

IMPORT = """
assert "fusion.running.grappler" not in sys.modules
assert "networkx" not in sys.modules
fusion.stats()
assert not any(name.startswith("_tf_embedding_fusion") and sys.modules[name].__dict__.get(
    "optimizer_plugin") for name in sys.modules)
"""


CODES = {
    "many times": MANY_TIMES,
    "refused": REFUSED,
    "refused by TensorFlow": REFUSED_BY_TENSORFLOW,
    "imported": IMPORT,
}


@pytest.mark.parametrize("name", CODES)
def test_in_a_process_of_its_own(name):
    # What is imported shows in a new Python alone.
    start = subprocess.run if name == "imported" else zygote.run
    run([sys.executable, "-c", HEAD + CODES[name]], start)


@pytest.mark.parametrize(
    "module", [["tests.soak.functions", "--functions", "64"], ["tests.grappler.held_up"]]
)
def test_no_deadlock(module):
    run([sys.executable, "-m", *module])


def run(command, start=zygote.run):
    # A deadlock would otherwise be waited for.
    done = start(
        command,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
