"""What an object is made from: which edits change its key, and which do not."""

import compileall
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import fusion
from fusion.gpu_ops.host import modules
from fusion.gpu_ops.kernels.registry import KERNELS
from fusion.ops import node_kernels
from fusion.ops.registered import SPECS
from fusion.runtime.cache import kernel_cache
from fusion.runtime.cache.kernel_cache import KernelCache
from fusion.runtime.native import objects, sources
from fusion.runtime.native.objects import Recipe
from fusion.runtime.registration import kernel_objects

ROOT = Path(fusion.__file__).parent
FILES, _ = sources.read(ROOT)


@cache
def parsed() -> dict[str, sources.Source]:
    """Of all files, which takes seconds."""
    return sources.parse(FILES)


def recipes() -> dict[str, Recipe]:
    """How objects are made: all that need no model, host code for GPUs, and code of GPUs."""
    wanted = node_kernels.of_all_ops()
    on_gpus = {}
    for spec in (spec for spec in SPECS if "GPU" in spec.kernels):
        types = {name: dtypes[0] for name, dtypes in spec.kernel_types.items()}
        name, recipe = kernel_objects.kernel_recipe(spec, "GPU", {} if spec.builder else types)
        on_gpus[name] = recipe
    text: Any = modules.text
    ptx = {f"ptx_{name}": Recipe(text, modules.sources_of(name)) for name in KERNELS}
    return wanted | on_gpus | ptx


RECIPES = recipes()

#: Some of them, by kind.
UNIQUE = "UniqueWithCountsV3_CPU_int64"
PRUNE = "PruneInvalidAndFillEmptyRows_CPU_int32_float32"
COMBINE = "FusedEmbeddingSparsePostLookUpV2_CPU_float32_float32"
UNIQUE_ON_GPU = "UniqueWithCountsV3_GPU_int32"
LOOKUP, GATHER, SCATTER = "lookup_kernel_CPU", "gather_float32_any", "scatter_float32_1x8"
SHAPES, SERVE, SCAN, SORT = "infer_shapes", "serve", "ptx_sum_tiles", "ptx_count_keys"
SOME = (UNIQUE, PRUNE, COMBINE, UNIQUE_ON_GPU, LOOKUP, GATHER, SCATTER, SHAPES, SERVE, SCAN, SORT)


def made_from(name: str, graph: dict[str, sources.Source] | None = None) -> dict[str, str]:
    """The digests of the modules that an object is made from."""
    recipe, graph = RECIPES[name], graph or parsed()
    found = sources.closure(graph, recipe.source_modules)
    return {module: graph[module].digest for module in found}


def changed_by(path: str, edit: tuple[str, str]) -> set[str]:
    """Which of `SOME` are made from other sources after an edit of one, here of a copy."""
    text = FILES[path].decode()
    edited = re.sub(*edit, text, count=1, flags=re.MULTILINE)
    assert edited != text
    source = sources._source(path, edited.encode(), FILES, {*parsed()})
    graph = parsed() | {sources._module_of(path): source}
    return {name for name in SOME if made_from(name, graph) != made_from(name)}


ALL, NODES = set(SOME), {UNIQUE, PRUNE, COMBINE, UNIQUE_ON_GPU, LOOKUP}


@pytest.mark.parametrize(
    ("path", "edit", "changed"),
    [
        ("runtime/native/code_generation.py",
         (r'"error_model": "numpy"', '"error_model": "python"'), ALL),
        ("runtime/native/compiler.py", ('"sched_yield", ', ""), ALL - {SCAN, SORT}),
        ("runtime/native/entry.py", (r"_SHORT_FRAME = 64", "_SHORT_FRAME = 65"), NODES),
        ("runtime/tensorflow/layout.py", (r"^MAX_RANK = 2", "MAX_RANK = 3"),
         NODES | {SHAPES, SERVE}),
        ("schema/attributes.py", (r'^COMBINERS = \("', 'COMBINERS = ("other", "'),
         ALL - {UNIQUE, SHAPES, SERVE}),
        ("cpu_ops/gather.py", (r"^from", "NEW = 1\nfrom"), {GATHER}),
        ("cpu_ops/unique.py", (r"^from", "NEW = 1\nfrom"), {UNIQUE}),
        ("cpu_ops/half.py", (r"^from", "NEW = 1\nfrom"), ALL - {UNIQUE, SHAPES, SERVE}),
        ("ops/bags/specs/unique.py", (r"name=names.UNIQUE", "name=names.PRUNE"), set()),
        ("ops/bags/cpu/unique.py", (r"^from", "NEW = 1\nfrom"), {UNIQUE}),
        ("ops/bags/gpu/unique.py", (r"^from", "NEW = 1\nfrom"), {UNIQUE_ON_GPU}),
        ("ops/base/bodies.py", (r"\.kernel_body\(", ".other("), NODES),
        ("ops/base/gpu_bodies.py", (r"with_device\(super", "(super"), {UNIQUE_ON_GPU}),
        ("gpu_ops/kernels/sort.py", (r"^from", "NEW = 1\nfrom"), {UNIQUE_ON_GPU, SORT}),
        ("gpu_ops/kernels/unique.py", (r"^from", "NEW = 1\nfrom"), set()),
        ("gpu_ops/language/intrinsics.py", (r"^from", "NEW = 1\nfrom"),
         {UNIQUE_ON_GPU, SCAN, SORT}),
        ("gpu_ops/layout/call.py", (r"^WARP = 32", "WARP = 64"), {UNIQUE_ON_GPU, SCAN, SORT}),
        ("runtime/threads/jobs.py", (r"^from", "NEW = 1\nfrom"),
         {UNIQUE_ON_GPU, LOOKUP, SERVE}),
        ("runtime/registration/registration.py", (r"^from", "NEW = 1\nfrom"), set()),
        ("ops/registered.py", (r"^SPECS", "NEW = 1\nSPECS"), set()),
    ],
)  # fmt: skip
def test_what_an_edit_changes(path: str, edit: tuple[str, str], changed: set[str]) -> None:
    assert changed_by(path, edit) == changed


@pytest.mark.parametrize(
    "edit",
    [
        (r'\A"""', '"""Another docstring. '),
        (r'^( *)def (.*:\n +)"""', r'\1def \2"""Another docstring. '),
        (r"\Z", "# a comment\n"),
        (r"^(\w+) = ", r"\n\n\1  =  "),
        (r"^from ([\w.]+) import (\w+)$", r"from \1 import (\n    \2,\n)"),
    ],
)
@pytest.mark.parametrize("path", ["cpu_ops/row_tiles.py", "runtime/native/jit.py"])
def test_layout_and_docs_change_nothing(path: str, edit: tuple[str, str]) -> None:
    assert changed_by(path, edit) == set()


def test_another_language_counts() -> None:
    other = sources.parse({**FILES, "runtime/cuda/stream.cc": b"int other;"})
    changed = [name for name, source in parsed().items() if source != other[name]]
    assert changed == ["fusion.runtime.cuda.stream"]


@pytest.mark.parametrize(
    ("changes", "counts"), [({"name": "other"}, True), ({"doc": "other"}, False)]
)
def test_what_an_op_declares_counts(changes: dict[str, Any], counts: bool) -> None:
    """The module that declares an op is no source of its kernels."""
    (unique,) = (spec for spec in SPECS if spec.name in UNIQUE)
    other = replace(unique, inputs=(replace(unique.inputs[0], **changes),))
    _, recipe = kernel_objects.kernel_recipe(other, "CPU", {"Tid": "int64"})
    names = {objects.file_name(UNIQUE, each) for each in (recipe, RECIPES[UNIQUE])}
    assert len(names) == 1 + counts


def test_kernels_for_cpus_are_not_made_from_those_for_gpus() -> None:
    for name in RECIPES:
        if "GPU" not in name and not name.startswith("ptx"):
            found = made_from(name)
            assert not [module for module in found if ".gpu" in module], name


def test_imports_are_seen_wherever_they_are() -> None:
    text = """
import fusion.a
from fusion import b, c as d
from .c import thing
def f():
    from fusion.lower.e import thing
    if f:
        import_module(f"fusion.lower.{f}")
class C:
    import fusion.lower.g as g
"""
    names = ("a", "b", "c", "lower/__init__", "lower/e", "lower/g", "lower/h", "other")
    files = {f"{name}.py": b"" for name in names} | {"__init__.py": b"", "m.py": text.encode()}
    found = sources.parse(files)
    expected = ("a", "b", "c", "lower.e", "lower.g", "lower.h")
    assert found["fusion.m"].imports == tuple(f"fusion.{name}" for name in expected)
    assert found["fusion.lower.e"].imports == ("fusion.lower",)
    made_from = {f"fusion.{name}" for name in (*expected, "lower", "m")}
    assert sources.closure(found, ["fusion.m"]) == made_from
    anything = sources.parse(files | {"m.py": b"import fusion\n"})
    assert set(anything["fusion.m"].imports) == set(anything) - {"fusion.m"}


def test_a_computed_import_is_of_a_known_module() -> None:
    """Those that import what an object names itself; others count as imports of all they could."""
    computing = {
        sources._module_of(path)
        for path, content in FILES.items()
        if path.endswith(".py") and b"import_module(" in content
    }
    made = set().union(*(made_from(name) for name in RECIPES))
    assert computing & made == sources._NAMING | {"fusion.gpu_ops.language.device"}


def test_what_stands_for_the_cpus_functions_counts_for_all_kernels() -> None:
    calling = {
        sources._module_of(path)
        for path, content in FILES.items()
        if re.search(rb"^instead\(", content, re.MULTILINE)
    }
    assert calling == {*modules._STAND_INS}


def test_all_that_is_imported_is_known() -> None:
    """A module of another folder would not count."""
    made = set().union(*(made_from(name) for name in RECIPES))
    for path, content in FILES.items():
        if path.endswith(".py") and sources._module_of(path) in made:
            named = re.findall(rb"^ *(?:from|import) (fusion[\w.]*)", content, re.MULTILINE)
            assert {name.decode() for name in named} <= parsed().keys(), path


#: Prints which modules of the package have a part in making an object: Python runs functions of
#: theirs, or Numba compiles them. Each object is made in a process in which nothing was compiled.
RUN = """
import cProfile, json, os, sys
from pathlib import Path
from numba.core import bytecode
from test_sources import RECIPES, ROOT
from fusion.runtime.native import code_generation

class EnoughError(Exception):
    pass

def identify(function):
    codes.append(function.__code__)
    return identified(function)

def stop(library):
    raise EnoughError

identified = bytecode.FunctionIdentity.from_function
bytecode.FunctionIdentity.from_function = identify
code_generation.Library.optimize = stop  # all is compiled, and linked
for name in sys.argv[1:]:
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        continue
    codes = []
    profile = cProfile.Profile()
    try:
        profile.runcall(RECIPES[name].compile_it)
    except EnoughError:
        codes += (entry.code for entry in profile.getstats() if not isinstance(entry.code, str))
        # Kernels are imported to check how many arguments a launch gives them, and not run.
        codes = [code for code in codes if code.co_name != "<module>"]
        files = {Path(code.co_filename) for code in codes}
        ours = [str(file.relative_to(ROOT)) for file in files if file.is_relative_to(ROOT)]
        print(json.dumps([name, ours]), flush=True)
    os._exit(0)
"""


def test_nothing_else_has_a_part_in_an_object() -> None:
    """An op's kernel, and what no op has; one of each kind in tests/soak/long_kernels.py."""
    check_sources([UNIQUE_ON_GPU, SHAPES])


def check_sources(chosen: list[str]) -> None:
    """Makes objects and looks at which modules have a part in it."""
    paths = [str(ROOT.parent), str(Path(__file__).parent)]
    done = subprocess.run(
        [sys.executable, "-c", RUN, *chosen],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    told = dict(json.loads(line) for line in done.stdout.splitlines())
    assert [*told] == chosen
    for name, files in told.items():
        ran = {sources._module_of(file) for file in files}
        assert len(ran) > 5
        assert ran <= made_from(name).keys() | sources._APART


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of sources, as in a new process."""
    for name in ("_digest", "_sources"):
        monkeypatch.setattr(sources, name, getattr(sources, name).__wrapped__)


@pytest.mark.usefixtures("fresh")
def test_sources_are_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache, "default", lambda: KernelCache(str(tmp_path)))
    first = sources.digest("fusion.ops.bags.cpu.unique")
    (kept,) = tmp_path.iterdir()
    monkeypatch.setattr(sources, "parse", None)
    assert sources.digest("fusion.ops.bags.cpu.unique") == first
    kept.write_bytes(kept.read_bytes()[:-1])
    with pytest.raises(TypeError):  # a file that is damaged, or others wrote, is not believed
        sources.digest("fusion.ops.bags.cpu.unique")


@pytest.mark.usefixtures("fresh")
def test_what_one_python_finds_comes_with_the_package_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped, kept = KernelCache(str(tmp_path / "shipped")), KernelCache(str(tmp_path / "kept"))
    monkeypatch.setattr(kernel_cache, "packaged", lambda: shipped)
    monkeypatch.setattr(kernel_cache, "default", lambda: kept)
    first = sources.digest("fusion.ops.bags.cpu.unique")
    sources.keep_for_any_python(shipped)
    shutil.rmtree(tmp_path / "kept")
    monkeypatch.setattr(platform, "python_version_tuple", lambda: ("3", "99", "0"))
    monkeypatch.setattr(sources, "parse", None)
    assert sources.digest("fusion.ops.bags.cpu.unique") == first
    assert not (tmp_path / "kept").exists()
    package = copied(tmp_path, "other", ".py", "\nNEW = 1\n")
    monkeypatch.setattr(sources, "_PACKAGE", package)
    with pytest.raises(TypeError):  # it is of other sources
        sources.digest("fusion.ops.bags.cpu.unique")


@pytest.mark.usefixtures("fresh")
def test_where_nothing_can_be_kept_sources_are_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    nowhere = KernelCache(str(tmp_path / "file" / "kernels"))
    monkeypatch.setattr(kernel_cache, "default", lambda: nowhere)
    assert sources.digest("fusion.ops.bags.cpu.unique")
    assert caplog.messages == []


def copied(tmp_path: Path, name: str, suffix: str, edit: str = "") -> Path:
    """The sources of the package alone, or what Python made of them alone."""
    package = tmp_path / name / "fusion"
    shutil.copytree(ROOT, package, ignore=shutil.ignore_patterns("__pycache__"))
    with (package / "cpu_ops" / "gather.py").open("a") as source:
        source.write(edit)
    if suffix == ".pyc":
        assert compileall.compile_dir(package, quiet=2, legacy=True)
        for path in package.rglob("*.py"):
            path.unlink()
    return package


@pytest.mark.parametrize("suffix", [".py", ".pyc"])
@pytest.mark.usefixtures("fresh")
def test_another_build_has_other_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(kernel_cache, "default", lambda: KernelCache(str(tmp_path / "kept")))
    recipe = RECIPES[GATHER]

    def key(package: Path) -> str:
        monkeypatch.setattr(sources, "_PACKAGE", package)
        return objects.file_name("thing", recipe)

    package = copied(tmp_path, "one", suffix)
    first = key(package)
    assert key(copied(tmp_path, "other", suffix, "\nNEW = 1\n")) != first
    assert key(shutil.copytree(package, tmp_path / "same")) == first
    monkeypatch.setattr(objects, "_versions", lambda: "another version")
    assert key(package) != first


def test_versions_count() -> None:
    versions = objects._versions()
    assert f"fusion {fusion.__version__} " in versions
    for tool in ("numba", "llvmlite"):
        assert f"{tool} {importlib.metadata.version(tool)}" in versions
    assert f"python {sys.version_info.major}.{sys.version_info.minor} " in versions


def test_a_function_of_another_package_is_made_from_anything() -> None:
    found = Recipe(lambda: b"code").text
    assert sources.digest(*parsed()) not in found
    assert Recipe(lambda: b"other", ("fusion.version",)).text == found
