"""Graphs of compat.v1 that this package itself builds: tables of all kinds, and steps of training.

A graph has `out`, what its lookups give; `train`, a step of training, or `gradient_0` and so on,
those of its tables; and `initialize`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fusion import lookup
from fusion.feature_column import embedding_column, shared_embedding_columns
from fusion.lookup import Lookup, grouped_lookup, trained_lookup
from fusion.lookup.options import LookupOptions
from fusion.optimizers import LazyAdamOptimizer
from tests.passes.own_graphs import BATCH, DIM, PLACES, ROWS, VALUES, WEIGHTS

v1 = tf.compat.v1
fc = tf.feature_column
START = np.random.default_rng(3).normal(size=(ROWS, DIM)).astype(np.float32)
STEPS = 2


def variable(use_resource: bool, shards: int = 1) -> Any:
    def start(shape: Any, dtype: Any = None, partition_info: Any = None) -> tf.Tensor:
        first = 0 if partition_info is None else partition_info.var_offset[0]
        return tf.constant(START[first : first + shape[0]])

    return v1.get_variable(
        "table",
        [ROWS, DIM],
        initializer=start,
        use_resource=use_resource,
        partitioner=v1.fixed_size_partitioner(shards) if shards > 1 else None,
    )


TENSORS: dict[str, Callable[[], Any]] = {
    "constant": lambda: tf.constant(START),
    "computed": lambda: tf.constant(START) * 2,
    "fed": lambda: v1.placeholder_with_default(START, [None, DIM]),
    "shards of constants": lambda: [tf.constant(START[::2]), tf.constant(START[1::2])],
}
VARIABLES: dict[str, Callable[[], Any]] = {
    "reference": lambda: variable(use_resource=False),
    "resource": lambda: variable(use_resource=True),
    "shards of references": lambda: variable(use_resource=False, shards=2),
    "shards of resources": lambda: variable(use_resource=True, shards=2),
}
TABLES = TENSORS | VARIABLES


def fed(values: Any, dtype: Any) -> tf.Tensor:
    """A tensor that no graph folds into a constant."""
    return v1.placeholder_with_default(np.array(values, dtype), [None] * np.ndim(values))


def sparse() -> tf.SparseTensor:
    return tf.SparseTensor(fed(PLACES, np.int64), fed(VALUES, np.int64), [BATCH, 3])


def weights(ids: tf.SparseTensor) -> tf.SparseTensor:
    return tf.SparseTensor(ids.indices, fed(WEIGHTS, np.float32), ids.dense_shape)


def safe(version: str) -> Callable[[Any], tf.Tensor]:
    return lambda table: lookup.fused_safe_embedding_lookup_sparse(
        table, sparse(), fusion_version=version
    )


def weighted(version: str) -> Callable[[Any], tf.Tensor]:
    def look_up(table: Any) -> tf.Tensor:
        ids = sparse()
        return lookup.fused_safe_embedding_lookup_sparse(
            table,
            ids,
            weights(ids),
            combiner="sqrtn",
            default_id=2,
            max_norm=0.7,
            fusion_version=version,
        )

    return look_up


def grouped(function: Callable[..., tf.Tensor]) -> Callable[[Any], tf.Tensor]:
    def look_up(table: Any) -> tf.Tensor:
        ids = sparse()
        return function(
            [
                Lookup(table, ids, None, LookupOptions()),
                Lookup(table, ids, weights(ids), LookupOptions(combiner="sum")),
            ]
        )

    return look_up


def input_layer(do_fusion: str, use_resource: bool) -> tf.Tensor:
    one, other, third = (fc.categorical_column_with_identity(name, ROWS) for name in "abc")
    columns = list(shared_embedding_columns([one, other], DIM, do_fusion=do_fusion))
    columns.append(embedding_column(third, DIM, do_fusion=do_fusion))
    ids = sparse()
    dense = fed([[0, 9], [3, -1], [7, 8], [1, 1], [2, 2]], np.int64)
    v1.set_random_seed(5)
    with v1.variable_scope("model", use_resource=use_resource):
        return v1.feature_column.input_layer({"a": ids, "b": dense, "c": ids}, columns)


LOOKUPS: dict[str, Callable[[Any], tf.Tensor]] = {
    "v1": safe("v1"),
    "v2": safe("v2"),
    "v1 weighted": weighted("v1"),
    "v2 weighted": weighted("v2"),
    "grouped_lookup": grouped(grouped_lookup),
    "trained_lookup": grouped(trained_lookup),
}
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "gradient descent": lambda: v1.train.GradientDescentOptimizer(0.1),
    "lazy Adam": lambda: LazyAdamOptimizer(0.1),
}


@dataclass(frozen=True)
class OwnV1:
    """A kind of graph.

    Attributes:
        look_up: what looks up, that of one of LOOKUPS or "input_layer v2".
        table: of TABLES.
        trained: "" for inference, "gradients", or one of OPTIMIZERS.
    """

    look_up: str
    table: str
    trained: str = ""

    def __str__(self) -> str:
        return f"{self.look_up}, {self.table}, {self.trained or 'inference'}"

    @property
    def columns(self) -> int:
        if self.look_up.startswith("input_layer"):
            return 3
        return 2 if self.look_up in ("grouped_lookup", "trained_lookup") else 1

    @property
    def is_exact(self) -> bool:
        """Whether stock ops give the same bits."""
        return not (self.look_up.endswith("weighted") or self.look_up == "grouped_lookup")

    @property
    def fetches(self) -> list[str]:
        """All that the graph is for, but for its initializer."""
        if self.trained == "gradients":
            shards = 2 if self.table.startswith("shards") else 1
            return ["out", *(f"gradient_{number}" for number in range(shards))]
        return ["out", "train"] if self.trained else ["out"]

    def build(self) -> graph_pb2.GraphDef:
        with tf.Graph().as_default() as graph:
            table: Any = None
            if self.look_up.startswith("input_layer"):
                found = input_layer(self.look_up[-2:], self.table == "resource")
            else:
                table = TABLES[self.table]()
                found = LOOKUPS[self.look_up](table)
            tf.identity(found, name="out")
            factors = tf.cos(tf.range(tf.size(found), dtype=tf.float32))
            loss = tf.reduce_sum(tf.reshape(found, [-1]) * factors)
            if self.trained == "gradients":
                parts = list(table) if self.table.startswith("shards") else [table]
                for number, one in enumerate(tf.gradients(loss, parts)):
                    tf.identity(tf.convert_to_tensor(one), name=f"gradient_{number}")
            elif self.trained:
                OPTIMIZERS[self.trained]().minimize(loss, name="train")
            tf.group(v1.global_variables_initializer(), name="initialize")
            return graph.as_graph_def()

    def run(self, graph_def: graph_pb2.GraphDef) -> list[Any]:
        """What the graph gives, and what it gives after some steps of training."""
        tensors = [f"{name}:0" for name in self.fetches if name != "train"]
        with tf.Graph().as_default(), v1.Session() as session:
            tf.import_graph_def(graph_def, name="")
            session.run("initialize")
            found = list(session.run(tensors))
            for _ in range(STEPS if "train" in self.fetches else 0):
                session.run("train")
                found += session.run(tensors)
            return found


def _kinds() -> Iterator[OwnV1]:
    for version in ("v1", "v2"):
        yield from (OwnV1(version, table, "gradients") for table in TABLES)
        yield from (OwnV1(version, table, "gradient descent") for table in VARIABLES)
        yield OwnV1(version, "reference", "lazy Adam")
        yield OwnV1(f"input_layer {version}", "reference")
        yield OwnV1(f"input_layer {version}", "reference", "lazy Adam")
        yield OwnV1(f"input_layer {version}", "resource", "gradient descent")
    for look_up in LOOKUPS:
        for table in ("constant", "reference"):
            yield OwnV1(look_up, table)
            if look_up not in ("v1", "v2"):
                yield OwnV1(look_up, table, "gradients")
    for look_up in ("grouped_lookup", "trained_lookup"):
        yield OwnV1(look_up, "reference", "gradient descent")


OWN_V1 = (*_kinds(),)
