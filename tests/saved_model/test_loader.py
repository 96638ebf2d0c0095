"""`saved_model_load`: what `tf.saved_model.load` gives, with fused lookups in its functions."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.saved_model import ModelError, fuse_saved_model
from fusion.saved_model.model.source import read_saved_model
from fusion.schema.names import OP_NAMES
from tests.keras.models import IDS, functional
from tests.saved_model.models import COLUMNS, WORDS, Ranker
from tests.saved_model.test_rewrite import hashes
from tests.saved_model.test_stock_target import Trained

v1 = tf.compat.v1
Model = Any
FUSABLE = [kind for kind, columns in COLUMNS.items() if columns]
INDICES = [[0, 0], [0, 1], [2, 0]]
SHAPE = [3, 2]
VALUES = {"item": [3, 39, 7], "shop": [5, -1, 79], "city": ["x", "y", "z"], "color": WORDS[1:4]}


def stock(path: Path, *arguments: Any) -> Model:
    return tf.saved_model.load(str(path), *arguments)


def ids(name: str = "item") -> tf.SparseTensor:
    values = np.array(VALUES[name])
    return tf.SparseTensor(INDICES, values, SHAPE)


def run_v1(model: Model) -> tf.Tensor:
    feeds: dict[str, Any] = {"price": tf.ones([3, 1])}
    for name in VALUES:
        feeds |= {f"{name}_indices": INDICES, f"{name}_values": ids(name).values}
        feeds |= {f"{name}_dense_shape": SHAPE}
    feeds = {
        key: tf.constant(value, tf.int64) if isinstance(value, list) else value
        for key, value in feeds.items()
    }
    return model.signatures["serving_default"](**feeds)["layer"]


def run_example(model: Model) -> tf.Tensor:
    def example(item: int) -> bytes:
        feature = {
            "item": tf.train.Feature(int64_list=tf.train.Int64List(value=[item, 3])),
            "price": tf.train.Feature(float_list=tf.train.FloatList(value=[0.0, 1.0])),
        }
        return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()

    serve = model.signatures["serving_default"]
    return serve(examples=tf.constant([example(1), example(2)]))["score"]


RUNS: dict[str, Callable[[Model], tf.Tensor]] = {
    "v1_ref": run_v1,
    "v1_resource": run_v1,
    "tf2": lambda model: model.rank(ids("item"), ids("shop"))["score"],
    "keras": lambda model: model({name: ids(name) for name in VALUES}),
    "example": run_example,
}


def ops(function: Any) -> set[str]:
    """The ops of a concrete function and of all that it calls."""
    graph = tf.Graph()
    function.add_to_graph(graph)
    functions = graph.as_graph_def().library.function
    return {node.op for function in functions for node in function.node_def}


def fused_ops(model: Model) -> set[str]:
    return set().union(*map(ops, model.signatures.values())) & {*OP_NAMES}


@pytest.mark.parametrize("kind", FUSABLE)
@pytest.mark.parametrize("target", ["fused", "stock"])
def test_it_is_what_tensorflow_loads_with_other_lookups(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, target: str
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = hashes(models / kind)
    expected = stock(models / kind)
    loaded = fusion.saved_model_load(models / kind, target=target)
    assert hashes(models / kind) == before
    assert os.listdir(tmp_path) == []

    assert bool(fused_ops(loaded)) == (target == "fused")
    assert not fused_ops(expected)
    report = loaded.fusion_report
    assert report.fused_count == len(report.columns) >= COLUMNS[kind]
    assert report.nodes_after < report.nodes_before

    assert type(loaded).__name__ == type(expected).__name__
    assert {*dir(loaded)} - {*dir(expected)} == {"fusion_report"}
    assert loaded.signatures.keys() == expected.signatures.keys()
    for name, signature in expected.signatures.items():
        other = loaded.signatures[name]
        assert other.structured_input_signature == signature.structured_input_signature
        assert str(other.structured_outputs) == str(signature.structured_outputs)
    result = RUNS[kind](loaded)
    assert np.any(result)
    np.testing.assert_array_equal(result, RUNS[kind](expected))


def test_variables_are_restored_and_gradients_flow(models: Path):
    def trained(model: Model) -> list[Any]:
        variables = [model.items, model.shops, model.weights]
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(RUNS["tf2"](model))
            for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))
        return [loss, *variables]

    loaded = fusion.saved_model_load(models / "tf2")
    before = loaded.items.numpy()
    for one, other in zip(trained(loaded), trained(stock(models / "tf2")), strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.any(loaded.items != before)


def test_nothing_to_fuse(models: Path, tmp_path: Path):
    plain = fusion.saved_model_load(models / "plain")
    assert plain.fusion_report.columns == ()
    np.testing.assert_array_equal(plain.signatures["serving_default"](x=tf.ones([1, 3]))["y"], 2.0)

    module = tf.Module()
    module.table = tf.Variable(tf.reshape(tf.range(12.0), [6, 2]))

    @tf.function(input_signature=[tf.SparseTensorSpec([None, None], tf.int64)])
    def look_up(one: tf.SparseTensor) -> tf.Tensor:
        filled, _ = tf.sparse.fill_empty_rows(one, tf.argmax(module.table[0]))
        return tf.nn.embedding_lookup_sparse(module.table, filled, None)

    module.look_up = look_up
    tf.saved_model.save(module, str(tmp_path))
    loaded = fusion.saved_model_load(tmp_path)
    (column,) = loaded.fusion_report.columns
    assert not column.fused
    assert column.reason == "the id for empty rows is not a constant"
    one = tf.SparseTensor(INDICES, tf.constant([2, 3, 4], tf.int64), SHAPE)
    np.testing.assert_array_equal(loaded.look_up(one), look_up(one))


def test_a_model_that_is_fused(models: Path, tmp_path: Path):
    fuse_saved_model(models / "tf2", tmp_path / "fused", verify=False)
    expected = RUNS["tf2"](stock(models / "tf2"))
    for target in ("fused", "stock"):
        loaded = fusion.saved_model_load(tmp_path / "fused", target=target)
        assert bool(fused_ops(loaded)) == (target == "fused")
        np.testing.assert_array_equal(RUNS["tf2"](loaded), expected)


def test_assets_are_those_in_the_directory(models: Path, tmp_path: Path):
    (tmp_path / "words.txt").write_text("\n".join(WORDS))
    module = tf.Module()
    module.words = tf.saved_model.Asset(str(tmp_path / "words.txt"))
    module.numbers = tf.lookup.StaticVocabularyTable(
        tf.lookup.TextFileInitializer(
            *(module.words, tf.string, tf.lookup.TextFileIndex.WHOLE_LINE),
            *(tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER),
        ),
        1,
    )
    module.table = tf.Variable(tf.reshape(tf.range(12.0), [6, 2]))

    @tf.function(input_signature=[tf.SparseTensorSpec([None, None], tf.string)])
    def look_up(words: tf.SparseTensor) -> tf.Tensor:
        numbers = module.numbers.lookup(words)
        return tf.nn.safe_embedding_lookup_sparse(module.table, numbers, combiner="sum")

    module.look_up = look_up
    model = tmp_path / "model"
    tf.saved_model.save(module, str(model))
    (tmp_path / "words.txt").unlink()
    loaded = fusion.saved_model_load(model)
    assert loaded.fusion_report.fused_count == 1
    assert loaded.words.asset_path.numpy().decode() == str(model / "assets" / "words.txt")
    words = tf.SparseTensor(INDICES, tf.constant(["red", "cyan", "no"]), SHAPE)
    np.testing.assert_array_equal(loaded.look_up(words), [[6, 8], [0, 0], [10, 11]])

    (asset,) = fusion.saved_model_load(models / "v1_ref").asset_paths
    path = Path(asset.asset_path.numpy().decode())
    assert path.parent == models / "v1_ref" / "assets"
    assert path.read_text().split() == [*WORDS]


def test_a_model_of_keras_3(tmp_path: Path):
    model = functional(keras.layers.Embedding)
    model.export(tmp_path / "model", verbose=False)
    loaded, expected = fusion.saved_model_load(tmp_path / "model"), stock(tmp_path / "model")
    assert loaded.fusion_report.fused_count > 1
    assert "GroupedEmbeddingLookup" in fused_ops(loaded)
    np.testing.assert_array_equal(loaded.serve(IDS), expected.serve(IDS))
    assert len(loaded.trainable_variables) == len(model.trainable_variables)


def test_what_was_loaded_can_be_saved(models: Path, tmp_path: Path):
    loaded = fusion.saved_model_load(models / "tf2", target="stock")
    tf.saved_model.save(loaded, str(tmp_path / "again"), loaded.signatures)
    again = stock(tmp_path / "again")
    assert not hasattr(again, "fusion_report")
    np.testing.assert_array_equal(RUNS["tf2"](again), RUNS["tf2"](loaded))


def test_tags_choose_the_meta_graph(models: Path, tmp_path: Path):
    with tf.Graph().as_default(), v1.Session() as session:
        one = v1.sparse_placeholder(tf.int64, [None, None])
        table = v1.get_variable("table", [40, 4])
        out = tf.nn.safe_embedding_lookup_sparse(table, one, combiner="sum")
        session.run(v1.global_variables_initializer())
        look = {"look": v1.saved_model.predict_signature_def({"ids": one}, {"out": out})}
        builder = v1.saved_model.builder.SavedModelBuilder(str(tmp_path / "two"))
        builder.add_meta_graph_and_variables(session, ["serve"], look)
        builder.add_meta_graph(["serve", "other"], {})
        builder.save()
    for path, chosen in ((tmp_path / "two", ["serve"]), (models / "tf2", "serve")):
        loaded = fusion.saved_model_load(path, chosen)
        assert loaded.fusion_report.fused_count == (1 if path.name == "two" else 2)
        assert fused_ops(loaded)
    both = fusion.saved_model_load(tmp_path / "two", tags={"serve", "other"})
    assert not both.signatures
    for path, wrong in ((tmp_path / "two", None), (tmp_path / "two", "no"), (models / "tf2", "no")):
        assert_same_error(path, wrong)


def test_options(models: Path, tmp_path: Path):
    module = Ranker()
    aliases = tf.saved_model.SaveOptions(function_aliases={"rank": module.rank})
    tf.saved_model.save(module, str(tmp_path), options=aliases)
    options = tf.saved_model.LoadOptions(experimental_load_function_aliases=True)
    loaded = fusion.saved_model_load(tmp_path, options=options)
    result = loaded.function_aliases["rank"](ids("item"), ids("shop"))["score"]
    np.testing.assert_array_equal(result, RUNS["tf2"](module))

    skipping = tf.saved_model.LoadOptions(experimental_skip_checkpoint=True)
    shutil.copytree(models / "v1_resource", tmp_path / "v1")
    shutil.rmtree(tmp_path / "v1" / "variables")
    assert fusion.saved_model_load(tmp_path / "v1", options=skipping).fusion_report.fused_count


def assert_same_error(path: Path, *arguments: Any) -> None:
    """Loads a model that cannot be loaded, and expects TensorFlow's own error."""
    with pytest.raises((OSError, ValueError, RuntimeError)) as expected:
        stock(path, *arguments)
    with pytest.raises(type(expected.value)) as caught:
        fusion.saved_model_load(path, *arguments)
    assert str(caught.value) == str(expected.value)


def test_what_cannot_be_loaded_is_tensorflows_error(models: Path, tmp_path: Path):
    assert_same_error(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    assert_same_error(tmp_path / "empty")
    shutil.copytree(models / "tf2", tmp_path / "cut")
    content = (tmp_path / "cut" / "saved_model.pb").read_bytes()
    (tmp_path / "cut" / "saved_model.pb").write_bytes(content[:1000])
    assert_same_error(tmp_path / "cut")
    for kind in ("tf2", "v1_resource"):
        shutil.copytree(models / kind, tmp_path / kind)
        shutil.rmtree(tmp_path / kind / "variables")
        with pytest.raises((OSError, tf.errors.NotFoundError), match=f"{kind}/variables"):
            fusion.saved_model_load(tmp_path / kind)


def test_a_malformed_graph_is_a_model_error(models: Path, tmp_path: Path):
    source = tmp_path / "model"
    shutil.copytree(models / "v1_ref", source)
    proto = read_saved_model(source).proto
    for node in proto.meta_graphs[0].graph_def.node:
        if node.op == "SparseFillEmptyRows":
            node.input[0] = ""
    (source / "saved_model.pb").write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match=rf"^{source}: its graph makes no sense to fusion"):
        fusion.saved_model_load(source)


def test_what_has_no_stock_form_is_a_model_error(tmp_path: Path):
    module = Trained()
    tf.saved_model.save(module, str(tmp_path), module.update)
    assert "FusedEmbeddingUpdate" in fused_ops(fusion.saved_model_load(tmp_path))
    with pytest.raises(ModelError, match=rf"^{tmp_path}: .* cannot become stock ops"):
        fusion.saved_model_load(tmp_path, target="stock")


def test_bad_arguments(models: Path, tmp_path: Path):
    with pytest.raises(ValueError, match="saved_model_load: target must be one of fused, stock"):
        fusion.saved_model_load(models / "tf2", target="xla")
    module = Ranker()
    module.fusion_report = tf.Variable(1.0)
    tf.saved_model.save(module, str(tmp_path))
    with pytest.raises(ValueError, match=r"path .* has an attribute 'fusion_report' of its own"):
        fusion.saved_model_load(tmp_path)


def test_threads_that_load_do_not_meet(models: Path):
    """TensorFlow's own loader stays what it was while others load."""
    loaders: list[Callable[..., Model]] = [stock, fusion.saved_model_load] * 2
    loaded: list[Any] = [None] * len(loaders)
    start = threading.Barrier(len(loaders))

    def load(index: int) -> None:
        start.wait()
        for _ in range(3):
            loaded[index] = loaders[index](models / "tf2")

    threads = [threading.Thread(target=load, args=(index,)) for index in range(len(loaders))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [bool(fused_ops(model)) for model in loaded] == [False, True] * 2


def test_it_is_loaded_while_a_function_is_traced(models: Path):
    loaded = []

    @tf.function
    def rank() -> tf.Tensor:
        loaded.append(fusion.saved_model_load(models / "tf2"))
        return RUNS["tf2"](loaded[-1])

    np.testing.assert_array_equal(rank(), RUNS["tf2"](stock(models / "tf2")))
    assert loaded[0].fusion_report.fused_count == 2
