"""A model, and libraries with what it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.ops import node_kernels
from fusion.ops_library.build import build
from fusion.runtime.cache import processor
from fusion.runtime.cache.processor import Processor
from fusion.runtime.registration.library.record import LEVELS
from fusion.saved_model.loading.warming import nodes_of
from tests import zygote
from tests.ops_library.served import COLUMNS

forks = zygote.forks_of("fusion.saved_model.verify.processes", has_fusion=False)

HOST_LEVELS = [
    level for level in (2, 3, 4) if processor.runs(Processor(LEVELS[level]), on=processor.host())
]


class Model(tf.Module):
    """Three lookups in variables, of dimensions with row kernels of their own and without."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        tables = [rng.standard_normal((50, dim)).astype(np.float32) for dim in (8, 13, 200)]
        self.tables = [tf.Variable(table) for table in tables]

    @tf.function(
        input_signature=[tf.TensorSpec([None, 5], tf.int64, name=name) for name in COLUMNS]
    )
    def serve(self, a: tf.Tensor, b: tf.Tensor, c: tf.Tensor) -> dict[str, tf.Tensor]:
        found = [
            tf.nn.safe_embedding_lookup_sparse(table, tf.sparse.from_dense(ids), combiner=combiner)
            for table, ids, combiner in zip(
                self.tables, (a, b, c), ("mean", "sum", "sqrtn"), strict=True
            )
        ]
        return {"embeddings": tf.concat(found, 1)}


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A SavedModel, and the same fused."""
    folder = tmp_path_factory.mktemp("models")
    model = Model()
    tf.saved_model.save(model, str(folder / "model"), signatures=model.serve)
    report = fusion.fuse_saved_model(folder / "model", folder / "fused", verify=False)
    assert report.fused_count == len(COLUMNS)
    return folder / "model", folder / "fused"


Build = Callable[..., Path]


@pytest.fixture(scope="session")
def build_library(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Builds a library with what the model needs, for levels of processors."""

    def build_it(
        *levels: int,
        name: str = "libfusion_ops.so",
        choose: Callable[[str], bool] = lambda _: True,
        **options: Any,
    ) -> Path:
        def places() -> Iterator[node_kernels.Place]:
            found = node_kernels.places_of_nodes(nodes_of(models[1]))
            yield from (place for place in found if choose(place[0].recipe(place[1])[0]))
            yield from any_rows()

        output = tmp_path_factory.mktemp("library") / name
        build(output, levels, places, **options)
        return output

    return build_it


def any_rows() -> Iterable[node_kernels.Place]:
    """The row kernels for any dimension of float32."""
    for kernels_of, what in node_kernels.places_of_any_dimension():
        if kernels_of.recipe(what)[0] == "gather_float32_any":
            yield kernels_of, what


@pytest.fixture(scope="session")
def library(build_library: Build) -> Path:
    """A library for the levels up to this machine's, two at most."""
    return build_library(*HOST_LEVELS[-2:])
