"""A library of ops crosses features in stock TensorFlow."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

import fusion
from fusion.ops import node_kernels
from fusion.ops_library.build import build
from fusion.saved_model.loading.warming import nodes_of
from tests.ops_library import served_crosses
from tests.ops_library.conftest import HOST_LEVELS
from tests.ops_library.test_library import run


def save(path: Path) -> None:
    """Saves a model of the bags of two crosses."""
    module = tf.Module()
    module.tables = [tf.Variable(tf.random.normal([50, 4], seed=seed)) for seed in range(2)]
    specs = [tf.TensorSpec([None, 1], dtype) for dtype in (tf.string, tf.int64)]

    @tf.function(input_signature=specs)
    def serve(word: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        crosses = [tf.sparse.cross_hashed(pair, 50) for pair in ([word, number], [number, number])]
        bags = [
            tf.nn.safe_embedding_lookup_sparse(table, ids)
            for table, ids in zip(module.tables, crosses, strict=True)
        ]
        return tf.concat(bags, 1)

    tf.saved_model.save(module, str(path), signatures={"serving_default": serve})


def test_fused_crosses_answer_as_the_original(tmp_path: Path) -> None:
    model, fused, library = (tmp_path / name for name in ("model", "fused", "libops.so"))
    save(model)
    report = fusion.fuse_saved_model(model, fused, verify=False)
    assert {one.crosses for one in report.crosses if one.fused} == {2}
    build(library, HOST_LEVELS[-1:], lambda: node_kernels.places_of_nodes(nodes_of(fused)))
    done = run([served_crosses.__file__, *map(str, (model, fused, library))])
    assert done.stdout == "equal\n", done.stderr
