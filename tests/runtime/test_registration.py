"""Registering ops once, whatever is imported how often. Each case has a process of its own."""

import os
import shutil
import sys
from pathlib import Path

import pytest

import fusion
from fusion.runtime.cache import kernel_cache
from tests import zygote

ROOT = Path(fusion.__file__).parent.parent

LOOK_UP = """
def look_up():
    ids = tf.SparseTensor([[0, 0], [2, 0]], tf.constant([1, 2], tf.int64), [3, 1])
    return fusion.fused_safe_embedding_lookup_sparse(tf.eye(4), ids, combiner="sum").numpy().sum()
"""


def run(code, path=ROOT, **environment):
    """What a process that has imported TensorFlow alone prints; stderr when it fails."""
    result = zygote.run(
        [sys.executable, "-c", "import sys\nimport tensorflow as tf\n" + LOOK_UP + code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(path), "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
        cwd=path,
        check=False,
        server=zygote.without_fusion(),
    )
    return result.stdout.strip() if result.returncode == 0 else "FAILED " + result.stderr


def test_import_loads_neither_kernels_nor_heavy_packages():
    code = """
before = set(sys.modules)
import fusion
from fusion.runtime.native import objects
heavy = {"numba", "networkx", "click", "rich", "fusion.passes", "fusion.runtime.native.op"}
print(sorted(heavy & (set(sys.modules) - before)), look_up())
print("numba" in sys.modules)
"""
    assert run(code).splitlines()[0] == "[] 2.0"
    # The first process has compiled what was missing: the second needs no compiler at all.
    assert run(code).splitlines()[1] == "False"


def test_importing_again_after_dropping_every_module():
    code = """
import fusion
from fusion.runtime.native import objects
first = look_up()
for name in [name for name in sys.modules if name.split(".")[0] == "fusion"]:
    del sys.modules[name]
import gc; del fusion; gc.collect()
import fusion
from fusion.runtime.native import objects
print(first, look_up())
"""
    assert run(code) == "2.0 2.0"


def test_reloading():
    code = """
import importlib, fusion, fusion.ops, fusion.runtime.registration.registration
for module in (fusion.runtime.registration.registration, fusion.ops, fusion):
    importlib.reload(module)
print(look_up())
"""
    assert run(code) == "2.0"


def test_a_second_copy_elsewhere(tmp_path):
    shutil.copytree(
        ROOT / "fusion", tmp_path / "fusion", ignore=shutil.ignore_patterns("__pycache__")
    )
    code = f"""
import fusion
from fusion.runtime.native import objects
first = look_up()
for name in [name for name in sys.modules if name.split(".")[0] == "fusion"]:
    del sys.modules[name]
sys.path.insert(0, {str(tmp_path)!r})
import fusion
from fusion.runtime.native import objects
print(fusion.__file__.startswith({str(tmp_path)!r}), first, look_up())
"""
    assert run(code) == "True 2.0 2.0"


FOREIGN = """
import ctypes
library = ctypes.CDLL(tf.sysconfig.get_lib() + "/libtensorflow_framework.so.2")
for name in ("TF_NewOpDefinitionBuilder", "TF_NewStatus"):
    getattr(library, name).restype = ctypes.c_void_p
builder = ctypes.c_void_p(library.TF_NewOpDefinitionBuilder(b"UniqueWithCountsV3"))
library.TF_OpDefinitionBuilderAddInput(builder, b"input: int64")
library.TF_RegisterOpDefinition(builder, ctypes.c_void_p(library.TF_NewStatus()))
try:
    import fusion
except ImportError as error:
    print(error)
"""


def test_a_foreign_op_of_the_same_name_is_an_import_error():
    assert "already has a different op" in run(FOREIGN)
    assert "UniqueWithCountsV3" in run(FOREIGN)


def test_a_read_only_install_keeps_kernels_in_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.delenv(kernel_cache.CACHE_VARIABLE, raising=False)
    package = tmp_path / "site"
    shutil.copytree(
        ROOT / "fusion", package / "fusion", ignore=shutil.ignore_patterns("__pycache__")
    )
    # A file where the folder would be stops root too, which permissions do not.
    (package / "fusion" / "__pycache__").write_text("")
    cache = tmp_path / "cache"
    output = run("import fusion; print(look_up())", package, XDG_CACHE_HOME=str(cache))
    assert output == "2.0"
    assert list((cache / "fusion" / "kernels").glob("UniqueWithCountsV3_CPU_int64@*.o"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("library.SYMBOLS += ('TF_Imaginary', 'TF_Other')", "TF_Imaginary, TF_Other"),
        ("library.path = lambda: '/nowhere/lib.so'", "cannot load TensorFlow"),
        (
            "library.sys = types.SimpleNamespace(platform='darwin')",
            "Linux on x86-64 with glibc; this is darwin",
        ),
        (
            "library.platform = types.SimpleNamespace("
            "machine=lambda: 'aarch64', libc_ver=lambda: ('glibc', '2'))",
            "on aarch64",
        ),
        ("library.platform.libc_ver = lambda: ('', '')", "another C library"),
    ],
)
def test_what_cannot_work_is_one_clear_import_error(change, message):
    code = f"""
import importlib.util, types
package = types.ModuleType("fusion")
package.__path__ = [{str(ROOT / "fusion")!r}]
sys.modules["fusion"] = package
from fusion.runtime.tensorflow import library
{change}
try:
    import fusion.ops.registered
except ImportError as error:
    print(tf.__version__ in str(error) or "supports" in str(error), error)
"""
    output = run(code)
    assert output.startswith("True ")
    assert message in output
    assert "\n" not in output
