"""Objects that come with the package: which are taken, and what is compiled in their place."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import ClassVar

import pytest

from fusion.ops_library import packaged as writer
from fusion.runtime.cache import kernel_cache, processor
from fusion.runtime.cache.kernel_cache import KernelCache
from fusion.runtime.cache.processor import Processor
from fusion.runtime.native import objects, sources
from fusion.runtime.native.compiler import Compilation
from fusion.runtime.native.compiling import background, packaged
from fusion.runtime.native.compiling.background import BackgroundCompiler

SMALL = Compilation("fusion.runtime.threads.native_start", "forget_threads", 1, "forget_threads")
OTHER = Compilation("fusion.runtime.threads.native_start", "write_thread_count", 2, "thread_count")

#: What runs the package's objects, and what does not.
NEW, OLD = processor.named("x86-64-v4"), processor.named("x86-64-v2")


class Waiting:
    """The queue of the background compiler."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def add(self, file_name: str, compilation: Compilation) -> None:
        self.names.append(file_name)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the package's objects; that of a user is beside it, and empty."""
    sources.digest(SMALL.module)  # parsed before, so that nothing of that is kept there
    shipped, kept = KernelCache(str(tmp_path / "shipped")), KernelCache(str(tmp_path / "kept"))
    monkeypatch.setattr(kernel_cache, "packaged", lambda: shipped)
    monkeypatch.setattr(kernel_cache, "default", lambda: kept)
    shipped.get(packaged.file_name("small", SMALL), lambda: b"shipped")
    return tmp_path / "shipped"


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    queue = Waiting()
    monkeypatch.setattr(objects, "background_compiler", lambda: queue)
    return queue


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is compiled, in place of a compiler."""
    names: list[str] = []

    def compile_it(name: str, made_by: object) -> bytes:
        names.append(name)
        return b"compiled"

    monkeypatch.setattr(objects, "compiled", compile_it)
    return names


def get(name: str, compilation: Compilation, target: Processor) -> bytes:
    with processor.compiling_for(target):
        return objects.get(name, compilation)


def test_an_object_of_the_package_is_taken_at_once(folder, waiting, compiled):
    assert get("small", SMALL, NEW) == b"shipped"
    assert compiled == []
    (name,) = waiting.names
    assert objects.processor_of(name) == NEW.name
    assert not (folder.parent / "kept").exists()


def test_the_processor_s_own_is_preferred(folder, waiting, compiled):
    with processor.compiling_for(NEW):
        key = objects.file_name("small", objects.Recipe(SMALL))
        kernel_cache.default().get(key, lambda: b"own")
    assert get("small", SMALL, NEW) == b"own"
    assert (waiting.names, compiled) == ([], [])


def test_where_the_processor_is_the_package_s_nothing_is_left_to_do(folder, waiting, compiled):
    assert get("small", SMALL, packaged.PROCESSOR) == b"shipped"
    assert (waiting.names, compiled) == ([], [])


@pytest.mark.parametrize("target", [OLD, Processor(NEW.name, suffix="__fusion_v4")])
def test_what_runs_elsewhere_or_is_for_a_library_is_compiled(folder, waiting, compiled, target):
    assert get("small", SMALL, target) == b"compiled"
    assert (waiting.names, compiled) == ([], ["small"])


def test_what_the_package_lacks_is_compiled(folder, waiting, compiled):
    assert get("other", OTHER, NEW) == b"compiled"
    assert (waiting.names, compiled) == ([], ["other"])


@pytest.mark.parametrize("what", ["sources", "arguments", "version"])
def test_an_object_of_another_make_is_not_taken(folder, waiting, compiled, monkeypatch, what):
    compilation = SMALL
    if what == "sources":
        monkeypatch.setattr(sources, "digest_of_bytes", lambda: "another")
    elif what == "version":
        monkeypatch.setattr(packaged, "__version__", "0.0.1")
    else:
        compilation = Compilation(SMALL.module, SMALL.name, 2, SMALL.symbol)
    assert get("small", compilation, NEW) == b"compiled"
    assert waiting.names == []


@pytest.mark.parametrize("damage", [b"", b"short", b"\0" * 400])
def test_a_damaged_one_is_compiled(folder, waiting, compiled, damage):
    (file,) = folder.glob("*.o")
    file.write_bytes(damage)
    assert get("small", SMALL, NEW) == b"compiled"
    assert waiting.names == []


def test_versions_of_tools_do_not_count(monkeypatch):
    before = packaged.file_name("small", SMALL)
    monkeypatch.setattr(objects, "_versions", lambda: "others")
    monkeypatch.setattr(sources, "digest", lambda *modules: "as another Python has it")
    assert packaged.file_name("small", SMALL) == before


def test_all_that_is_written_is_of_compilations_for_rows_of_any_processor():
    recipes = writer.recipes()
    assert {"lookup_kernel_CPU", "gather_float32_1x16", "gather_float32_2x8"} <= {*recipes}
    assert all(isinstance(recipe.compile_it, Compilation) for recipe in recipes.values())


class Compiler:
    """Compiles nothing; the second time it cannot even try."""

    made: ClassVar[list[Compilation]] = []

    def __init__(self, is_idle_work: bool) -> None:
        assert is_idle_work
        self.made.clear()

    def compiled(self, compilation: Compilation) -> tuple[bytes, float] | None:
        self.made.append(compilation)
        if len(self.made) > 2:
            return None
        if compilation is OTHER:
            raise RuntimeError("no such kernel")
        return b"behind " + processor.target().name.encode(), 1.0


def run(work: BackgroundCompiler) -> None:
    work.begin()
    assert work._thread is not None
    work._thread.join(60)
    assert not work._thread.is_alive()


def test_behind_kernels_are_compiled_for_later_processes(folder, monkeypatch):
    monkeypatch.setattr(background, "CompileProcess", Compiler)
    waits: list[float] = []
    work = BackgroundCompiler(waits.append)
    with processor.compiling_for(NEW):
        for name, compilation in (("a.o", OTHER), ("b.o", SMALL), ("c.o", SMALL), ("d.o", SMALL)):
            work.add(name, compilation)
    run(work)  # until the compiler is gone
    assert waits == [background.DELAY_SECONDS]
    kept = kernel_cache.default()
    found = {name: kept.read(name) for name in ("a.o", "b.o", "c.o", "d.o")}
    assert {name for name, file in found.items() if file} == {"b.o"}
    (file,) = filter(None, found.values())
    assert file.content == b"behind x86-64-v4"


def test_behind_nothing_is_compiled_that_cannot_be_kept(folder, monkeypatch, caplog):
    monkeypatch.setattr(background, "CompileProcess", Compiler)
    monkeypatch.setattr(kernel_cache, "default", lambda: KernelCache("/proc/none"))
    work = BackgroundCompiler(lambda seconds: None)
    work.add("a.o", SMALL)
    run(work)
    assert Compiler.made == []
    assert caplog.records == []


def test_several_objects_are_compiled_side_by_side(monkeypatch):
    monkeypatch.setattr(objects, "PROCESS_COUNT", 2)
    together, done = threading.Barrier(2, timeout=60), set()

    def do(name: str, recipe: objects.Recipe) -> None:
        together.wait()
        done.add((name, processor.target().name))

    with processor.compiling_for(OLD):
        objects.together(do, dict.fromkeys("abcd", objects.Recipe(SMALL)).items())
    assert done == {(name, OLD.name) for name in "abcd"}


@pytest.mark.parametrize("count", [1, 2])
def test_an_error_leaves_out_what_has_not_begun(monkeypatch, count):
    monkeypatch.setattr(objects, "PROCESS_COUNT", count)
    begun: list[str] = []

    def do(name: str, recipe: objects.Recipe) -> None:
        begun.append(name)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        objects.together(do, dict.fromkeys("abcd", objects.Recipe(SMALL)).items())
    assert 1 <= len(begun) <= count
