"""A training graph whose fused ops a library runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import fusion
from fusion.ops import node_kernels
from fusion.ops_library.build import build
from fusion.saved_model.loading.warming import nodes_of
from tests.ops_library import trained
from tests.ops_library.conftest import HOST_LEVELS
from tests.ops_library.test_library import run

COLUMNS = "abc"


class Model(tf.Module):
    """Three tables and a dense layer, trained by gradient descent."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        tables = [rng.standard_normal((50, 8)).astype(np.float32) for _ in COLUMNS]
        self.tables = [tf.Variable(table) for table in tables]
        self.kernel = tf.Variable(rng.standard_normal((24, 1)).astype(np.float32))

    @tf.function(
        input_signature=[tf.TensorSpec([None, 5], tf.int64, name=name) for name in COLUMNS]
    )
    def train(self, a: tf.Tensor, b: tf.Tensor, c: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.GradientTape() as tape:
            rows = [
                tf.nn.safe_embedding_lookup_sparse(table, tf.sparse.from_dense(ids))
                for table, ids in zip(self.tables, (a, b, c), strict=True)
            ]
            loss = tf.reduce_mean(tf.square(tf.concat(rows, 1) @ self.kernel - 1.0))
        *slices, of_kernel = tape.gradient(loss, [*self.tables, self.kernel])
        for table, grad in zip(self.tables, slices, strict=True):
            table.scatter_sub(tf.IndexedSlices(0.1 * grad.values, grad.indices))
        self.kernel.assign_sub(0.1 * of_kernel)
        return {"loss": loss}


def test_a_library_trains_as_stock_does(tmp_path):
    stock, fused, library = (tmp_path / name for name in ("stock", "fused", "libfusion_ops.so"))
    model = Model()
    tf.saved_model.save(model, str(stock), signatures={"train": model.train})
    assert fusion.fuse_saved_model(stock, fused, verify=False).fused_count == len(COLUMNS)
    assert "GroupedEmbeddingPostLookUpGrad" in {node.op for node in nodes_of(fused)}
    build(library, HOST_LEVELS[-1:], lambda: node_kernels.places_of_nodes(nodes_of(fused)))
    rng = np.random.default_rng(3)
    names = [f"{name}/{step}" for name in COLUMNS for step in range(5)]
    feeds: dict[str, Any] = {name: rng.integers(0, 50, (40, 5)) for name in names}
    np.savez(tmp_path / "feeds.npz", **feeds)
    command = [trained.__file__, "train", str(tmp_path / "feeds.npz")]
    done = [run([*command, str(stock)]), run([*command, str(fused), str(library)])]
    assert done[0].returncode == 0, done[0].stderr
    assert len({*done[0].stdout.splitlines()}) == 6
    assert done[1].stdout == done[0].stdout, done[1].stderr
