"""Signatures that are added to models: each is one of the model itself, under another name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from fusion.saved_model import ModelError, fuse_saved_model
from fusion.saved_model.flat import flat_graph
from fusion.saved_model.inputs.generator import input_generators
from fusion.saved_model.inputs.signature import signatures
from fusion.saved_model.model.source import MODEL_FILE, read_saved_model
from fusion.saved_model.requests.signatures import ComputedSignature, add_signature
from fusion.saved_model.verify.runner import Runner, loaders
from tests.saved_model import kinds
from tests.saved_model.models import DIM, ROWS, WORDS

v1 = tf.compat.v1

NEW = "again"
SERVING = "serving_default"
STOCK = "stock"


class Priced(tf.Module):
    """A string and a float input, a vocabulary file, a variable, and a captured constant."""

    def __init__(self, vocabulary: str) -> None:
        super().__init__()
        lookup = tf.lookup
        words = lookup.TextFileInitializer(
            vocabulary,
            tf.string,
            lookup.TextFileIndex.WHOLE_LINE,
            tf.int64,
            lookup.TextFileIndex.LINE_NUMBER,
        )
        self.words = lookup.StaticHashTable(words, default_value=0)
        self.rows = tf.Variable(tf.random.stateless_normal([ROWS, DIM], [1, 2]), name="rows")
        self.scale = tf.random.stateless_normal([DIM], [3, 4])

    @tf.function(
        input_signature=[tf.TensorSpec([None, 2], tf.string), tf.TensorSpec([None], tf.float32)]
    )
    def serve(self, words: tf.Tensor, price: tf.Tensor) -> dict[str, tf.Tensor]:
        found = tf.nn.embedding_lookup(self.rows, self.words.lookup(words))
        row = tf.reduce_mean(found, axis=1)
        return {"scaled": row * self.scale * price[:, tf.newaxis], "row": row, "price": price}


def priced(directory: Path) -> None:
    vocabulary = directory.parent / f"{directory.name}.txt"
    vocabulary.write_text("".join(f"{word}\n" for word in WORDS))
    model = Priced(str(vocabulary))
    tf.saved_model.save(model, str(directory), {SERVING: model.serve})


def v1_branches(directory: Path) -> None:
    """A Session model with a branch and a loop of TensorFlow 1, and ref variables."""
    with tf.Graph().as_default(), v1.Session() as session:
        v1.disable_control_flow_v2()
        ids = v1.placeholder(tf.int64, [None, 2], name="ids")
        many = v1.placeholder(tf.bool, [], name="many")
        table = v1.get_variable("table", [ROWS, DIM], use_resource=False)
        row = tf.reduce_sum(tf.nn.embedding_lookup(table, ids), axis=1)
        chosen = v1.cond(many, lambda: row * 2.0, lambda: row + table[0])
        total = v1.while_loop(lambda k, _: k < 3, lambda k, x: (k + 1, x + row), [0, chosen])[1]
        v1.enable_control_flow_v2()
        session.run(v1.global_variables_initializer())
        signature = v1.saved_model.predict_signature_def(
            {"ids": ids, "many": many}, {"total": total}
        )
        builder = v1.saved_model.builder.SavedModelBuilder(str(directory))
        builder.add_meta_graph_and_variables(session, ["serve"], {SERVING: signature})
        builder.save()


BUILDERS: dict[str, Callable[[Path], None]] = {
    "priced": priced,
    "branching": kinds.branching,
    "keras3_export": kinds.keras3_export,
    "v1_branches": v1_branches,
}

#: The signature that is added again, the lookups of the model, and those of the signature.
KINDS = {
    "priced": (SERVING, 1, 1),
    "keras3_export": (SERVING, 1, 1),
    "keras": (SERVING, 4, 4),
    "tf2": (SERVING, 2, 2),
    "example": (SERVING, 2, 2),
    "v1_resource": (SERVING, 4, 4),
    "v1_ref": (SERVING, 4, 4),
    "v1_branches": (SERVING, 1, 1),
    "branching": ("branch", 4, 5),
}


@pytest.fixture(scope="module")
def sources(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns the model of a kind."""
    folder = tmp_path_factory.mktemp("sources")

    def source(kind: str) -> Path:
        if kind not in BUILDERS:
            return models / kind
        if not (folder / kind).exists():
            BUILDERS[kind](folder / kind)
        return folder / kind

    return source


@pytest.fixture(scope="module")
def added(
    sources: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Returns the model of a kind with the signature added."""
    folder = tmp_path_factory.mktemp("added")

    def model(kind: str) -> Path:
        if not (folder / kind).exists():
            proto = read_proto(sources(kind))
            meta = proto.meta_graphs[0]
            add_signature(meta, NEW, computed(meta, KINDS[kind][0]))
            shutil.copytree(sources(kind), folder / kind)
            (folder / kind / MODEL_FILE).write_bytes(proto.SerializeToString(deterministic=True))
        return folder / kind

    return model


def read_proto(model: Path) -> saved_model_pb2.SavedModel:
    proto = saved_model_pb2.SavedModel()
    proto.ParseFromString((model / MODEL_FILE).read_bytes())
    return proto


def computed(meta: meta_graph_pb2.MetaGraphDef, key: str) -> ComputedSignature:
    """A signature of a model as one that is computed by a graph."""
    own = meta.signature_def[key]
    return ComputedSignature(flat_graph(meta), {**own.inputs}, {**own.outputs}, own.method_name)


def outputs(runner: Runner, model: Path, key: str, feeds_of: str) -> list[Any]:
    """What a signature of a loaded model returns for inputs that are generated for another.

    None where it refuses the inputs: generated ids may be those of no row.
    """
    meta = read_saved_model(model).meta_graphs[0]
    by_name = {signature.name: signature for signature in signatures(meta)}
    generator = input_generators(model, meta, [by_name[feeds_of]])[by_name[feeds_of].title]
    results: list[Any] = []
    for case in generator.cases():
        try:
            results.append(runner.run(by_name[key], generator(case)))
        except tf.errors.InvalidArgumentError:
            results.append(None)
    return results


def assert_same(some: list[Any], others: list[Any]) -> None:
    assert [one is None for one in some] == [other is None for other in others]
    pairs = [(one, other) for one, other in zip(some, others, strict=True) if one is not None]
    assert pairs
    for one, other in pairs:
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], strict=True)


def load(model: Path) -> dict[str, Runner]:
    """A model by the loaders that it is for."""
    proto = read_saved_model(model).proto
    return {name: loader(model, ["serve"]) for name, loader in loaders(proto).items()}


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_those_of_the_signature_that_is_added_again(
    sources: Callable[[str], Path], added: Callable[[str], Path], kind: str
) -> None:
    key, source, model = KINDS[kind][0], sources(kind), added(kind)
    stock, loaded = load(source), load(model)
    assert [*loaded] == [*stock]
    for name, runner in loaded.items():
        expected = outputs(stock[name], source, key, key)
        assert_same(outputs(runner, model, key, key), expected)
        assert_same(outputs(runner, model, NEW, key), expected)


@pytest.mark.parametrize("kind", ["v1_resource", "v1_ref", "v1_branches"])
def test_models_of_sessions_are_loaded_by_tensorflow_2(
    added: Callable[[str], Path], kind: str
) -> None:
    loaded = tf.saved_model.load(str(added(kind)))
    assert {*loaded.signatures} == {SERVING, NEW}
    if kind == "v1_branches":
        ids, many = tf.constant([[1, 2], [3, 3]], tf.int64), tf.constant(False)
        totals = [loaded.signatures[key](ids=ids, many=many)["total"] for key in (SERVING, NEW)]
        np.testing.assert_array_equal(*totals)


@pytest.mark.parametrize("kind", ["keras3_export", "example"])
def test_keras_has_it_as_a_layer(added: Callable[[str], Path], kind: str) -> None:
    model, key = added(kind), KINDS[kind][0]
    meta = read_saved_model(model).meta_graphs[0]
    (signature,) = (one for one in signatures(meta) if one.name == key)
    generator = input_generators(model, meta, [signature])[signature.title]
    layers = [keras.layers.TFSMLayer(model, call_endpoint=name) for name in (key, NEW)]
    weights = [{weight.name for weight in layer.weights} for layer in layers]
    assert weights[0] == weights[1] != set()
    results: tuple[list[Any], list[Any]] = [], []
    for case in generator.cases():
        (value,) = generator(case).values()
        for layer, outcomes in zip(layers, results, strict=True):
            try:
                outcomes.append(tf.nest.map_structure(np.asarray, layer(tf.constant(value))))
            except tf.errors.InvalidArgumentError:
                outcomes.append(None)
    assert_same(*results)


@pytest.mark.parametrize("target", ["fused", STOCK])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_rewritten_as_the_others_are(
    added: Callable[[str], Path], tmp_path: Path, kind: str, target: str
) -> None:
    """The rewrite compares all signatures with those of the model."""
    key, others, own = KINDS[kind]
    report = fuse_saved_model(added(kind), tmp_path / "model", target=target)
    assert len(report.columns) == others + own
    # A gather and a reduction over an axis, which stock ops cannot do better.
    is_optimal = target == STOCK and kind in ("priced", "v1_branches")
    assert all(column.fused is not is_optimal for column in report.columns)
    names = [column.name for column in report.columns]
    assert {*names[:others]} == {*names[others:]}
    for runner in load(tmp_path / "model").values():
        model = tmp_path / "model"
        assert_same(outputs(runner, model, NEW, key), outputs(runner, model, key, key))


@pytest.mark.parametrize("kind", ["priced", "v1_ref", "branching"])
def test_the_same_signature_is_the_same_bytes(sources: Callable[[str], Path], kind: str) -> None:
    metas = [read_proto(sources(kind)).meta_graphs[0] for _ in range(2)]
    for meta in metas:
        for key in (NEW, "once more"):
            add_signature(meta, key, computed(meta, KINDS[kind][0]))
    one, other = (meta.SerializeToString(deterministic=True) for meta in metas)
    assert one == other
    names = [function.signature.name for function in metas[0].graph_def.library.function]
    assert len({*names}) == len(names)


def info(name: str, dtype: tf.DType = tf.float32, *shape: int) -> meta_graph_pb2.TensorInfo:
    result = meta_graph_pb2.TensorInfo(name=name, dtype=dtype.as_datatype_enum)
    result.tensor_shape.CopyFrom(tf.TensorShape(shape).as_proto())
    return result


def graph_of(build: Callable[[], Any]) -> graph_pb2.GraphDef:
    with tf.Graph().as_default() as graph:
        build()
    return graph.as_graph_def()


def test_names_are_those_that_tensorflow_makes_of_them(tmp_path: Path) -> None:
    """What no node and no parameter of Python can be called; a root without signatures."""

    def build() -> None:
        one, two = (v1.placeholder(tf.float32, [2], name=name) for name in ("a", "b"))
        tf.subtract(one, two, name="difference")

    tf.saved_model.save(tf.Module(), str(tmp_path / "model"))
    proto = read_proto(tmp_path / "model")
    meta = proto.meta_graphs[0]
    children = meta.object_graph_def.nodes[0].children
    assert [child.local_name for child in children] == ["signatures"]
    del children[:]
    inputs = {"b-c": info("a:0", tf.float32, 2), "bAc": info("b:0", tf.float32, 2)}
    results = {"-": info("difference:0", tf.float32, 2), "same": info("b", tf.float32, 2)}
    for key in ("_a key: of any kind", "1"):
        add_signature(meta, key, ComputedSignature(graph_of(build), inputs, results))
    (tmp_path / "model" / MODEL_FILE).write_bytes(proto.SerializeToString())
    feeds = {"b-c": np.array([5, 6], np.float32), "bAc": np.array([1, 2], np.float32)}
    by_name = {signature.name: signature for signature in signatures(meta)}
    assert by_name.keys() == {"_a key: of any kind", "1"}
    for runner in load(tmp_path / "model").values():
        for signature in by_name.values():
            found = runner.run(signature, feeds)
            assert found["-"].tolist() == [4, 4]
            assert found["same"].tolist() == [1, 2]


def test_a_constant_of_the_graph_is_none_of_the_model(
    sources: Callable[[str], Path], tmp_path: Path
) -> None:
    shutil.copytree(sources("priced"), tmp_path / "model")
    proto = read_proto(tmp_path / "model")
    meta = proto.meta_graphs[0]
    bound = [node.name for node in meta.graph_def.node if node.name.startswith("Const")]

    def build() -> None:
        total = v1.placeholder(tf.float32, [], name="x")
        for name in bound:
            total = total * tf.constant(3.0, name=name)
        tf.identity(total, name="y")

    signature = ComputedSignature(graph_of(build), {"x": info("x:0")}, {"y": info("y:0")})
    add_signature(meta, NEW, signature)
    (tmp_path / "model" / MODEL_FILE).write_bytes(proto.SerializeToString())
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    assert loaded.signatures[NEW](tf.constant(2.0))["y"].numpy() == 2 * 3 ** len(bound)


X, Y = {"x": info("x:0")}, {"y": info("y:0")}


def constant_default() -> None:
    default = tf.random.uniform([], name="default")
    x = v1.placeholder_with_default(default, [], name="x")
    tf.identity(x, name="y")


def fed(op: Callable[[Any], Any]) -> Callable[[], Any]:
    """Builds a graph from `x` to `y`."""
    return lambda: tf.identity(op(v1.placeholder(tf.float32, [], name="x")), name="y")


def variable(name: str) -> Callable[[Any], Any]:
    def read(x: Any) -> Any:
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name=name, name=name)
        return x + tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)

    return read


def ref_variable(name: str) -> Callable[[Any], Any]:
    return lambda x: x + v1.get_variable(name, [], use_resource=False)


def assigned(x: Any) -> Any:
    return v1.assign(
        v1.get_variable("table", [ROWS, DIM], use_resource=False), tf.fill([ROWS, DIM], x)
    )


def ref_table(x: Any) -> Any:
    table = tf.raw_ops.HashTable(key_dtype=tf.int64, value_dtype=tf.float32, name="table")
    return x + tf.raw_ops.LookupTableFind(
        table_handle=table, keys=tf.constant(1, tf.int64), default_value=0.0
    )


def unknown_op(x: Any) -> Any:
    return tf.add(x, 1.0, name="unknown")


SPARSE = meta_graph_pb2.TensorInfo()
SPARSE.coo_sparse.values_tensor_name = "x:0"

#: The model, the key, the graph, inputs and outputs, and what is wrong.
REFUSED: dict[str, tuple[str, str, Callable[[], Any], Any, Any, str]] = {
    "used": ("priced", SERVING, fed(tf.identity), X, Y, "the model has one of this name"),
    "nameless": ("priced", "", fed(tf.identity), X, Y, "has no name"),
    "no_outputs": ("priced", NEW, fed(tf.identity), X, {}, "no outputs"),
    "twice": ("priced", NEW, fed(tf.identity), {**X, "z": X["x"]}, Y, "'x' and 'z' are both x"),
    "one_parameter": (
        *("priced", NEW, fed(tf.identity), {"x-y": X["x"], "x_y": info("y:0")}, Y),
        "'x-y' and 'x_y' have the same name",
    ),
    "computed": ("priced", NEW, fed(tf.identity), {"z": info("y:0")}, Y, "'z': y:0 is no Place"),
    "absent": ("priced", NEW, fed(tf.identity), {"z": info("z:0")}, Y, "'z': z:0 is no Placehol"),
    "no_tensor": ("priced", NEW, fed(tf.identity), X, {"y": info("y:1")}, "'y': y:1 is no tensor"),
    "no_node": ("priced", NEW, fed(tf.identity), X, {"y": info("z:0")}, "'y': z:0 is no tensor"),
    "sparse": ("priced", NEW, fed(tf.identity), {"x": SPARSE}, Y, "'x' is no dense tensor"),
    "not_fed": ("priced", NEW, fed(tf.identity), {}, Y, "needs x .Placeholder.: it is no input"),
    "default": ("v1_branches", NEW, constant_default, X, Y, "default of x is no constant"),
    "no_variable": (
        "priced",
        NEW,
        fed(variable("z")),
        X,
        Y,
        "needs z .VarHandleOp.: the model has",
    ),
    "not_read": (
        *("keras3_export", NEW, fed(variable("score/bias")), X, Y),
        "needs score/bias .VarHandleOp.: no signature",
    ),
    "reference": (
        "priced",
        NEW,
        fed(ref_variable("rows")),
        X,
        Y,
        "needs rows .VariableV2.: the mo",
    ),
    "assigned": (
        "v1_branches",
        NEW,
        fed(assigned),
        X,
        Y,
        "needs Assign .Assign.: functions have no",
    ),
    "ref_table": (
        "v1_branches",
        NEW,
        fed(ref_table),
        X,
        Y,
        "needs table .HashTable.: the model has",
    ),
    "unknown": (
        "priced",
        NEW,
        fed(unknown_op),
        X,
        Y,
        "needs unknown .NoSuchOp.: the op is unknown",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_added_is_refused(sources: Callable[[str], Path], case: str) -> None:
    kind, key, build, inputs, results, message = REFUSED[case]
    meta = read_proto(sources(kind)).meta_graphs[0]
    before = meta.SerializeToString(deterministic=True)
    graph = graph_of(build)
    for node in graph.node:
        node.op = "NoSuchOp" if node.name == "unknown" else node.op
    with pytest.raises(ModelError, match=message) as error:
        add_signature(meta, key, ComputedSignature(graph, inputs, results))
    assert repr(key) in str(error.value) or not key
    assert meta.SerializeToString(deterministic=True) == before


def test_a_reference_to_a_table_is_refused(sources: Callable[[str], Path]) -> None:
    """One that the model has, but as functions cannot have it."""
    meta = read_proto(sources("v1_branches")).meta_graphs[0]
    graph = graph_of(fed(ref_table))
    (node,) = (node for node in meta.graph_def.node if node.name == "table")
    node.op = "HashTable"
    with pytest.raises(ModelError, match=r"needs table .HashTable.: no function can be passed"):
        add_signature(meta, NEW, ComputedSignature(graph, X, Y))
