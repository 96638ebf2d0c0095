"""Lookups of columns of a matrix of ids: the op takes them, and slices vanish."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

import fusion
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.gather_lookups import GatherLookups
from fusion.passes.lower_lookups import LowerLookups
from fusion.saved_model import RewriteOptions, rewrite_saved_model
from fusion.saved_model.model.source import read_saved_model
from fusion.saved_model.verify.columns import paired_columns
from fusion.schema.devices import Devices
from fusion.schema.names import GROUPED, OP_NAMES
from tests.passes import stock_graphs as stock
from tests.passes.planned_graphs import graph_of
from tests.passes.rewritten_graphs import only
from tests.reference import assert_same_bits

v1 = tf.compat.v1
KEEP = frozenset({"out", "initialize"})
PASS, LOWER, GATHER = FuseLookups(KEEP), LowerLookups(KEEP), GatherLookups(KEEP)
ROWS, WIDTH, BATCH = 9, 5, 7
TAKERS = {"StridedSlice", "Unpack", "Split", "SplitV", "Squeeze", "Reshape", "ExpandDims"}

Columns = Callable[[tf.Tensor], list[tf.Tensor]]


def matrix(shape: Any = (None, WIDTH), dtype: Any = tf.int64, name: str = "ids") -> tf.Tensor:
    return v1.placeholder(dtype, shape, name)


def table(number: int, dim: int = 3) -> tf.Tensor:
    values = np.random.default_rng(number).normal(size=(ROWS, dim)).astype(np.float32)
    return tf.constant(values, name=f"table_{number}")


def looked_up(ids: list[tf.Tensor]) -> tf.Tensor:
    """Rows of a table for each vector of ids, or matrix of one column."""
    rows = [tf.gather(table(number), one) for number, one in enumerate(ids)]
    return tf.concat([row[:, 0] if row.shape.rank == 3 else row for row in rows], 1)


def column_of(ids: tf.Tensor, number: int, **options: Any) -> tf.Tensor:
    """As `embedding_column` looks up a matrix of one column, in which -1 is no id."""
    indices = tf.where(tf.not_equal(ids, -1))
    values = tf.gather_nd(ids, indices)
    sparse = tf.SparseTensor(indices, values, tf.shape(ids, tf.int64))
    return v1.nn.safe_embedding_lookup_sparse(table(number), sparse, **options)


def feeds(seed: int = 0, low: int = 0, batch: int = BATCH) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "ids:0": rng.integers(low, ROWS, (batch, WIDTH)),
        "values:0": rng.normal(size=(batch, WIDTH)).astype(np.float32),
        "others:0": rng.integers(0, ROWS, (batch, 3)),
    }


def ops(graph_def: graph_pb2.GraphDef) -> Counter[str]:
    bodies = (graph_def.node, *(function.node_def for function in graph_def.library.function))
    return Counter(node.op for body in bodies for node in body)


def numbers_of(graph_def: graph_pb2.GraphDef) -> list[int]:
    return list(only(graph_def, GROUPED).attr["id_columns"].list.i)


def takes_none(graph_def: graph_pb2.GraphDef) -> bool:
    """Whether no op takes a column out of a matrix of ids."""
    grouped = (node for node in graph_def.node if node.op == GROUPED)
    return all({*node.attr["id_columns"].list.i} <= {-1} for node in grouped)


def agrees(graph_def: graph_pb2.GraphDef, low: int = 0, exact: bool = True) -> graph_pb2.GraphDef:
    """The fused graph: its numbers, and those of what the other passes make of it, are stock's."""
    fused = PASS.apply(graph_def)
    assert fused.report.fused_count == len(fused.report.columns), str(fused.report)
    assert not PASS.apply(fused.graph_def).modified
    lowered, gathered = (one.apply(fused.graph_def).graph_def for one in (LOWER, GATHER))
    assert not {*OP_NAMES} & {*ops(lowered)}
    assert GROUPED not in ops(gathered)
    for batch in (BATCH, 0, 1):
        feed = feeds(batch, low, batch)
        used = {key: feed[key] for key in feed if key[:-2] in {n.name for n in graph_def.node}}
        (expected,) = stock.run(graph_def, used, optimize=False)
        for one in (fused.graph_def, lowered, gathered):
            (found,) = stock.run(one, used)
            if exact:
                assert_same_bits(found, expected)
            else:
                np.testing.assert_allclose(found, expected, rtol=1e-5)
    return fused.graph_def


#: Each way to take columns out of a matrix, and which these are.
TAKEN: dict[str, tuple[Columns, list[int]]] = {
    "vectors": (lambda x: [x[:, 0], x[:, 3], x[:, 4]], [0, 3, 4]),
    "matrices": (lambda x: [x[:, 0:1], x[:, 2:3], x[:, :1], x[:, 4:]], [0, 2, 0, 4]),
    "the last ones": (lambda x: [x[:, -1], x[:, -1:], x[:, -2], x[:, -2:-1]], [4, 4, 3, 3]),
    "more than there are": (lambda x: [x[:, 4:9], x[:, 1]], [4, 1]),
    "an unstacked one": (lambda x: [*tf.unstack(x, axis=1)], [0, 1, 2, 3, 4]),
    "unstacked from the end": (lambda x: tf.unstack(x, axis=-1)[::-1], [4, 3, 2, 1, 0]),
    "a split one": (lambda x: [*tf.split(x, WIDTH, 1)], [0, 1, 2, 3, 4]),
    "split from the end": (lambda x: [*tf.split(x, WIDTH, -1)][1:3], [1, 2]),
    "handed on": (lambda x: [tf.identity(x[:, 1]), tf.identity(tf.identity(x))[:, 2]], [1, 2]),
    "squeezed": (lambda x: [x[:, 1], tf.slice(x, [0, 2], [-1, 1])], [1, -1]),
    "one of all": (lambda x: [x[:, 3], tf.reduce_max(x, 1)], [3, -1]),
}


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
@pytest.mark.parametrize("name", TAKEN)
def test_columns_are_read_by_the_op(name: str, dtype: Any) -> None:
    take, expected = TAKEN[name]
    before = graph_of(lambda: looked_up(take(matrix(dtype=dtype))))
    after = PASS.apply(before).graph_def
    assert numbers_of(after) == expected
    forms = only(after, GROUPED).attr["forms"].list.s
    assert {*forms} == {b"each"}
    if -1 not in expected:
        assert not TAKERS & {*ops(after)}
        names = only(after, GROUPED).input[len(expected) : 2 * len(expected)]
        assert {name.partition("_")[0] for name in names} <= {"ids", "Identity"}
    if dtype == tf.int64:
        agrees(before)


def test_a_matrix_that_has_one_column() -> None:
    def build() -> tf.Tensor:
        ids = v1.placeholder(tf.int64, [None, 1], "narrow")
        return looked_up([ids[:, 0], ids[:, :], ids[:, 0:1]])

    after = PASS.apply(graph_of(build)).graph_def
    assert not TAKERS & {*ops(after)}
    assert takes_none(after)  # all ids are of the column


def test_columns_beside_other_lookups() -> None:
    def build() -> tf.Tensor:
        ids, others = matrix(), matrix([None, 3], name="others")
        bag = tf.reduce_sum(tf.gather(table(7), others), 1)
        parts = [tf.gather(table(0), ids[:, 2]), bag, column_of(ids[:, 1:2], 4, combiner="mean")]
        parts += [tf.cast(others, tf.float32), tf.gather(table(5), others[:, 1])]
        return tf.concat(parts, 1)

    after = agrees(graph_of(build))
    assert numbers_of(after) == [2, -1, 1, -1, 1]
    assert "StridedSlice" not in ops(after)


OPTIONS: list[dict[str, Any]] = [
    {"combiner": "sum"},
    {"combiner": "mean", "default_id": 2},
    {"combiner": "sqrtn"},
    {"combiner": "mean", "max_norm": 0.7},
]


def test_columns_whose_ids_may_lack() -> None:
    def build() -> tf.Tensor:
        ids = matrix()
        parts = [column_of(ids[:, k : k + 1], k, **one) for k, one in enumerate(OPTIONS)]
        return tf.concat(parts, 1)

    after = agrees(graph_of(build), low=-3, exact=False)
    assert numbers_of(after) == [0, 1, 2, 3]
    assert "StridedSlice" not in ops(after)
    assert only(after, GROUPED).attr["prunes"].list.b[0]


def test_values_that_boundaries_make_ids() -> None:
    def build() -> tf.Tensor:
        values = matrix(dtype=tf.float32, name="values")
        limits = [[-1.0, 0.0, 1.0], [0.5], [-0.5, 0.0, 0.25, 2.0]]
        each = [
            tf.raw_ops.Bucketize(input=values[:, k + 1], boundaries=limits[k]) for k in range(3)
        ]
        return looked_up([*each, tf.raw_ops.Bucketize(input=values, boundaries=[0.0])[:, 0]])

    after = agrees(graph_of(build))
    assert numbers_of(after) == [1, 2, 3, 0]
    assert ops(after)["Bucketize"] == 1
    assert list(only(after, GROUPED).attr["boundary_counts"].list.i) == [3, 1, 4, 0]


def test_hashes_of_a_matrix() -> None:
    """One op hashes all of it, as it did."""

    def build() -> tf.Tensor:
        texts = tf.as_string(matrix())
        hashes = tf.strings.to_hash_bucket_fast(texts, ROWS)
        return looked_up([hashes[:, 0], hashes[:, 4], hashes[:, 0:1]])

    after = agrees(graph_of(build))
    assert numbers_of(after) == [0, 4, 0]


def test_casts_of_columns_are_read_behind_them() -> None:
    def build() -> tf.Tensor:
        ids = matrix(dtype=tf.int32)
        whole = tf.cast(ids, tf.int64)
        return looked_up([tf.cast(ids[:, 1], tf.int64), whole[:, 2], ids[:, 3]])

    after = agrees(graph_of(build))
    assert numbers_of(after)[1:] == [2, 3]


# What stays


def new_axis(x: tf.Tensor) -> tf.Tensor:
    return tf.reshape(x[:, tf.newaxis, 1], [-1])


def waiting(x: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([tf.print("before")]):
        return x[:, 1]


#: What is no column of a matrix, though nearly.
NEAR: dict[str, Columns] = {
    "an ellipsis": lambda x: [x[..., 1], x[..., 2]],
    "a new axis": lambda x: [new_axis(x), new_axis(x) + 0],
    "every second one": lambda x: [x[:, 1:3:2], x[:, 1:2:2]],
    "rows backwards": lambda x: [x[::-1, 1], x[::-1, 2]],
    "from the end": lambda x: [x[:, 1:0:-1], x[:, 4:3:-1]],
    "what waits": lambda x: [waiting(x), waiting(x)],
    "behind a rank of 3": lambda x: [tf.reshape(x, [-1, WIDTH, 1])[:, 1, 0]] * 2,
    "of rank 3": lambda x: [tf.reshape(x, [-1, WIDTH, 1])[:, 1], tf.identity(x)[:, 1] + 0],
    "a computed one": lambda x: [x[:, tf.shape(x)[1] - 1], x[:, tf.shape(x)[1] - 2]],
    "rows of another matrix": lambda x: [*tf.unstack(tf.reshape(x, [WIDTH, -1]))][:2],
    "unstacked rows": lambda x: [tf.reshape(one, [-1]) for one in tf.split(x, 1, 0)],
    "split in two": lambda x: [tf.reduce_max(one, 1) for one in tf.split(x[:, :4], 2, 1)],
    "split by sizes": lambda x: [*tf.split(x, [1, 3, 1], 1)][::2],
}


@pytest.mark.parametrize("name", NEAR)
def test_other_slices_stay(name: str) -> None:
    before = graph_of(lambda: looked_up(NEAR[name](matrix())))
    after = agrees(before)
    assert takes_none(after)


@pytest.mark.parametrize("take", [lambda x: x[1:, 2], lambda x: x[:-1, 2], lambda x: x[::2, 2]])
def test_slices_of_rows_stay(take: Callable[[tf.Tensor], tf.Tensor]) -> None:
    before = graph_of(lambda: looked_up([take(matrix()), take(matrix(name="others")) + 0]))
    after = PASS.apply(before).graph_def
    assert takes_none(after)
    feed = {"ids:0": feeds()["ids:0"], "others:0": feeds(1)["ids:0"]}
    assert_same_bits(*stock.run(after, feed), *stock.run(before, feed))


def test_more_than_one_column_stays() -> None:
    def build() -> tf.Tensor:
        ids = matrix()
        parts = [tf.reduce_sum(tf.gather(table(k), ids[:, k : k + 2]), 1) for k in range(2)]
        return tf.concat(parts, 1)

    after = agrees(graph_of(build))
    assert takes_none(after)


@pytest.mark.parametrize("shape", [(None, None), None])
def test_of_a_matrix_of_any_width_slices_stay(shape: Any) -> None:
    def build() -> tf.Tensor:
        ids = matrix(shape)
        return tf.concat([tf.gather(table(k), ids[:, k]) for k in range(2)], 1)

    after = agrees(graph_of(build))
    assert takes_none(after)


def test_a_slice_that_others_read_stays_too() -> None:
    def build() -> tf.Tensor:
        ids = matrix()
        first = ids[:, 1]
        rows = looked_up([first, ids[:, 2]])
        return rows * tf.cast(first, tf.float32)[:, tf.newaxis]

    after = agrees(graph_of(build))
    assert numbers_of(after) == [1, 2]
    assert ops(after)["StridedSlice"] == 1 + 1  # and the new axis


def test_a_lookup_on_a_gpu_keeps_its_slices() -> None:
    before = graph_of(lambda: looked_up([matrix()[:, k] for k in range(1)] * 2))
    for node in before.node:
        node.device = "/device:GPU:0"
    everywhere = FuseLookups(KEEP, devices=Devices(frozenset({"CPU", "GPU"})))
    after = everywhere.apply(before).graph_def
    assert GROUPED in ops(after)
    assert takes_none(after)
    at_home = FuseLookups(KEEP, devices=Devices(frozenset({"CPU", "GPU"}), "GPU"))
    for node in before.node:
        node.device = ""
    assert takes_none(at_home.apply(before).graph_def)


def test_a_slice_on_another_device_stays_there() -> None:
    before = graph_of(lambda: looked_up([*tf.unstack(matrix(), axis=1)]))
    for node in before.node:
        is_ids = node.op in ("Unpack", "Placeholder")
        node.device = "/job:worker/device:CPU:0" if is_ids else "/job:ps/device:CPU:0"
    result = FuseLookups(KEEP).apply(before)
    assert takes_none(result.graph_def)
    assert ops(result.graph_def)["Unpack"] == 1


@pytest.mark.parametrize("where", ["a loop", "a branch"])
def test_slices_in_functions(where: str) -> None:
    tables = [np.random.default_rng(k).normal(size=(ROWS, 3)).astype(np.float32) for k in range(3)]

    def rows(ids: tf.Tensor) -> tf.Tensor:
        return tf.concat([tf.gather(tables[k], ids[:, k]) for k in range(3)], 1)

    @tf.function(input_signature=[tf.TensorSpec([None, WIDTH], tf.int64)])
    def model(ids: tf.Tensor) -> tf.Tensor:
        if where == "a branch":
            result = tf.cond(ids[0, 0] > 3, lambda: rows(ids), lambda: -rows(ids))
        else:
            result = tf.zeros([tf.shape(ids)[0], 9])
            for _ in tf.range(2):
                result += rows(ids)
        return result

    concrete = model.get_concrete_function()
    fused = fusion.fuse_function(concrete)
    bodies = fused.graph.as_graph_def().library.function
    groups = [node for body in bodies for node in body.node_def if node.op == GROUPED]
    assert groups
    for node in groups:
        assert list(node.attr["id_columns"].list.i) == [0, 1, 2]
    for seed in range(3):
        ids = tf.constant(feeds(seed)["ids:0"])
        assert_same_bits(fused(ids).numpy(), concrete(ids).numpy())


def test_a_training_step_keeps_its_slices() -> None:
    tables = [tf.Variable(np.ones((ROWS, 3), np.float32)) for _ in range(3)]

    def step(ids: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            parts = [tf.gather(one, ids[:, k]) for k, one in enumerate(tables)]
            loss = tf.reduce_sum(tf.concat(parts, 1) ** 2)
        return loss, [tf.convert_to_tensor(one) for one in tape.gradient(loss, tables)]

    concrete = tf.function(step).get_concrete_function(tf.TensorSpec([None, WIDTH], tf.int64))
    fused = fusion.fuse_function(concrete)
    ids = tf.constant(feeds()["ids:0"])
    found, expected = (tf.nest.flatten(one(ids)) for one in (fused, concrete))
    for one, other in zip(found, expected, strict=True):
        assert_same_bits(one.numpy(), other.numpy())


# Models


COUNT = 26


def functional(seed: int = 0) -> keras.Model:
    """A model of one matrix of ids, whose columns are looked up."""
    keras.utils.set_random_seed(seed)
    ids = keras.Input([COUNT], dtype="int32", name="ids")
    rows = [keras.layers.Embedding(20 + k, 4, name=f"f{k}")(ids[:, k]) for k in range(COUNT)]
    joined = keras.layers.Concatenate()(rows)
    return keras.Model(ids, keras.layers.Dense(1)(keras.layers.Dense(8, "relu")(joined)))


def batch_of(rows: int = 33) -> Any:
    return np.random.default_rng(rows).integers(0, 20, (rows, COUNT)).astype(np.int32)


def test_a_model_of_keras_is_rewritten_with_both_targets(tmp_path: Path) -> None:
    model, ids = functional(), batch_of()
    model.export(str(tmp_path / "stock"), verbose=False)
    done = rewrite_saved_model(tmp_path / "stock", tmp_path / "fused", RewriteOptions())
    assert done.report.fused_count == len(done.report.columns) == COUNT
    assert done.verification is not None
    assert done.verification.same
    (meta,) = read_saved_model(tmp_path / "fused").meta_graphs
    nodes = [n for f in meta.graph_def.library.function for n in f.node_def] + [
        *meta.graph_def.node
    ]
    groups = [node for node in nodes if node.op == GROUPED]
    assert groups
    for node in groups:
        assert list(node.attr["id_columns"].list.i) == [*range(COUNT)]
    assert "StridedSlice" not in {node.op for node in nodes}
    back = rewrite_saved_model(
        tmp_path / "fused", tmp_path / "again", RewriteOptions(target="stock")
    )
    assert back.verification is not None
    assert back.verification.same
    metas = [
        read_saved_model(tmp_path / name).meta_graphs[0] for name in ("stock", "fused", "again")
    ]
    for one, other in ((0, 1), (1, 2), (0, 2)):
        pairing = paired_columns(metas[one], metas[other])
        assert len({pair.name for pair in pairing.pairs}) == COUNT
        assert not pairing.alone_a + pairing.alone_b
    direct = rewrite_saved_model(
        tmp_path / "stock", tmp_path / "lowered", RewriteOptions(target="stock")
    )
    assert direct.verification is None or direct.verification.same
    expected = model(ids).numpy()
    for name in ("stock", "fused", "again"):
        loaded = tf.saved_model.load(str(tmp_path / name))
        np.testing.assert_allclose(loaded.serve(ids), expected, rtol=1e-5, atol=1e-6)
    names = [f"f{k}" for k in range(COUNT)]
    for report in (done.report, fusion.explain(str(tmp_path / "fused"))):
        assert [column.name.split("/")[-2] for column in report.columns] == names


def test_a_model_of_keras_under_enable() -> None:
    model, ids = functional(), batch_of()
    expected = model.predict(ids, verbose=0)
    before = fusion.stats().columns_fused
    with fusion.fused():
        again = functional()
        found = again.predict(ids, verbose=0)
    assert fusion.stats().columns_fused - before >= COUNT
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_model_of_keras_learns_the_same() -> None:
    ids, labels = batch_of(64), np.random.default_rng(0).random((64, 1)).astype(np.float32)

    def fitted() -> Any:
        model = functional()
        model.compile("adam", "mse")
        history = model.fit(ids, labels, batch_size=16, epochs=2, shuffle=False, verbose=0)
        return history.history["loss"], model.predict(ids, verbose=0)

    expected = fitted()
    with fusion.fused():
        found = fitted()
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-3, atol=1e-5)
