"""Kernels compiled before a model runs are all that it needs."""

from __future__ import annotations

import errno
import os
import re
import sys
from pathlib import Path

import pytest
import tensorflow as tf

import fusion
from fusion.ops import node_kernels
from fusion.runtime.cache import kernel_cache, processor
from fusion.runtime.cache.kernel_cache import KernelCache
from fusion.runtime.native.objects import Recipe
from fusion.saved_model import ModelError, warm
from fusion.saved_model.loading.warming import nodes_of
from tests import zygote

#: Prints what is compiled, and what a model answers.
SERVE = """
import logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
import tensorflow as tf
import fusion
if sys.argv[2] == "enable":
    fusion.enable()
model = tf.saved_model.load(sys.argv[1])
ids = tf.sparse.from_dense([[1, 2, 0], [0, 0, 0]])
ids = tf.SparseTensor(ids.indices, tf.cast(ids.values, tf.int64), ids.dense_shape)
weights = tf.SparseTensor(ids.indices, [0.5, 2.0], ids.dense_shape)
print(f"answer {model(ids, weights).numpy().sum():.2f}")
print("fused", fusion.stats().columns_fused)
"""


class Model(tf.Module):
    """Three columns of different dimensions, one weighted."""

    def __init__(self) -> None:
        self.tables = [tf.Variable(tf.ones([50, dim])) for dim in (16, 5, 3)]

    @tf.function(
        input_signature=[
            tf.SparseTensorSpec([None, None], tf.int64),
            tf.SparseTensorSpec([None, None], tf.float32),
        ]
    )
    def __call__(self, ids: tf.SparseTensor, weights: tf.SparseTensor) -> tf.Tensor:
        look_up = tf.nn.safe_embedding_lookup_sparse
        first, second, third = self.tables
        columns = [look_up(first, ids), look_up(second, ids, combiner="sum")]
        return tf.concat([*columns, look_up(third, ids, weights, max_norm=1.0)], 1)


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "stock"
    tf.saved_model.save(Model(), str(path))
    return path


@pytest.fixture(scope="module")
def fused(stock: Path) -> Path:
    path = stock.with_name("fused")
    fusion.fuse_saved_model(stock, path, verify=False)
    return path


def served(model: Path, how: str, folder: Path, **variables: str) -> list[str]:
    """What a process says that serves a model with the kernels of a folder."""
    environment = {k: v for k, v in os.environ.items() if k != "FUSION_CPU"}
    environment |= {"FUSION_CACHE_DIR": str(folder), **variables}
    command = [sys.executable, "-c", SERVE, str(model), how]
    server = zygote.without_fusion()
    done = zygote.run(
        command, server=server, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("source", ["stock", "fused"])
def test_a_process_with_the_kernels_of_its_model_compiles_nothing(
    source: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(source)
    done = warm([model], folder=tmp_path)
    assert done.kernels == done.added == len([*tmp_path.glob("*.o")])
    assert (done.cpu, done.folder) == (processor.target().name, str(tmp_path))
    before = sorted(os.listdir(tmp_path))
    answer, fused_count = served(model, "enable", tmp_path)
    assert answer == "answer 27.73"
    assert (int(fused_count.split()[1]) > 0) == (source == "stock")
    assert sorted(os.listdir(tmp_path)) == before
    assert warm([model], folder=tmp_path).added == 0


def test_one_without_them_does(fused: Path, tmp_path: Path) -> None:
    done = warm([fused], folder=tmp_path)
    (kernel,) = tmp_path.glob("gather_*_clipped@*.o")  # which no package has
    kernel.unlink()
    lines = served(fused, "not", tmp_path)
    assert lines[0] == f"compiling kernels for {done.cpu}"
    assert re.match("compiled gather_.*_clipped in ", lines[1])
    assert lines[2:] == ["answer 27.73", "fused 0"]


def test_kernels_for_a_processor_serve_where_it_is_named(fused: Path, tmp_path: Path) -> None:
    done = warm([fused], cpu="x86-64-v3", folder=tmp_path)
    assert done.cpu == "x86-64-v3"
    assert served(fused, "not", tmp_path, FUSION_CPU="x86-64-v3") == ["answer 27.73", "fused 0"]


def test_kernels_for_a_processor_are_not_run_to_be_compiled(
    fused: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "x86-64-v4"
    monkeypatch.setattr(processor, "host", lambda: processor.Processor("haswell"))
    assert not processor.runs(processor.named(other), on=processor.host())
    recipes = {"infer_shapes": Recipe(lambda: b"code"), "thing": Recipe(lambda: b"more code")}
    monkeypatch.setattr(node_kernels, "of_nodes", lambda _: recipes)
    targets = []
    done = warm([fused], other, tmp_path, lambda *progress: targets.append(progress))
    assert (done.kernels, done.added, done.cpu) == (2, 2, other)
    assert targets == [(1, 2, "infer_shapes"), (2, 2, "thing")]
    assert sorted(path.name.partition("@")[0] for path in tmp_path.glob("*.o")) == [*recipes]


def test_what_cannot_be_done_is_an_error(stock: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file or directory"):
        warm([tmp_path / "none"])
    with pytest.raises(ValueError, match=r"pentium.* is none of"):
        warm([stock], cpu="pentium")
    tmp_path.chmod(0o777)
    with pytest.raises(ValueError, match="can be written by others"):
        warm([stock], folder=tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_node_that_could_not_run_is_named(tmp_path: Path) -> None:
    graph_def = tf.compat.v1.GraphDef()
    node = graph_def.node.add(name="a/b", op="GroupedEmbeddingPreLookUp")
    node.attr["num_columns"].i = 1
    file = tmp_path / "graph.pb"
    file.write_bytes(graph_def.SerializeToString())
    with pytest.raises(ModelError, match=r"graph.pb.*a/b.*GroupedEmbeddingPreLookUp"):
        warm([file], folder=tmp_path / "kernels")


def test_without_a_model_all_ops_have_all_kernels() -> None:
    recipes = {*node_kernels.of_all_ops()}
    for name in (
        *("infer_shapes", "serve", "lookup_kernel_CPU", "UniqueWithCountsV3_CPU_int32"),
        *("FusedEmbeddingSparsePostLookUpV2_CPU_bfloat16_float64", "gather_float32_any"),
        *("update_float64", "build_columns_state", "build_update_state", "build_plain_state"),
        *("gather_float32_any_weighted", "scatter_float32_1x8", "scatter_float32_any_weighted"),
        *("build_bag_state", "gather_float64_any", "scatter_float64_any_weighted"),
    ):
        assert name in recipes
    assert not [
        name for name in recipes if "clipped" in name or name.startswith("gather_float64_1")
    ]


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_common_types_are_all_that_most_models_need(dtype: tf.DType, tmp_path: Path) -> None:
    """Of a model of float32 tables, and of another one not all."""

    class Shop(tf.Module):
        def __init__(self) -> None:
            self.tables = [tf.Variable(tf.ones([50, dim], dtype)) for dim in (1, 16, 24, 300)]

        @tf.function(input_signature=[tf.TensorSpec([None, 20], tf.int64)])
        def __call__(self, ids: tf.Tensor) -> tf.Tensor:
            rows = [tf.reduce_mean(tf.gather(table, ids), 1) for table in self.tables]
            sparse = tf.sparse.from_dense(ids)
            bags = [tf.nn.safe_embedding_lookup_sparse(table, sparse) for table in self.tables]
            return tf.concat([*rows, *bags], 1)

    tf.saved_model.save(Shop(), str(tmp_path))
    for cpu in ("x86-64-v3", "x86-64-v4"):  # with vectors of different widths
        with processor.compiling_for(processor.named(cpu)):
            needed = {*node_kernels.of_nodes(nodes_of(tmp_path))}
            lacking = needed - {*node_kernels.of_common_types()}
        assert {"lookup_kernel_CPU", "build_columns_state"} <= needed
        assert bool(lacking) == (dtype != tf.float32)


def test_of_all_types_there_are_more() -> None:
    common, all_types = node_kernels.of_common_types(), node_kernels.of_all_ops()
    assert "UniqueWithCountsV3_CPU_int64" in common
    assert "UniqueWithCountsV3_CPU_int32" not in common
    assert "UniqueWithCountsV3_CPU_int32" in all_types
    assert not [name for name in common if "float16" in name or "float64" in name]


def test_without_a_model_those_of_common_types_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fusion.runtime.native import objects

    with processor.compiling_for(processor.named("x86-64-v3")):
        wanted = {*node_kernels.of_common_types()}
    node_kernels.of_all_ops()  # for which this process loads kernels of its own
    compiled: list[str] = []

    def compile_it(name: str, made_by: object) -> bytes:
        compiled.append(name)
        return b"code"

    monkeypatch.setattr(objects, "compiled", compile_it)
    monkeypatch.setattr(kernel_cache, "default", lambda: KernelCache(str(tmp_path / "known")))
    shown: list[tuple[int, int]] = []

    def show(number: int, count: int, name: str) -> None:
        shown.append((number, count))

    common = warm(folder=tmp_path / "common", cpu="x86-64-v3", progress=show)
    assert shown == [(number, common.added) for number in range(1, common.added + 1)]
    assert common.kernels == common.added == len({*compiled}) == len(compiled)
    assert {*compiled} == wanted
    compiled.clear()
    every = warm(folder=tmp_path / "every", cpu="x86-64-v3", all_types=True)
    assert every.added > common.added
    assert "UniqueWithCountsV3_CPU_int32" in compiled


def test_a_cache_of_its_own_is_filled_from_the_known_one(
    fused: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fusion.runtime.native import objects

    warm([fused], folder=tmp_path / "first")
    known = KernelCache(str(tmp_path / "first"))
    monkeypatch.setattr(kernel_cache, "default", lambda: known)
    monkeypatch.setattr(objects, "compiled", None)
    done = warm([fused], folder=tmp_path / "second")
    assert done.added == done.kernels
    assert sorted(os.listdir(tmp_path / "first")) == sorted(os.listdir(tmp_path / "second"))


def test_a_kernel_that_cannot_be_kept_is_an_error(
    fused: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fusion.runtime.cache import trusted_files

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(trusted_files, "write", fail)
    with pytest.raises(ValueError, match=r"the kernel \S+ cannot be kept"):
        warm([fused], folder=tmp_path)
