"""What `explain` says of a graph or a function is what `enable` does to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.feature_column import DenseFeatures, embedding_column
from fusion.passes.report.report import FusionReport
from tests.grappler.old_programs import OldColumn, old_program, run_old
from tests.passes.planned_graphs import column as v1_column
from tests.passes.planned_graphs import feeds, graph_of

v1 = tf.compat.v1
fc = tf.feature_column
ROWS, DIM = 20, 4
SPARSE = tf.SparseTensorSpec([None, None], tf.int64)
IDS = tf.SparseTensor([[0, 0], [0, 1], [2, 0]], tf.constant([1, -1, 3], tf.int64), [3, 2])


@dataclass(frozen=True)
class Program:
    """Something that can be explained.

    Attributes:
        model: what is given to `explain`.
        run: runs it in the way of its users.
        forms: of its columns, None where one is not fused, in any order.
        outputs: what is fetched.
    """

    model: Any
    run: Callable[[], Any]
    forms: tuple[str | None, ...]
    outputs: tuple[str, ...] | None = None


def verdicts(report: FusionReport | None) -> list[tuple[Any, ...]]:
    assert report is not None
    return sorted((c.anchor, c.fused, c.form, c.reason, c.node) for c in report.columns)


def tables(count: int) -> list[tf.Variable]:
    rng = np.random.default_rng(1)
    return [tf.Variable(rng.normal(size=(ROWS, DIM)).astype(np.float32)) for _ in range(count)]


def looked_up(found: list[tf.Variable], ids: Any) -> tf.Tensor:
    return tf.concat([tf.nn.safe_embedding_lookup_sparse(table, ids) for table in found], 1)


def of_function(function: Any, *arguments: Any, forms: tuple[str | None, ...]) -> Program:
    concrete = function.get_concrete_function(*arguments)
    return Program(concrete, lambda: function(*arguments), forms)


def inference(_: Path) -> Program:
    found = tables(3)
    return of_function(tf.function(lambda ids: looked_up(found, ids)), IDS, forms=("grouped",) * 3)


def training(_: Path) -> Program:
    found = tables(2)
    optimizer = keras.optimizers.Adagrad(0.1)
    optimizer.build(found)

    @tf.function
    def step(ids: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(looked_up(found, ids) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, found), found, strict=True))
        return loss

    return of_function(step, IDS, forms=("trained",) * 2)


def nested(_: Path) -> Program:
    found = tables(2)
    inner = tf.function(lambda ids: looked_up(found, ids))
    return of_function(tf.function(lambda ids: inner(ids) * 2), IDS, forms=("grouped",) * 2)


def not_inlined(_: Path) -> Program:
    found = tables(2)
    inner = tf.function(
        lambda ids: looked_up(found, ids), experimental_attributes={"_noinline": True}
    )
    return of_function(tf.function(lambda ids: inner(ids) * 2), IDS, forms=("grouped",) * 2)


def branches(_: Path) -> Program:
    found = tables(2)

    @tf.function
    def run(ids: Any, flag: Any) -> Any:
        return tf.cond(flag, lambda: looked_up(found, ids), lambda: tf.zeros([3, 2 * DIM]))

    return of_function(run, IDS, tf.constant(True), forms=("single",) * 2)


def loop(_: Path) -> Program:
    found = tables(1)

    @tf.function
    def run(ids: Any) -> Any:
        total = tf.zeros([3, DIM])
        for step in tf.range(2):
            total += looked_up(found, ids.with_values(ids.values + tf.cast(step, tf.int64)))
        return total

    return of_function(run, IDS, forms=("single",))


def refused(_: Path) -> Program:
    (table,) = tables(1)

    @tf.function
    def run(ids: Any) -> Any:
        ids, _ = tf.sparse.fill_empty_rows(ids, tf.cast(tf.argmax(table[:, 0]), tf.int64))
        ids = ids.with_values(tf.abs(ids.values))
        return tf.nn.embedding_lookup_sparse(table, ids, None, "mean")

    return of_function(run, IDS, forms=(None,))


def part_is_read(_: Path) -> Program:
    (table,) = tables(1)

    @tf.function
    def run(ids: Any) -> Any:
        rows = tf.nn.embedding_lookup(table, tf.unique(tf.abs(ids.values))[0])
        places = tf.unique(tf.abs(ids.values))[1]
        return tf.sparse.segment_mean(rows, places, ids.indices[:, 0]), rows

    return of_function(run, IDS, forms=("forward",))


def keras_inference(_: Path) -> Program:
    return _keras("v2", train=False, forms=("grouped",) * 2)


def keras_stock_columns(_: Path) -> Program:
    return _keras(None, train=False, forms=("grouped",) * 2)


def _keras(do_fusion: str | None, *, train: bool, forms: tuple[str | None, ...]) -> Program:
    columns = [
        embedding_column(fc.categorical_column_with_identity(name, ROWS), DIM, do_fusion=do_fusion)
        for name in ("a", "b")
    ]
    inputs = {name: keras.Input((2,), dtype="int64", name=name) for name in ("a", "b")}
    model = keras.Model(inputs, DenseFeatures(columns)(inputs))
    features = {name: tf.constant([[1, 2], [3, -1]], tf.int64) for name in ("a", "b")}
    return of_function(tf.function(model), features, forms=forms)


def signature(folder: Path) -> Program:
    module = tf.Module()
    module.tables = tables(2)
    module.run = tf.function(lambda ids: looked_up(module.tables, ids), input_signature=[SPARSE])
    tf.saved_model.save(module, folder, signatures=module.run)
    loaded = tf.saved_model.load(folder)
    concrete = loaded.signatures["serving_default"]
    given = {"ids": IDS.indices, "ids_1": IDS.values, "ids_2": IDS.dense_shape}
    names = [tensor.op.name for tensor in concrete.inputs[:3]]
    by_shape = {2: IDS.indices, 1: None}
    del given, by_shape
    arguments = dict(zip(names, _like(concrete), strict=True))
    return Program(concrete, lambda: (loaded, concrete(**arguments)), ("grouped",) * 2)


def _like(concrete: Any) -> list[tf.Tensor]:
    """The parts of the ids, in the order of a signature's inputs."""
    parts = {2: IDS.indices, None: IDS.values}
    return [
        parts[2] if t.shape.rank == 2 else IDS.dense_shape if t.shape == [2] else IDS.values
        for t in concrete.inputs[:3]
    ]


def session_training(_: Path) -> Program:
    with tf.Graph().as_default() as graph:
        rng = np.random.default_rng(1)
        start = rng.normal(size=(ROWS, DIM)).astype(np.float32)
        found = [v1.get_variable(f"t{n}", initializer=start, use_resource=n > 0) for n in range(2)]
        ids = v1.sparse_placeholder(tf.int64, [None, None], name="ids")
        loss = tf.reduce_sum(looked_up(found, ids) ** 2)
        v1.train.AdagradOptimizer(0.1).minimize(loss, name="train")
        tf.group(v1.global_variables_initializer(), name="initialize")

    def run() -> None:
        with v1.Session(graph=graph) as session:
            with_ids = {ids: (IDS.indices.numpy(), IDS.values.numpy(), [3, 2])}
            session.run("initialize")
            session.run("train", with_ids)

    return Program(graph.as_graph_def(), run, ("trained",) * 2)


def old_training(_: Path) -> Program:
    columns = [OldColumn(), OldColumn(weighted=True), OldColumn(combiner="sqrtn", weighted=True)]
    graph = old_program(columns)
    forms = ("trained", "trained", "forward")
    return Program(graph.as_graph_def(), lambda: run_old(graph, columns, 1), forms)


def session_inference(_: Path) -> Program:
    graph_def = graph_of(lambda: tf.concat([v1_column(name) for name in ("a", "b")], 1))
    return _of_graph(graph_def, ("out",), ("grouped",) * 2)


def inside_is_fetched(_: Path) -> Program:
    graph_def = graph_of(lambda: tf.concat([v1_column(name) for name in ("a", "b")], 1))
    inside = next(n.name for n in graph_def.node if n.op.startswith("SparseSegment"))
    return _of_graph(graph_def, ("out", f"{inside}:0"), ("single", None))


def _of_graph(graph_def: Any, outputs: tuple[str, ...], forms: tuple[str | None, ...]) -> Program:
    def run() -> None:
        with tf.Graph().as_default() as graph, v1.Session() as session:
            tf.import_graph_def(graph_def, name="")
            session.run("initialize")
            fetches = [graph.as_graph_element(n) for n in outputs]
            session.run(fetches, feeds("a", "b"))

    return Program(graph_def, run, forms, outputs)


PROGRAMS = (
    inference, training, nested, not_inlined, branches, loop, refused, part_is_read,
    keras_inference, keras_stock_columns, signature, session_training, old_training,
    session_inference, inside_is_fetched,
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_what_explain_says_is_what_enable_does(
    program: Callable[[Path], Program], tmp_path: Path
) -> None:
    case = program(tmp_path)
    before = fusion.stats()
    explained = fusion.explain(case.model, outputs=case.outputs)
    after = fusion.stats()
    assert (after.graphs_seen, after.columns_fused) == (before.graphs_seen, before.columns_fused)
    with fusion.fused():
        case.run()
    assert verdicts(explained) == verdicts(fusion.stats().last_report)
    assert sorted(map(str, case.forms)) == sorted(str(c.form) for c in explained.columns)


@pytest.mark.parametrize("known_by", ["nothing", "a shape", "a product"])
def test_ragged_ids_of_an_iterator_need_a_known_rank(known_by: str) -> None:
    bags = tf.ragged.constant([[1, 2], [], [3]], dtype=tf.int64, row_splits_dtype=tf.int64)
    iterator = iter(tf.data.Dataset.from_tensor_slices(bags).batch(3).repeat(2))
    found = tables(2)

    @tf.function
    def step(ids: Any) -> Any:
        ids = next(ids)
        if known_by == "a shape":
            ids = ids.with_values(tf.ensure_shape(ids.values, [None]))
        bags = tf.concat([tf.reduce_sum(tf.gather(table, ids), 1) for table in found], 1)
        return bags @ tf.ones([bags.shape[1], 2]) if known_by == "a product" else bags

    report = fusion.explain(step.get_concrete_function(iterator))
    assert [column.fused for column in report.columns] == [known_by != "nothing"] * 2
    if known_by == "nothing":
        assert {c.reason for c in report.columns} == {"the ids are not known to be a vector"}
        return
    expected = step(iterator)
    with fusion.fused():
        fused = tf.function(step.python_function)(iterator)
    assert verdicts(fusion.stats().last_report) == verdicts(report)
    np.testing.assert_array_equal(fused, expected)


@pytest.fixture
def mixed_precision() -> Iterator[None]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    yield
    keras.config.set_dtype_policy(before)


@pytest.mark.usefixtures("mixed_precision")
@pytest.mark.parametrize("dtype", [None, "float32"])
def test_rows_of_mixed_precision_are_joined_before_they_are_cast(dtype: str | None) -> None:
    """As docs/layers.md has it."""
    layers = keras.layers
    inputs = [keras.Input((1,), dtype="int64") for _ in range(2)]
    rows = [layers.Flatten(dtype=dtype)(layers.Embedding(9, 4, dtype=dtype)(x)) for x in inputs]
    model = keras.Model(inputs, layers.Dense(2)(layers.Concatenate(dtype=dtype)(rows)))
    ids = [tf.TensorSpec([None, 1], tf.int64)] * 2
    report = fusion.explain(tf.function(model).get_concrete_function(ids))
    assert [column.fused for column in report.columns] == [dtype is not None] * 2
    if dtype is None:
        assert all("(Cast), not joined with others" in str(c.reason) for c in report.columns)
