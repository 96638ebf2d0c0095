"""Builds a library of ops, and its archive: cold_library.py FOLDER MODEL [warm].

With "warm" a kernel has run before, so that others are compiled first than without.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import tensorflow as tf

import fusion
from fusion.ops import node_kernels
from fusion.ops_library.build import build
from fusion.saved_model.loading.warming import nodes_of


def main(folder: str, model: str, *options: str) -> None:
    """The program."""
    if options:
        ids = tf.sparse.from_dense([[1]])
        fusion.fused_safe_embedding_lookup_sparse(tf.Variable([[1.0], [2.0]]), ids)

    def places() -> Iterable[node_kernels.Place]:
        return node_kernels.places_of_nodes(nodes_of(model))

    build(Path(folder) / "libfusion_ops.so", [3], places)
    build(Path(folder) / "libfusion_ops.a", [3], places, is_static=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
