"""Where another library has registered TensorFlow's one graph optimizer for the CPU."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from tests import zygote

ROOT = Path(__file__).parents[2]

#: Loads the library as TensorFlow does those in its folder of plugins.
HEAD = """
import ctypes, sys
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import load_library
import fusion
from fusion.runtime.optimizer import plugin
from tests.grappler import lookups

folder = sys.argv[1]
sys.path.insert(0, folder)
library = f"{folder}/libother.so"
load_library.load_pluggable_device_library(library)
graphs_seen = ctypes.c_int.in_dll(ctypes.CDLL(library), "graphs_seen")
"""

ENABLE = """
def refusal(function, *arguments):
    try:
        function(*arguments)
    except tf.errors.AlreadyExistsError as error:
        return error.message
    raise AssertionError("no AlreadyExistsError")

message = refusal(fusion.enable)
assert f"registered a graph optimizer with TensorFlow: {library} of other 1.2." in message, message
assert "one per device type" in message
for way in (
    "saved_model_load(path)", "fuse_saved_model(", "`fusion rewrite`", "fuse_function(",
    "fuse_graph(", "keras.accelerate(model)", "do_fusion", 'under="rewrite"',
):
    assert way in message, way
    name = way.partition("(")[0]
    assert "(" not in way or eval(f"fusion.{name}"), name
assert refusal(fusion.enable) == refusal(fusion.fused().__enter__) == message
assert not fusion.stats().enabled

function = lookups.new_function()
concrete = function.get_concrete_function(lookups.ids())
assert refusal(fusion.explain, concrete) == message
assert fusion.explain(concrete, under="rewrite").fused_count == 1
np.testing.assert_array_equal(fusion.fuse_function(concrete)(lookups.ids()), lookups.expected())
before = graphs_seen.value
assert not lookups.is_fused(function)
assert graphs_seen.value > before

from fusion.ops.registered import SPECS
from fusion.runtime.doctor import facts
((_, text, is_good),) = (fact for fact in facts(SPECS) if fact[0] == "Grappler plugin symbol")
assert is_good
assert text.startswith(f"present, taken by {library} of other 1.2"), text
"""

LOAD = """
module = tf.Module()
module.table = tf.Variable(lookups.TABLE)
spec = tf.SparseTensorSpec([None, None], tf.int64)
module.look_up = tf.function(
    lambda ids: lookups.look_up(module.table, ids), input_signature=[spec]
)
tf.saved_model.save(module, f"{folder}/model", module.look_up)
for load in (tf.saved_model.load, fusion.saved_model_load):
    loaded = load(f"{folder}/model")
    nodes = loaded.signatures["serving_default"].graph.as_graph_def().library.function
    held = {node.op for function in nodes for node in function.node_def}
    is_fused = load is fusion.saved_model_load
    assert ("FusedEmbeddingLookup" in held) == is_fused, held
    assert lookups.is_fused(loaded.look_up) == is_fused  # runs it, and compares with stock
assert loaded.fusion_report.fused_count == 1
assert graphs_seen.value > 0
"""

KERAS = """
import keras
from tests.keras.models import COLUMNS, assert_same_state, fit, functional

stock, ours = functional(keras.layers.Embedding), functional(keras.layers.Embedding)
assert fusion.keras.accelerate(ours).swapped_count == COLUMNS
assert fit(stock, "adagrad") == fit(ours, "adagrad")
assert_same_state(stock, ours)
assert graphs_seen.value > 0
"""

#: The first words of a command that compiles C.
COMPILER = ["cc"] if shutil.which("cc") else [sys.executable, "-m", "ziglang", "cc"]

#: What `enable` keeps from happening.
FORCED = """
plugin.other_plugins = lambda: []
fusion.enable()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, as a package has installed it."""
    folder = tmp_path_factory.mktemp("site")
    source, library = Path(__file__).with_name("other_plugin.c"), folder / "libother.so"
    include = f"-I{tf.sysconfig.get_include()}"
    command = [*COMPILER, "-shared", "-fPIC", "-w", include, str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    installed = folder / "other-1.2.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.2\n")
    (installed / "RECORD").write_text("libother.so,,\nother-1.2.dist-info/METADATA,,\n")
    return folder


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a program in a process of its own: the library stays registered."""
    return zygote.run(
        [sys.executable, "-c", HEAD + code, str(folder)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )


@pytest.mark.parametrize("code", [ENABLE, LOAD, KERAS], ids=["enable", "load", "keras"])
def test_what_works_beside_another_optimizer(code: str, folder: Path) -> None:
    done = run(code, folder)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]


def test_a_second_optimizer_would_end_the_process(folder: Path) -> None:
    done = run(FORCED, folder)
    assert done.returncode == -signal.SIGABRT
    assert "registered twice" in done.stderr


DEVICES = """
import ctypes, sys
from fusion.runtime import doctor
assert doctor._device_plugins() == []
ctypes.CDLL(f"{sys.argv[1]}/libdevices.so")
((name, text, is_good),) = doctor._device_plugins()
assert (name, is_good) == ("device plugin", True)
assert text == f"{sys.argv[1]}/libdevices.so: fused ops have no kernels for its devices", text
"""


def test_the_doctor_tells_of_plugins_with_devices(folder: Path) -> None:
    source, library = folder / "devices.c", folder / "libdevices.so"
    source.write_text("void SE_InitPlugin(void* params, void* status) {}")
    subprocess.run([*COMPILER, "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    done = zygote.run(
        [sys.executable, "-c", DEVICES, str(folder)], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-3000:]
