"""Every kind of graph that this package itself builds, to be rewritten by its own pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from fusion import lookup
from fusion.feature_column import (
    DenseFeatures,
    embedding_column,
    shared_embedding_columns,
    shared_embeddings,
)
from fusion.lookup import Lookup, grouped_lookup, trained_lookup
from fusion.lookup.grouped import grouped_lookups, trained_lookups
from fusion.lookup.options import LookupOptions
from fusion.optimizers import LazyAdam

v1 = tf.compat.v1
fc = tf.feature_column
ROWS, DIM, BATCH = 10, 4, 5
PLACES = [[0, 1], [0, 0], [2, 0], [2, 1], [3, 0], [3, 1], [3, 2], [4, 0]]
VALUES = [1, 4, 3, 1, -1, 2, 9, -1]
WEIGHTS = [0.5, 2, 1, 0.25, 3, -1, 0.125, 1]

Made = tuple[Callable[..., Any], list[Any], list[Any]]
"""What computes a tensor, what it is given, and the variables that it looks up in."""


@dataclass(frozen=True)
class Own:
    """A kind of graph.

    Attributes:
        name: of the kind.
        make: what builds it.
        columns: how many lookups it has.
        forms: what these become in inference, each one of these; "" for a reason why none.
        is_exact: whether the stock target gives the same bits.
        has_gradient: whether its gradient can be taken.
        is_trained_by_stock: whether stock ops take the place of its gradient's.
    """

    name: str
    make: Callable[[], Made]
    columns: int = 1
    forms: tuple[str, ...] = ("single",)
    is_exact: bool = True
    has_gradient: bool = True
    is_trained_by_stock: bool = True

    def __str__(self) -> str:
        return self.name


def table(seed: int = 0, rows: int = ROWS, dtype: Any = tf.float32) -> tf.Variable:
    values = np.random.default_rng(seed).normal(size=(rows, DIM))
    return tf.Variable(tf.cast(tf.constant(values), dtype))


def sparse(dtype: Any = tf.int64, *, valid: bool = False) -> tf.SparseTensor:
    ids = np.abs(VALUES) if valid else np.array(VALUES)
    return tf.SparseTensor(PLACES, tf.constant(ids, dtype), [BATCH, 3])


def ragged() -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_lengths(tf.constant(VALUES, tf.int64), [2, 0, 2, 3, 1])


def weights(dtype: Any = tf.float32) -> tf.SparseTensor:
    return tf.SparseTensor(PLACES, tf.cast(tf.constant(WEIGHTS), dtype), [BATCH, 3])


# The three lookup functions


def safe(version: str, ids: Any = None, sparse_weights: Any = None, **options: Any) -> Made:
    shards = options.pop("shards", 1)
    dtype = options.pop("dtype", tf.float32)
    tables = [table(seed, ROWS // shards, dtype) for seed in range(shards)]
    source = tables if shards > 1 else tables[0]
    ids = sparse() if ids is None else ids

    def look_up(ids: Any, sparse_weights: Any = None) -> tf.Tensor:
        return lookup.fused_safe_embedding_lookup_sparse(
            source, ids, sparse_weights, fusion_version=version, **options
        )

    return look_up, [ids] if sparse_weights is None else [ids, sparse_weights], tables


def plain(version: str, **options: Any) -> Made:
    source = table()
    function = {
        "v1": lookup.fused_embedding_lookup_sparse,
        "v2": lookup.fused_embedding_lookup_sparse_v2,
    }[version]
    ids = sparse(valid=not {"prune", "prune_invalid_ids"} & options.keys())
    return lambda ids: function(source, ids, **options), [ids], [source]


def until_last(version: str) -> Made:
    source, options = table(), LookupOptions(version=version).until_last_row()
    from fusion.lookup.functions import lookup as build

    return lambda ids: build(source, ids, None, options), [sparse(valid=True)], [source]


# Feature columns


def layer(
    do_fusion: str | None,
    *,
    training: bool | None,
    width: int,
    shared: bool = False,
    aggregation: str = "concat",
) -> Made:
    identities = [fc.categorical_column_with_identity(name, ROWS) for name in ("a", "b")]
    if shared:
        with tf.Graph().as_default():  # which TensorFlow insists on
            columns = shared_embeddings(identities, DIM, do_fusion=do_fusion)
    else:
        columns = [embedding_column(one, DIM, do_fusion=do_fusion) for one in identities]
    made = DenseFeatures(columns, aggregation=aggregation)
    numbers = {"a": [[1, 2, -1], [4, 4, 5], [-1, -1, -1]], "b": [[0, 9, 9], [3, -1, 3], [7, 8, 2]]}
    features = {name: tf.constant(rows, tf.int64)[:, :width] for name, rows in numbers.items()}
    made(features)
    return (
        lambda inputs: made(inputs, training=training),
        [features],
        list(made.trainable_variables),
    )


def layer_of_kinds(do_fusion: str | None, *, training: bool | None) -> Made:
    """One id per row, many, weighted, ragged, hashed and bucketized side by side."""
    item = fc.categorical_column_with_identity("item", ROWS)
    bag = fc.weighted_categorical_column(fc.categorical_column_with_identity("bag", ROWS), "w")
    word = fc.categorical_column_with_hash_bucket("word", ROWS)
    number = fc.bucketized_column(fc.numeric_column("number"), [0.0, 1.0])
    list_ = fc.categorical_column_with_identity("list", ROWS)
    columns = [
        embedding_column(one, DIM, combiner=combiner, do_fusion=do_fusion)
        for one, combiner in ((item, "mean"), (bag, "mean"), (word, "sum"), (number, "sqrtn"))
    ]
    columns.append(embedding_column(list_, DIM, do_fusion=do_fusion))
    made = DenseFeatures(columns)
    features = {
        "item": tf.constant([[1], [-1], [9], [4], [1]], tf.int64),
        "bag": sparse(),
        "w": weights(),
        "word": tf.constant([["x", "y"], ["", ""], ["z", ""], ["x", "x"], ["q", "z"]]),
        "number": tf.constant([[-1.0], [0.5], [7.0], [0.0], [1.0]]),
        "list": ragged(),
    }
    made(features)
    return (
        lambda inputs: made(inputs, training=training),
        [features],
        list(made.trainable_variables),
    )


def legacy_layer(do_fusion: str) -> Made:
    """tf_keras's DenseFeatures, of columns of ours."""
    import tf_keras

    columns = [
        embedding_column(fc.categorical_column_with_identity(n, ROWS), DIM, do_fusion=do_fusion)
        for n in ("a", "b")
    ]
    made = tf_keras.layers.DenseFeatures(columns)
    features = {
        "a": sparse(),
        "b": tf.constant([[0, 9], [3, -1], [7, 8], [1, 1], [2, 2]], tf.int64),
    }
    made(features)
    return made, [features], list(made.trainable_variables)


def input_layer(do_fusion: str) -> Made:
    """compat.v1's input_layer, in a wrapped function; and shared columns."""
    found: list[Any] = []

    def build(indices: Any, values: Any, shape: Any, dense: Any) -> Any:
        one, other = (fc.categorical_column_with_identity(name, ROWS) for name in ("a", "b"))
        columns = list(shared_embedding_columns([one, other], DIM, do_fusion=do_fusion))
        third = fc.categorical_column_with_identity("c", ROWS)
        columns.append(embedding_column(third, DIM, do_fusion=do_fusion))
        ids = tf.SparseTensor(indices, values, shape)
        features = {"a": ids, "b": dense, "c": ids}
        with v1.variable_scope("model", reuse=bool(found), use_resource=True):
            result = v1.feature_column.input_layer(features, columns)
        found.append(result)
        return result

    ids, dense = sparse(), tf.constant([[0, 9], [3, -1], [7, 8], [1, 1], [2, 2]], tf.int64)
    specs = [tf.TensorSpec([None, 2], tf.int64), tf.TensorSpec([None], tf.int64)]
    specs += [tf.TensorSpec([2], tf.int64), tf.TensorSpec([None, 2], tf.int64)]
    wrapped = v1.wrap_function(build, specs)
    for number, variable in enumerate(wrapped.graph.variables):
        variable.assign(table(number))
    inputs = [ids.indices, ids.values, ids.dense_shape, dense]
    return wrapped, inputs, list(wrapped.graph.variables)


# Grouped lookups


def grouped(function: Callable[..., Any]) -> Made:
    tables = [table(seed) for seed in range(4)]
    options = [LookupOptions(), LookupOptions(combiner="sum"), LookupOptions(combiner="sqrtn")]

    def look_up(ids: Any, sparse_weights: Any, rows: Any, dense: Any) -> tf.Tensor:
        return function(
            [
                Lookup(tables[0], ids, None, options[0]),
                Lookup(tables[1], ids, sparse_weights, options[2]),
                tf.ones([BATCH, 2]),
                Lookup(tables[2], rows, None, options[1]),
                Lookup(tables[3], dense, None, LookupOptions(default_id=3)),
            ]
        )

    dense = tf.constant([[0, 9], [3, -1], [-1, -1], [1, 1], [2, 2]], tf.int64)
    return look_up, [sparse(), weights(), ragged(), dense], tables


def in_matrices(look_up: Any) -> Any:
    """A function for `grouped` whose columns are in several matrices, joined in another order."""

    def joined(columns: Any) -> tf.Tensor:
        return tf.concat(look_up(columns, [2, 1, 1, 1])[::-1], 1)

    return joined


def updated() -> Made:
    """A step of training with an optimizer of rows."""
    source = table()
    optimizer = LazyAdam(0.1)
    optimizer.build([source])

    def step(ids: Any) -> tf.Tensor:
        with tf.GradientTape() as tape:
            found = lookup.fused_safe_embedding_lookup_sparse(source, ids)
            loss = tf.reduce_sum(found**2)
        optimizer.apply_gradients([(tape.gradient(loss, source), source)])
        return loss

    return step, [sparse()], [source]


def _lookups() -> Iterator[Own]:
    for version in ("v1", "v2"):
        kinds: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
            "sparse": ({}, {}),
            "int32": ({"ids": sparse(tf.int32)}, {}),
            "ragged": ({"ids": ragged(), "combiner": "sum"}, {}),
            "sqrtn": ({"combiner": "sqrtn"}, {}),
            "weighted": ({"sparse_weights": weights()}, {"is_exact": False}),
            "weighted sqrtn": (
                {"sparse_weights": weights(), "combiner": "sqrtn", "default_id": 2},
                {"is_exact": False},
            ),
            "default_id": ({"default_id": 3}, {}),
            "max_norm": ({"max_norm": 0.7}, {"is_exact": False}),
            "float64": ({"dtype": tf.float64}, {}),
            "float16": ({"dtype": tf.float16}, {}),
            "bfloat16 max_norm": (
                {"dtype": tf.bfloat16, "max_norm": 0.7},
                {"is_exact": False, "forms": ("",)},
            ),
            "not pruned": ({"ids": sparse(valid=True), "prune": False}, {}),
            "div": ({"shards": 2}, {"forms": ("",)}),
            "mod": ({"shards": 2, "partition_strategy": "mod"}, {"forms": ("",)}),
            "weighted shards": (
                {"shards": 2, "sparse_weights": weights(), "max_norm": 0.7},
                {"is_exact": False, "forms": ("",)},
            ),
        }
        for name, (options, facts) in kinds.items():
            yield Own(
                f"{version} {name}",
                partial(safe, version, **options),
                **facts,
            )
        prune = {"v1": "prune_invalid_ids", "v2": "prune"}[version]
        yield Own(f"{version} plain", partial(plain, version))
        yield Own(f"{version} plain pruned", partial(plain, version, **{prune: True}))
        yield Own(
            f"{version} not filled", partial(plain, version, fill_empty_row=False), forms=("",)
        )
        yield Own(
            f"{version} until the last row",
            partial(until_last, version),
            is_trained_by_stock=version != "v1",
        )


def _layers() -> Iterator[Own]:
    for do_fusion in (None, "v1", "v2"):
        for training in (None, False, True):
            is_one = do_fusion is not None and training is not None
            forms = ("",) if is_one else ("grouped",)
            for width in (1, 3):
                yield Own(
                    f"layer {do_fusion} training={training} ids={width}",
                    partial(layer, do_fusion, training=training, width=width),
                    columns=2,
                    forms=forms,
                )
            yield Own(
                f"layer {do_fusion} training={training} kinds",
                partial(layer_of_kinds, do_fusion, training=training),
                columns=5,
                forms=forms,
                is_exact=False,
            )
    yield Own(
        "layer v2 stack",
        partial(layer, "v2", training=None, width=3, aggregation="stack"),
        columns=2,
        forms=("grouped",),
    )
    yield Own(
        "layer v2 shared",
        partial(layer, "v2", training=None, width=1, shared=True),
        columns=2,
        forms=("grouped",),
    )
    for version in ("v1", "v2"):
        yield Own(
            f"tf_keras {version}",
            partial(legacy_layer, version),
            columns=2,
            forms=("grouped",),
        )
        yield Own(
            f"input_layer {version}",
            partial(input_layer, version),
            columns=3,
            forms=("grouped",),
            has_gradient=False,
        )


OWN = (
    *_lookups(),
    *_layers(),
    Own("grouped_lookup", partial(grouped, grouped_lookup), 4, ("",), is_exact=False),
    Own("trained_lookup", partial(grouped, trained_lookup), 4, ("",), is_exact=False),
    *(
        Own(name, partial(grouped, in_matrices(look_up)), 4, ("",), is_exact=False)
        for name, look_up in (
            ("grouped_lookups", grouped_lookups),
            ("trained_lookups", trained_lookups),
        )
    ),
)
