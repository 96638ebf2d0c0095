"""Compiled code: what it needs, where it is kept."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from fusion.ops import SPECS
from fusion.runtime import library, objects
from fusion.runtime.compiler import compile_object, undefined_symbols
from fusion.runtime.registration import compile_kernel, kernel_name


def combinations(spec):
    """Dtypes of the type attrs: all of each attr, alike and, for a second attr, one place on.

    Products of all would take minutes to compile, and what a kernel does with one attr's dtype
    does not depend on that of another.
    """
    names, allowed = list(spec.kernel_types), list(spec.kernel_types.values())
    for shift, first in itertools.product(range(2), range(max(map(len, allowed)))):
        yield {
            name: types[(first + shift * place) % len(types)]
            for place, (name, types) in enumerate(zip(names, allowed, strict=True))
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
    name = kernel_name(spec, device, types)
    code = objects.get(name, lambda: compile_kernel(spec, device, types))
    names = undefined_symbols(code)
    assert "TF_GetInput" in names
    assert not [name for name in names if name.startswith(("Py", "_Py", "NRT", "numba"))]


def test_every_symbol_that_is_asked_for_is_used():
    folder = Path(objects.__file__).parent
    text = "".join(
        source.read_text() for source in folder.glob("*.py") if source.name != "library.py"
    )
    text += (folder / "library.py").read_text().partition("def require_platform")[2]
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

    madvise = types.ExternalFunction("madvise", types.int32(types.int64, types.int64, types.int32))

    def enlarge(address, size):
        madvise(address, size, np.int32(14))

    with pytest.raises(RuntimeError, match=r"^enlarge: compiled code needs madvise$"):
        compile_object(enlarge, 2, "enlarge")


def test_code_that_can_raise_is_refused():
    def check(count, address):
        if count > address:
            raise ValueError

    with pytest.raises(RuntimeError, match=r"^check: compiled code can raise"):
        compile_object(check, 2, "check")


def compile_add_up():
    from fusion.runtime.memory import store

    def add_up(first, second, result):
        store(result, 0, first + second)

    return compile_object(add_up, 3, "add_up")


def test_objects_are_kept_and_called(tmp_path, monkeypatch):
    import ctypes

    monkeypatch.setattr(objects, "directories", lambda: (tmp_path,))
    monkeypatch.setattr(objects, "writable_directory", lambda: tmp_path)
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
def test_damaged_object_is_compiled_again(tmp_path, monkeypatch, damage):
    monkeypatch.setattr(objects, "directories", lambda: (tmp_path,))
    monkeypatch.setattr(objects, "writable_directory", lambda: tmp_path)
    objects.get("thing", lambda: b"good code")
    (kept,) = tmp_path.iterdir()
    content = kept.read_bytes()
    kept.write_bytes({"truncate": content[:-1], "flip": content[:-1] + b"x", "empty": b""}[damage])
    assert objects.get("thing", lambda: b"new code") == b"new code"
    assert objects.get("thing", lambda: b"never") == b"new code"


def test_directory_that_cannot_be_written_is_passed_over(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    usable = tmp_path / "cache"
    monkeypatch.setattr(objects, "directories", lambda: (blocked / "kernels", usable))
    objects.writable_directory.cache_clear()
    try:
        assert objects.writable_directory() == usable
        assert objects.get("thing", lambda: b"code") == b"code"
        assert len(list(usable.glob("thing-*.o"))) == 1
    finally:
        objects.writable_directory.cache_clear()


def test_nothing_can_be_written(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setattr(objects, "directories", lambda: (blocked / "kernels",))
    objects.writable_directory.cache_clear()
    try:
        assert objects.get("thing", lambda: b"code") == b"code"
        assert objects.writable_directory().name.startswith("fusion-kernels-")
    finally:
        objects.writable_directory.cache_clear()


def test_cache_directory_can_be_chosen(tmp_path, monkeypatch):
    monkeypatch.setenv(objects.CACHE_VARIABLE, str(tmp_path))
    objects.directories.cache_clear()
    try:
        assert objects.directories() == (tmp_path,)
    finally:
        objects.directories.cache_clear()


@pytest.mark.parametrize("variable", ["NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"])
def test_code_for_another_processor_is_another_object(monkeypatch, variable):
    fingerprint = objects.fingerprint.__wrapped__
    monkeypatch.delenv(variable, raising=False)
    here = fingerprint()
    monkeypatch.setenv(variable, "haswell")
    assert fingerprint() != here
