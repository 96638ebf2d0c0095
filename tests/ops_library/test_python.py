"""`import fusion` with the kernels of a library, where nothing can be compiled."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf

import fusion
from fusion import ops
from fusion import saved_model as fusion_saved_model
from fusion.cli import main
from fusion.ops import node_kernels
from fusion.ops_library.build import build
from fusion.version import __version__
from tests.examples.native import without_log
from tests.ops.embedding_columns import NO_IDS, attrs
from tests.ops_library.conftest import HOST_LEVELS, any_rows
from tests.ops_library.test_library import run
from tests.runtime.test_threads import FORK

#: Packages that such a process does not need.
_NEEDLESS = ("click", "llvmlite", "networkx", "numba", "rich")

_BEGIN = f"import sys\nfor name in {_NEEDLESS}: sys.modules[name] = None\n"

_LOOKUPS = (
    _BEGIN
    + """
import numpy as np, tensorflow as tf, fusion
model, fused = (tf.saved_model.load(path) for path in sys.argv[1:3])
ids = {name: tf.constant(np.random.default_rng(1).integers(-3, 50, (9, 5))) for name in "abc"}
given, wanted = (one.signatures["serving_default"](**ids) for one in (fused, model))
np.testing.assert_array_equal(given["embeddings"], wanted["embeddings"])
print(fusion.fuse_saved_model(sys.argv[1], sys.argv[3]).fused_count)
(grouped,) = (one for one in fusion.stats().ops if one.op == "GroupedEmbeddingLookup")
print(grouped.calls, grouped.rows == sum(map(np.count_nonzero, ids.values())))
table = tf.Variable(np.ones([4, 8], np.float32))
ids = tf.sparse.from_dense([[1, 2], [3, 0]])
try:
    fusion.fused_safe_embedding_lookup_sparse(table, ids)
except tf.errors.UnimplementedError as error:
    print(error.message.partition("} ")[2])
try:
    fusion.enable()
except ImportError as error:
    print(error)
"""
)


def test_what_needs_no_compiler_works_and_the_rest_says_so(models, library, tmp_path):
    arguments = ["-c", _LOOKUPS, *map(str, models), str(tmp_path / "fused")]
    done = run(arguments, FUSION_OPS_LIBRARY=str(library))
    assert done.returncode == 0, done.stderr
    count, counted, lookup, enabled = done.stdout.splitlines()
    assert count == "3"
    assert counted == "1 True"
    assert "the library of ops was built without the kernel for the dtypes" in lookup
    assert "needs a compiler, the packages numba and llvmlite" in enabled


def test_without_a_library_it_says_what_is_missing():
    done = run(["-c", _BEGIN + "import fusion"], FUSION_OPS_LIBRARY="")
    last = done.stderr.splitlines()[-1]
    assert "ImportError: this needs a compiler, the packages numba and llvmlite" in last
    assert "a library of ops (FUSION_OPS_LIBRARY)" in last


def test_the_library_beside_the_package_is_taken(library, models, tmp_path):
    """The package is copied, so that nothing is put into its folder."""
    package = Path(fusion.__file__).parent
    shutil.copytree(package, tmp_path / "fusion", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(library, tmp_path / "fusion" / "libfusion_ops.so")
    code = _BEGIN + "sys.path.insert(0, sys.argv[1])\nimport fusion\nprint(fusion.__file__)"
    done = run(["-c", code, str(tmp_path)])
    assert done.stdout == f"{tmp_path / 'fusion' / '__init__.py'}\n", done.stderr
    done = run(["-c", code, str(tmp_path)], FUSION_OPS_LIBRARY="")
    assert "needs a compiler" in done.stderr.splitlines()[-1]


def changed_version(library, path):
    content, version = library.read_bytes(), f'"fusion":"{__version__}"'.encode()
    assert content.count(version) == 1
    path.write_bytes(content.replace(version, b'"fusion":"9.9.9"'))
    return path


def test_libraries_that_do_not_fit_are_refused(library, build_library, tmp_path):
    damaged = tmp_path / "damaged.so"
    damaged.write_bytes(library.read_bytes()[:-1])
    for path, message in (
        (tmp_path / "none.so", "No such file or directory"),
        (damaged, "damaged.so: no library of fusion ops, or a damaged one"),
        (
            changed_version(library, tmp_path / "other.so"),
            f"other.so cannot be used: it is of fusion 9.9.9, and this is {__version__}",
        ),
    ):
        done = run(["-c", "import fusion"], FUSION_OPS_LIBRARY=str(path))
        assert done.returncode == 1
        last = done.stderr.splitlines()[-1]
        assert "(FUSION_OPS_LIBRARY names another, or none if it is empty)" in last
        assert last.startswith("ImportError: the library of ops ")
        assert message in last


@pytest.mark.parametrize("command", ["warm", "build-ops"])
def test_commands_that_compile_say_so(command, models, library, tmp_path):
    output = ["-o", str(tmp_path / "lib.so")] if command == "build-ops" else []
    arguments = ["-m", "fusion.cli", command, *output, str(models[1])]
    done = run(arguments, FUSION_OPS_LIBRARY=str(library))
    assert done.returncode == 2
    (line,) = without_log(done.stderr).splitlines()
    assert "takes its kernels from a library of ops and compiles none" in line


def test_doctor_names_the_library(library):
    done = run(["-m", "fusion.cli", "doctor"], FUSION_OPS_LIBRARY=str(library))
    assert done.returncode == 0
    facts = {line[4:].split("  ")[0]: line for line in done.stdout.splitlines()}
    assert str(library) in facts["ops library"]
    assert "numba" not in facts


def test_verify_runs_the_fused_model_by_the_library(models, library, build_library, capsys):
    a, b = models
    result = fusion_saved_model.compare_models(a, b, library=library)
    assert not result.differences
    assert result.runs > 3
    lacking = build_library(HOST_LEVELS[-1], choose=lambda name: "lookup_kernel" not in name)
    result = fusion_saved_model.compare_models(a, b, library=lacking)
    assert "the library of ops was built without the kernel" in str(result.differences[0])
    assert main(["verify", *map(str, models), "--library", str(library)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("same: 1 signature, 10 runs")


def test_verify_refuses_what_is_no_library(models, tmp_path, capsys):
    (tmp_path / "part.so").write_text("text")
    for name, message in (
        ("none.so", "none.so: no such file or directory"),
        ("part.so", "part.so: no library of fusion ops, or a damaged one"),
    ):
        assert main(["verify", *map(str, models), "--library", str(tmp_path / name)]) == 2
        assert message in capsys.readouterr().err


def test_kernels_go_on_after_a_fork(tmp_path):
    library = tmp_path / "libfusion_ops.so"
    with tf.Graph().as_default() as graph:
        table, ids = tf.zeros([10, 4]), tf.zeros([3, 1], tf.int64)
        ops.fused_embedding_lookup(
            table=table,
            ids=ids,
            entry_rows=NO_IDS,
            dense_shape=NO_IDS,
            weights=table[:0, 0],
            **attrs(form="dense", dim=4),
        )

    def places() -> Iterator[node_kernels.Place]:
        yield from node_kernels.places_of_nodes(graph.as_graph_def().node)
        yield from any_rows()

    build(library, HOST_LEVELS[-1:], places)
    done = run(["-c", FORK], FUSION_OPS_LIBRARY=str(library), FUSION_NUM_THREADS="4")
    assert done.returncode == 0, done.stderr
