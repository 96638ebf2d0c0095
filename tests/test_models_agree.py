"""`enable` and `rewrite` say the same of all kinds of models that tests have.

Where they rightly differ a table says how. Only the passes run, and no kernel is compiled. Graphs
of ids behind everyday ops are in test_enable_and_rewrite.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.core.framework import graph_pb2

import fusion
from fusion.passes.report.report import FusionReport
from tests import product_graphs as products
from tests.feature_column.hosts import as_tensors
from tests.feature_column.kinds import KEYS, KINDS, Batch, Column, build
from tests.golden import NAMES, golden_graph
from tests.keras.models import IDS, functional
from tests.layer_graphs import build as layers
from tests.passes.own_graphs import OWN
from tests.passes.runtime_graphs import FUSED, GRAPHS, made
from tests.passes.test_models import columns
from tests.passes.test_products import REASONS, graph_of
from tests.passes.test_rows import MODELS
from tests.product_graphs import OTHERS, PARTS, Part, Product
from tests.saved_model.forms import FORMS, Together

v1 = tf.compat.v1
UNDER = ("enable", "rewrite")
Verdicts = Counter[tuple[str, str | None]]


def verdicts(report: FusionReport, is_graph: bool) -> Verdicts:
    """What becomes of columns, by the names of their tables: a form, or the reason why none.

    In graphs TensorFlow makes one of equal placeholders, which stand for some tables.
    """
    return Counter(
        ("" if is_graph else column.name, column.form or column.reason) for column in report.columns
    )


def explained(model: Any, *outputs: str) -> tuple[Verdicts, Verdicts]:
    options: dict[str, Any] = {"outputs": outputs} if outputs else {}
    enabled, rewritten = (fusion.explain(model, under=under, **options) for under in UNDER)
    is_graph = isinstance(model, graph_pb2.GraphDef)
    return verdicts(enabled, is_graph), verdicts(rewritten, is_graph)


def assert_agree(model: Any, *outputs: str) -> None:
    enabled, rewritten = explained(model, *outputs)
    assert enabled == rewritten
    assert enabled, "there is no lookup"


def traced(model: Callable[..., Any], *specs: Any) -> Any:
    return tf.function(model, autograph=False).get_concrete_function(*specs)


# Graphs


@pytest.mark.parametrize("name", NAMES)
def test_golden_graphs(name: str) -> None:
    graph_def = golden_graph(name)
    assert_agree(graph_def, *(node.name for node in graph_def.node if node.name == "out"))


#: Lookups of one case each are among the golden graphs; of sequences nothing is reported.
STOCK = [name for name in GRAPHS | FUSED if "-rank" not in name and name != "sequences"]


@pytest.mark.parametrize("name", STOCK)
def test_stock_graphs(name: str) -> None:
    assert_agree(made(name)[0], "out")


@pytest.mark.parametrize("name", MODELS)
def test_rows_of_layers(name: str) -> None:
    model = MODELS[name]
    assert_agree(layers(model), *(["out", "out_1"][: len(model.joins)]))


@pytest.mark.parametrize("kind", [*PARTS, *OTHERS])
def test_products(kind: str) -> None:
    assert_agree(products.build(Product((Part(kind), Part("dense", 3)))), "out")


# Functions


@pytest.mark.parametrize("do_fusion", [None, "v1", "v2"])
def test_columns_of_all_kinds(do_fusion: str | None) -> None:
    made_of = [[Column(kind, key) for key in KEYS[:2]] for kind in KINDS]
    of_kinds = [tf_keras.layers.DenseFeatures(build(pair, do_fusion)) for pair in made_of]
    batch = as_tensors(Batch().features())
    specs = {
        name: tf.SparseTensorSpec([None, None], one.dtype)
        if isinstance(one, tf.SparseTensor)
        else tf.TensorSpec([None, *one.shape[1:]], one.dtype)
        for name, one in batch.items()
    }
    assert_agree(traced(lambda features: [layer(features) for layer in of_kinds], specs))


def test_input_layer() -> None:
    with tf.Graph().as_default() as graph:
        inputs = {
            "identity": v1.placeholder(tf.int64, [None, 2]),
            "hash": v1.placeholder(tf.string, [None, 2]),
            "words": v1.placeholder(tf.string, [None, 2]),
            "bucket": v1.placeholder(tf.float32, [None, 1]),
        }
        tf.identity(v1.feature_column.input_layer(inputs, columns(2)), name="out")
    assert_agree(graph.as_graph_def(), "out")


@pytest.mark.parametrize("layer", [tf.keras.layers.Embedding, fusion.keras.layers.Embedding])
def test_keras_models(layer: Any) -> None:
    model = functional(layer)
    specs = [tf.TensorSpec([None, *ids.shape[1:]], tf.int32) for ids in IDS]
    assert_agree(traced(lambda *inputs: model([*inputs]), *specs))


@pytest.fixture(scope="module")
def together() -> Together:
    return Together(0)


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_inputs(name: str, together: Together) -> None:
    signature: Any = together.signature(name)
    assert_agree(signature.get_concrete_function())


@pytest.mark.parametrize("part", range(4))
def test_what_this_package_builds(part: int) -> None:
    made_of = [own.make() for own in OWN[part::4]]
    inputs = [tf.nest.map_structure(tf.identity, given) for _, given, _ in made_of]

    def model(*features: Any) -> list[Any]:
        return [look_up(*given) for (look_up, *_), given in zip(made_of, features, strict=True)]

    assert_agree(traced(model, *inputs))


# What differs


GRADIENT = "it has few ops already, around a gather: its gradient is in the graph"
WRITTEN = "rows of its table are written in the same program"
FEW_AND_WRITTEN = f"it has few ops already, around a gather: {WRITTEN}"


def _means(table: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.gather(table, ids), 1)


def _ragged_means(table: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    rows = tf.ragged.map_flat_values(tf.gather, table, tf.RaggedTensor.from_tensor(ids))
    return tf.reduce_mean(rows, 1)


def _columns(table: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    return tf.nn.safe_embedding_lookup_sparse(table, tf.sparse.from_dense(ids), combiner="mean")


#: Of a step of training: the lookup, what becomes of it, and why a rewrite leaves it, if it does:
#: whatever else runs beside the graph may change its tables, while `enable` sees what runs.
STEPS: dict[str, tuple[Callable[[tf.Variable, tf.Tensor], tf.Tensor], str, str | None]] = {
    "rows": (lambda table, ids: tf.gather(table, ids[:, 0]), "grouped", WRITTEN),
    "means": (_means, "grouped", FEW_AND_WRITTEN),
    "ragged means": (_ragged_means, "grouped", GRADIENT),
    "columns": (_columns, "trained", None),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps_of_training(name: str) -> None:
    look_up, form, why = STEPS[name]
    rng = np.random.default_rng(0)
    tables = [
        tf.Variable(rng.normal(size=(30, 4)).astype(np.float32), name=f"t{k}") for k in range(3)
    ]

    def step(ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            joined = tf.concat([look_up(table, ids) for table in tables], 1)
            loss = tf.reduce_sum(joined @ tf.ones([12, 2]))
        for table, gradient in zip(tables, tape.gradient(loss, tables), strict=True):
            table.scatter_sub(gradient)

    enabled, rewritten = explained(traced(step, tf.TensorSpec([None, 3], tf.int64)))
    assert {said for _, said in enabled} == {form}
    assert {said for _, said in rewritten} == {why or form}
    assert {name for name, _ in enabled} == {name for name, _ in rewritten} == {"t0", "t1", "t2"}


#: What is said of products that TensorFlow folds before `enable` sees them: two transpositions of a
#: matrix, the number of classes, or all of the product.
FOLDED = {"transposed": ["single"], "classes": ["single"], "on the right": []}


@pytest.mark.parametrize("name", REASONS)
def test_products_that_a_rewrite_leaves(name: str) -> None:
    make, reason = REASONS[name]
    enabled, rewritten = explained(graph_of(make), "out")
    (said,) = (said for _, said in rewritten)
    assert reason in str(said)
    assert [said for _, said in enabled] == FOLDED.get(name, [said])


def test_functions_that_nobody_calls_are_rewritten() -> None:
    """They do not run in this graph, but may in another one."""
    table = tf.Variable(np.ones((30, 4), np.float32))
    function = traced(lambda ids: _columns(table, ids), tf.TensorSpec([None, 3], tf.int64))
    graph_def = graph_pb2.GraphDef()
    graph_def.node.add(name="out", op="NoOp")
    graph_def.library.function.add().CopyFrom(function.function_def)
    enabled, rewritten = explained(graph_def, "out")
    assert not enabled
    assert [form for _, form in rewritten] == ["single"]
