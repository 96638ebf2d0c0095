"""Libraries of ops in stock TensorFlow."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tensorflow.core.framework import op_def_pb2

import fusion
from fusion.cpu_ops.kernel_indices import GATHER_VARIANTS, SCATTER_VARIANTS, shape_index
from fusion.cpu_ops.row_tiles import tiles
from fusion.ops.base.row_kernels import GATHERS, SCATTERS
from fusion.ops.registered import SPECS
from fusion.ops_library.linking import LinkError, find_tools
from fusion.runtime.cache import processor
from fusion.runtime.cache.processor import Processor
from fusion.runtime.native.compiler import LIBC
from fusion.runtime.registration.library.manifest import read_manifest
from fusion.runtime.registration.library.record import EXPORTED, LEVELS
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.version import __version__
from tests import zygote
from tests.ops_library import served
from tests.ops_library.conftest import HOST_LEVELS


def run(program: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a process that has imported TensorFlow alone."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | variables
    of_tensorflow = {name: text for name, text in variables.items() if name.startswith("TF_")}
    return zygote.run(
        [sys.executable, *program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        server=zygote.without_fusion(**of_tensorflow),
    )


def serve(
    models: tuple[Path, Path], *libraries: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    return run([served.__file__, *map(str, (*models, *libraries))], **variables)


def says(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What libraries said when they were loaded."""
    return [line for line in done.stderr.splitlines() if line.startswith("fusion ops ")]


def test_a_fused_model_has_the_bits_of_the_original(models, library):
    """In a process of its own, from its start."""
    program = [sys.executable, served.__file__, *map(str, (*models, library))]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.stdout == "equal\n", done.stderr
    assert says(done) == []


@pytest.mark.parametrize("level", HOST_LEVELS)
def test_every_level_has_them(models, build_library, level):
    assert serve(models, build_library(level)).stdout == "equal\n"


@pytest.mark.parametrize("threads", ["1", "3"])
def test_threads_are_those_that_are_asked_for(models, library, threads):
    assert serve(models, library, FUSION_NUM_THREADS=threads).stdout == "equal\n"


@pytest.mark.parametrize("threads", ["0", "x", ""])
def test_a_number_of_threads_that_is_none_is_told(models, library, threads):
    done = serve(models, library, FUSION_NUM_THREADS=threads)
    assert done.stdout == "equal\n", done.stderr
    told = "fusion ops {}: FUSION_NUM_THREADS is not a positive number, and ignored"
    assert says(done) == [told.format(__version__)]


def test_without_a_library_the_ops_are_missing(models):
    done = serve(models)
    assert done.returncode == 1
    assert "Op type not registered" in done.stderr


def test_rows_of_any_dimension_do_where_there_are_no_kernels_for_one(models, build_library):
    few = build_library(HOST_LEVELS[-1], choose=lambda name: not name.startswith("gather"))
    (kernels,) = read_manifest(few).cpus.values()
    assert [name for name in kernels if "gather" in name] == ["gather_float32_any"]
    assert serve(models, few).stdout == "equal\n"


def test_a_kernel_that_is_not_in_the_library_is_named(models, build_library):
    lacking = build_library(HOST_LEVELS[-1], choose=lambda name: "lookup_kernel" not in name)
    done = serve(models, lacking)
    assert done.returncode == 1
    assert "the library of ops was built without the kernel for the dtypes" in done.stderr


def test_a_second_library_is_not_in_the_way(models, library, tmp_path):
    copy = shutil.copy(library, tmp_path / "libcopy.so")
    done = serve(models, library, copy)
    assert done.stdout == "equal\n"
    assert says(done) == [f"fusion ops {__version__}: registered before, nothing is left to do"]


_BESIDE = """
import sys, tensorflow as tf
for what in sys.argv[1:]:
    if what == "fusion":
        import fusion
    else:
        tf.load_op_library(what)
ids = tf.sparse.from_dense([[1, 2], [3, 0]])
table = tf.Variable([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
print(fusion.fused_safe_embedding_lookup_sparse(table, ids)[0].numpy().tolist())
"""


def test_after_fusion_a_library_does_nothing(library):
    done = run(["-c", _BESIDE, "fusion", str(library)])
    assert done.stdout == "[4.0, 5.0]\n", done.stderr
    assert says(done) == [f"fusion ops {__version__}: registered before, nothing is left to do"]


def test_before_fusion_a_library_has_the_kernels(library):
    done = run(["-c", _BESIDE, str(library), "fusion"])
    assert (
        "PruneInvalidAndFillEmptyRows: the library of ops was built without the kernel"
        in done.stderr
    )
    assert says(done) == []


def test_beside_another_version_a_library_does_nothing(library, tmp_path):
    op_def = op_def_pb2.OpDef()
    op_def.CopyFrom(next(spec for spec in SPECS if spec.name == "UniqueWithCountsV3").op_def)
    other = tmp_path / "libother.so"
    content, known = library.read_bytes(), op_def.SerializeToString(deterministic=True)
    assert content.count(known) == 1
    op_def.attr[-1].name += "x"
    changed = op_def.SerializeToString(deterministic=True)[: len(known)]
    other.write_bytes(content.replace(known, changed))
    done = run(["-c", _BESIDE, "fusion", str(other)])
    assert done.stdout == "[4.0, 5.0]\n", done.stderr
    text = "not registered, for those of another version are there"
    assert says(done) == [f"fusion ops {__version__}: {text}"]


@pytest.mark.skipif(HOST_LEVELS[-1] == 4, reason="this machine has all levels")
def test_a_processor_without_the_level_is_named(models, build_library):
    done = serve(models, build_library(4))
    assert done.returncode == 1
    text = "not registered, for this processor has less than all of x86-64-v4"
    assert says(done) == [f"fusion ops {__version__}: {text}"]


def test_libraries_of_the_same_sources_are_the_same(library, build_library):
    assert build_library(*HOST_LEVELS[-2:]).read_bytes() == library.read_bytes()


def readelf(*arguments: object) -> str:
    command = ["readelf", "-W", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_library_needs_tensorflow_and_libc_alone(library):
    lines = [line.split() for line in readelf("--dyn-syms", library).splitlines()]
    symbols = [line for line in lines if len(line) == 8 and line[0][:-1].isdigit()]
    undefined = {line[7] for line in symbols if line[6] == "UND"}
    assert {name for name in undefined if not name.startswith("TF_")} <= LIBC
    assert {line[7] for line in symbols if line[6] != "UND"} == {EXPORTED}
    needed = [line for line in readelf("-d", library).splitlines() if "(NEEDED)" in line]
    assert [line.split()[-1] for line in needed] == ["[libtensorflow_framework.so.2]"]


def test_no_memory_of_a_library_can_be_written_and_run(library):
    segments = [line.split() for line in readelf("-l", library).splitlines()]
    flags = {line[0]: "".join(line[6:-1]) for line in segments if line[:1] == ["GNU_STACK"]}
    flags |= {f"LOAD {k}": "".join(s[6:-1]) for k, s in enumerate(segments) if s[:1] == ["LOAD"]}
    assert len(flags) > 2
    assert not [name for name, flag in flags.items() if "W" in flag and "E" in flag]
    assert "TEXTREL" not in readelf("-d", library)


def test_the_manifest(library):
    manifest = read_manifest(library)
    assert manifest.fusion == __version__
    assert manifest.ops == [spec.name for spec in SPECS]
    assert [*manifest.cpus] == [LEVELS[level] for level in HOST_LEVELS[-2:]]
    assert all("lookup_kernel_CPU" in kernels for kernels in manifest.cpus.values())


@pytest.mark.parametrize("size", [0, 3, 100, 20_000, -1, -4000])
def test_what_is_no_library_is_refused(library, tmp_path, size):
    part = tmp_path / "part.so"
    part.write_bytes(library.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"part\.so: no library of fusion ops, or a damaged one"):
        read_manifest(part)


def test_other_libraries_have_no_manifest():
    with pytest.raises(ValueError, match="no library of fusion ops"):
        read_manifest(sys.executable)


def test_an_archive_has_all_of_it(build_library, tmp_path):
    archive = build_library(HOST_LEVELS[-1], name="libfusion_ops.a", is_static=True)
    assert archive.read_bytes().startswith(b"!<arch>\n")
    assert read_manifest(linked(archive, tmp_path)).fusion == __version__


def linked(archive: Path, folder: Path) -> Path:
    """A library of all that is in an archive."""
    library = folder / "linked.so"
    command = [*find_tools().linker, "-shared", "--whole-archive", str(archive), "-o", str(library)]
    subprocess.run(command, check=True)
    return library


def test_without_tools_those_of_ziglang_are_taken(models, build_library, monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    level = HOST_LEVELS[-1]
    assert find_tools().linker == [sys.executable, "-m", "ziglang", "ld.lld"]
    done = serve(models, build_library(level))
    assert done.stdout == "equal\n", done.stderr
    archive = build_library(level, name="libfusion_ops.a", is_static=True)
    assert read_manifest(linked(archive, tmp_path)).fusion == __version__


def test_without_any_tools_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LinkError, match=r"pip install 'tf-embedding-fusion\[native\]'"):
        find_tools()


def test_a_linker_that_fails_is_named(build_library, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/false")
    with pytest.raises(LinkError, match=r"^/bin/false .* failed"):
        build_library(HOST_LEVELS[-1])


@pytest.mark.parametrize("cpus", [["x86-64"], ["v3"], ["x86-64-v3", "znver3"]])
def test_processors_that_are_none_are_refused(cpus, tmp_path):
    with pytest.raises(ValueError, match=r"cpus must be of x86-64-v2, .*, native, got"):
        fusion.build_ops(tmp_path / "lib.so", cpus=cpus)
    with pytest.raises(ValueError, match="cpus must not be empty"):
        fusion.build_ops(tmp_path / "lib.so", cpus=[])
    with pytest.raises(ValueError, match="cpus must be a list, got 'x86-64-v3'"):
        fusion.build_ops(tmp_path / "lib.so", cpus="x86-64-v3")
    with pytest.raises(ValueError, match="models must be a list, got 'model'"):
        fusion.build_ops(tmp_path / "lib.so", "model")
    with pytest.raises(ValueError, match=r"none/lib\.so: .*none cannot be written"):
        fusion.build_ops(tmp_path / "none" / "lib.so")
    assert not [*tmp_path.iterdir()]


def test_recipes_are_for_the_processor_that_is_compiled_for():
    """Levels have different tiles, and were mixed up where both are compiled for."""
    for level in (3, 4, 3):
        with processor.compiling_for(Processor(LEVELS[level])):
            for tile, (lanes, vectors) in enumerate(tiles("float32"), 1):
                index = shape_index(DTYPES["float32"].code, tile)
                gather = GATHERS.at(index * GATHER_VARIANTS)
                assert gather.name == f"gather_float32_{vectors}x{lanes}"
                scatter = SCATTERS.at(index * SCATTER_VARIANTS)
                assert scatter.name == f"scatter_float32_{vectors}x{lanes}"
