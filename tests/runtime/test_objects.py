"""Compiled code: what it needs, where it is kept."""

import ctypes
import itertools
import logging
import os
import re
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from fusion.ops.registered import SPECS
from fusion.runtime.cache import kernel_cache, processor
from fusion.runtime.cache.kernel_cache import KernelCache
from fusion.runtime.native import objects, sources
from fusion.runtime.native.compiler import compile_object, undefined_symbols
from fusion.runtime.native.objects import Recipe
from fusion.runtime.registration.kernel_objects import kernel_object
from fusion.runtime.tensorflow import library
from tests.tiers import ALL_CASES


def combinations(spec):
    """Dtypes of the type attrs: all of each attr, alike.

    Products of all would take minutes to compile, and what a kernel does with one attr's dtype
    does not depend on that of another. `make soak` has a second attr's one place on too.
    """
    names, allowed = list(spec.kernel_types), list(spec.kernel_types.values())
    shifts, most = range(1 + ALL_CASES), max(map(len, allowed), default=1)
    for shift, first in itertools.product(shifts, range(most)):
        yield {
            name: types[(first + shift * index) % len(types)]
            for index, (name, types) in enumerate(zip(names, allowed, strict=True))
        }


KERNELS = [
    (spec, device, types)
    for spec in SPECS
    for device in spec.kernels
    for types in combinations(spec)
]


@pytest.mark.parametrize(
    ("spec", "device", "types"), KERNELS, ids=lambda value: getattr(value, "name", str(value))
)
def test_kernels_need_tensorflow_and_libc_only(spec, device, types):
    names = undefined_symbols(kernel_object(spec, device, types))
    # One whose inputs are variables alone has them by other functions.
    assert not names.isdisjoint({"TF_GetInput", "TF_NumInputs", "TF_ExpectedOutputDataType"})
    assert not [name for name in names if name.startswith(("Py", "_Py", "NRT", "numba"))]


def test_every_symbol_that_is_asked_for_is_used():
    folder = Path(library.__file__).parents[1]
    text = "".join(
        source.read_text() for source in folder.rglob("*.py") if source.name != "library.py"
    )
    text += Path(library.__file__).read_text().partition("def require_platform")[2]
    assert set(library.SYMBOLS) - set(re.findall(r"TF_\w+", text)) == set()


def test_code_that_allocates_is_refused():
    def allocate(count, address):
        values = np.empty(count)
        values[0] = address
        if values.sum() > 0:
            raise ValueError

    with pytest.raises(RuntimeError, match=r"allocate.*compiled code needs.*NRT_"):
        compile_object(allocate, 2, "allocate")


def test_code_that_works_on_the_process_s_pages_is_refused():
    from numba import types

    protect = types.ExternalFunction("mprotect", types.int32(types.int64, types.int64, types.int32))

    def freeze(address, size):
        protect(address, size, np.int32(1))

    with pytest.raises(RuntimeError, match=r"^freeze: compiled code needs mprotect$"):
        compile_object(freeze, 2, "freeze")


def test_code_that_can_raise_is_refused():
    def check(count, address):
        if count > address:
            raise ValueError

    with pytest.raises(RuntimeError, match=r"^check: compiled code can raise"):
        compile_object(check, 2, "check")


def compile_add_up():
    from fusion.runtime.native.memory import store

    def add_up(first, second, result):
        store(result, 0, first + second)

    return compile_object(add_up, 3, "add_up")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where objects are kept."""
    sources.digest(__name__)  # parsed before, so that nothing of that is kept there
    monkeypatch.setattr(kernel_cache, "default", lambda: KernelCache(str(tmp_path)))
    return tmp_path


def test_objects_are_kept_and_called(folder):
    compiled = []

    def compile_it():
        compiled.append(True)
        return compile_add_up()

    code = objects.get("add_up", compile_it)
    assert objects.get("add_up", compile_it) == code
    assert len(compiled) == 1
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(objects.load(code, "add_up"))
    result = ctypes.c_int64()
    function(40, 2, ctypes.addressof(result))
    assert result.value == 42


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty"])
def test_damaged_object_is_compiled_again(folder, damage):
    objects.get("thing", lambda: b"good code")
    (kept,) = folder.iterdir()
    content = kept.read_bytes()
    kept.write_bytes({"truncate": content[:-1], "flip": content[:-1] + b"x", "empty": b""}[damage])
    assert objects.get("thing", lambda: b"new code") == b"new code"
    assert objects.get("thing", lambda: b"never") == b"new code"


def test_the_log_tells_what_is_compiled_and_how_long_that_takes(folder, monkeypatch, caplog):
    monkeypatch.setattr(objects, "_seconds", [])
    with caplog.at_level(logging.INFO, "fusion"):
        for name in ("first", "second", "first"):
            objects.get(name, lambda: b"code")
    begun, first, second = caplog.messages
    assert begun == f"compiling kernels for {processor.target().name}"
    assert re.fullmatch(r"compiled first in 0\.0 s \(1 kernels in 0\.0 s\)", first)
    assert re.fullmatch(r"compiled second in 0\.0 s \(2 kernels in 0\.0 s\)", second)


def test_the_processor_alone_tells_objects_apart(monkeypatch):
    v3, v4 = processor.named("x86-64-v3"), processor.named("x86-64-v4")
    names, recipe = set(), Recipe(compile_add_up)
    for target in (processor.host(), v3, v4):
        with processor.compiling_for(target):
            names.add(objects.file_name("thing", recipe))
    assert len(names) == 3
    # Of another machine only its processor differs.
    monkeypatch.setattr(processor, "host", lambda: processor.Processor("znver1", "+avx2"))
    with processor.compiling_for(v3):
        assert objects.file_name("thing", recipe) in names


def test_what_is_asked_for_is_not_compiled(folder):
    with objects.requested_recipes() as wanted:
        assert objects.address("asked_for_only", lambda: b"code") == 0
    assert [name for name, recipe in wanted.items() if recipe.compile_it() == b"code"] == [
        "asked_for_only"
    ]
    assert list(folder.iterdir()) == []


def test_what_python_calls_is_loaded_whatever_is_around(folder, monkeypatch):
    """For the processor of this process, though others are compiled for another one."""
    monkeypatch.setattr(objects, "_addresses", {})
    other = processor.named("haswell" if processor.target().name != "haswell" else "skylake")
    targets = []

    def compile_it():
        targets.append(processor.target())
        return compile_add_up()

    with processor.compiling_for(other), objects.requested_recipes() as wanted:
        with objects.loading():
            address = objects.address("add_up", compile_it)
        assert processor.target() == other
    assert wanted == {}
    assert objects.address("add_up", compile_it) == address
    assert targets == [processor.target()]
    result = ctypes.c_int64()
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(address)(40, 2, ctypes.addressof(result))
    assert result.value == 42


def test_other_threads_do_not_ask(folder):
    """Nor do they compile for the processor that one compiles for."""
    other = processor.named("haswell" if processor.target().name != "haswell" else "skylake")
    seen = list[object]()

    def compile_it():
        seen.append("compiled")
        raise RuntimeError("no object")

    def use():
        seen.append(processor.target())
        with pytest.raises(RuntimeError, match="no object"):
            objects.address("of_another_thread", compile_it)

    with objects.requested_recipes() as wanted, processor.compiling_for(other):
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
    assert wanted == {}
    assert seen == [processor.target(), "compiled"]


@contextmanager
def slow_compilation():
    """A thread compiles in the block; gives what lets it end."""
    compiles, may_end = threading.Event(), threading.Event()

    def compile_it():
        compiles.set()
        may_end.wait(60)
        return b"code"

    thread = threading.Thread(target=objects.compiled, args=["slow", compile_it])
    thread.start()
    compiles.wait()
    try:
        yield may_end
    finally:
        may_end.set()
        thread.join()


def test_a_process_is_forked_between_two_compilations():
    """Whatever is held while code is compiled would stay held in the child."""
    with slow_compilation() as may_end:
        threading.Timer(0.2, may_end.set).start()
        child = os.fork()
        if child == 0:
            os._exit(0 if objects.compiled("another", lambda: b"code") == b"code" else 1)
        assert may_end.is_set()
    assert os.waitpid(child, 0)[1] == 0


def test_what_is_loaded_waits_for_no_compilation(monkeypatch):
    monkeypatch.setitem(objects._addresses, "loaded", 1)
    with slow_compilation() as may_end:
        assert objects.address("loaded", lambda: b"code") == 1
        assert not may_end.is_set()
