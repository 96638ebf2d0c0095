"""SavedModels whose ids come from vocabularies: one op looks them up, in an index of the tables."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import fusion
from fusion.cli.app import main
from fusion.saved_model import Rewrite, rewrite_saved_model
from fusion.saved_model.model.meta_graph import used_ops
from fusion.saved_model.model.source import read_saved_model
from fusion.schema.names import GROUPED_IDS, VOCABULARY_INDEX

v1 = tf.compat.v1
WORDS = ["red", "green", "blue", "a colour of more than 16 bytes"]
OTHERS = ["", "cyan", "a colour of more than 16 bytez", "[UNK]"]
NUMBERS, OTHER_NUMBERS = [5, 7, 2**40], [0, -1, 8]
ROWS, DIM = 20, 4


def vocabulary_file(folder: Path, words: list[str] = WORDS) -> str:
    path = folder / "words.txt"
    path.write_text("".join(f"{word}\n" for word in words))
    return str(path)


def keras_layers(folder: Path) -> None:
    """Lookup layers of Keras 3: all numbers of buckets, masks, vocabularies of files."""
    texts, numbers = keras.layers.StringLookup, keras.layers.IntegerLookup
    layers = [
        texts(vocabulary=WORDS),
        texts(vocabulary=WORDS, mask_token="", num_oov_indices=3),
        texts(vocabulary=WORDS, num_oov_indices=0),
        texts(vocabulary=vocabulary_file(folder.parent), mask_token=""),
        numbers(vocabulary=NUMBERS),
        numbers(vocabulary=NUMBERS, mask_token=0, num_oov_indices=3),
    ]
    inputs, rows = [], []
    for k, layer in enumerate(layers):
        inputs.append(keras.Input((1,), dtype="string" if k < 4 else "int64", name=f"x{k}"))
        embedding = keras.layers.Embedding(ROWS, DIM, embeddings_initializer="uniform")
        rows.append(keras.layers.Flatten()(embedding(layer(inputs[-1]))))
    model = keras.Model(inputs, keras.layers.Concatenate()(rows))
    model.export(folder, verbose=False)


def feature_columns(folder: Path) -> None:
    """DenseFeatures of tf_keras."""
    fc, path = tf.feature_column, vocabulary_file(folder.parent)
    columns = [
        fc.categorical_column_with_vocabulary_list("x0", WORDS),
        fc.categorical_column_with_vocabulary_list("x1", WORDS, num_oov_buckets=2),
        fc.categorical_column_with_vocabulary_file("x2", path, len(WORDS), default_value=1),
        fc.categorical_column_with_vocabulary_file("x3", path, len(WORDS), num_oov_buckets=3),
        fc.categorical_column_with_vocabulary_list("x4", NUMBERS, tf.int64),
        fc.categorical_column_with_vocabulary_list("x5", NUMBERS, tf.int64, num_oov_buckets=2),
    ]
    layer = tf_keras.layers.DenseFeatures([fc.embedding_column(one, DIM) for one in columns])
    inputs = {
        f"x{k}": tf_keras.Input((1,), dtype=tf.string if k < 4 else tf.int64, name=f"x{k}")
        for k in range(6)
    }
    tf.saved_model.save(tf_keras.Model(inputs, layer(inputs)), str(folder))


class Tables(tf.Module):
    """Tables of tf.lookup in a module."""

    def __init__(self, path: str) -> None:
        super().__init__()
        index = tf.lookup.TextFileIndex
        lines = (path, tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER)
        numbers = tf.constant(NUMBERS, tf.int64), tf.range(3, dtype=tf.int64)
        pairs = tf.lookup.KeyValueTensorInitializer(*numbers)
        self.tables = [
            tf.lookup.StaticVocabularyTable(tf.lookup.TextFileInitializer(*lines), 2),
            tf.lookup.StaticHashTable(tf.lookup.TextFileInitializer(*lines), 7),
            tf.lookup.StaticVocabularyTable(
                tf.lookup.KeyValueTensorInitializer(WORDS[:2], tf.range(2, dtype=tf.int64)), 3
            ),
            tf.lookup.StaticHashTable(tf.lookup.TextFileInitializer(*lines), 8),
            tf.lookup.StaticHashTable(pairs, 9),
            tf.lookup.StaticVocabularyTable(pairs, 4, lookup_key_dtype=tf.int64),
        ]
        self.rows = [tf.Variable(tf.random.stateless_normal([ROWS, DIM], [k, 1])) for k in range(6)]

    @tf.function
    def __call__(self, **values: tf.Tensor) -> dict[str, tf.Tensor]:
        rows = [
            tf.nn.embedding_lookup(rows, table.lookup(values[f"x{k}"][:, 0]))
            for k, (table, rows) in enumerate(zip(self.tables, self.rows, strict=True))
        ]
        return {"rows": tf.concat(rows, 1)}


def tables(folder: Path) -> None:
    """A module whose function captures tables."""
    module = Tables(vocabulary_file(folder.parent))
    specs = {
        f"x{k}": tf.TensorSpec([None, 1], tf.string if k < 4 else tf.int64, f"x{k}")
        for k in range(6)
    }
    tf.saved_model.save(module, str(folder), module.__call__.get_concrete_function(**specs))


KINDS: dict[str, Callable[[Path], None]] = {
    "keras": keras_layers,
    "columns": feature_columns,
    "tables": tables,
}


def values(kind: str) -> dict[str, tf.Tensor]:
    texts, numbers = WORDS + OTHERS, NUMBERS + OTHER_NUMBERS
    columns: list[list[Any]] = [texts, texts, texts, texts, numbers, numbers]
    if kind == "keras":
        columns[2] = WORDS  # without buckets others are errors
    rows = 16
    return {
        f"x{k}": tf.constant((one * rows)[:rows], shape=[rows, 1])
        for k, one in enumerate(
            [*columns[:4], *([np.int64(n) for n in one] for one in columns[4:])]
        )
    }


def ops(path: Path) -> set[str]:
    return {op for meta in read_saved_model(path).meta_graphs for op in used_ops(meta)}


def answer(model: Any, inputs: Mapping[str, tf.Tensor]) -> Any:
    (result,) = model.signatures["serving_default"](**inputs).values()
    return result.numpy()


class Model:
    """A stock model and what became of it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.stock, self.fused = kind, folder / "stock", folder / "fused"
        KINDS[kind](self.stock)
        self.done: Rewrite = rewrite_saved_model(self.stock, self.fused)
        self.inputs = values(kind)
        self.expected = answer(tf.saved_model.load(str(self.stock)), self.inputs)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """Makes each model once."""
    models: dict[str, Model] = {}

    def of(kind: str) -> Model:
        if kind not in models:
            models[kind] = Model(kind, tmp_path_factory.mktemp(kind))
        return models[kind]

    return of


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_made_by_one_op_and_verified(made: Callable[[str], Model], kind: str) -> None:
    model = made(kind)
    verification = model.done.verification
    assert verification is not None
    assert verification.same
    assert verification.tolerance == 0
    reports = [(one.columns, one.vocabularies) for one in model.done.report.ids]
    assert reports
    assert {*reports} == {(6, 6)}
    assert ops(model.fused) >= {GROUPED_IDS, VOCABULARY_INDEX}
    loaded = tf.saved_model.load(str(model.fused))
    for _ in range(2):
        np.testing.assert_array_equal(answer(loaded, model.inputs), model.expected)


@pytest.mark.parametrize("kind", KINDS)
def test_sessions(made: Callable[[str], Model], kind: str) -> None:
    model = made(kind)
    with tf.Graph().as_default(), v1.Session() as session:
        meta = v1.saved_model.load(session, ["serve"], str(model.fused))
        signature = meta.signature_def["serving_default"]
        feeds = {signature.inputs[key].name: one.numpy() for key, one in model.inputs.items()}
        ((_, output),) = signature.outputs.items()
        for _ in range(2):
            np.testing.assert_array_equal(session.run(output.name, feeds), model.expected)


def test_models_with_other_assets_have_their_own_ids(
    made: Callable[[str], Model], tmp_path: Path
) -> None:
    model = made("tables")
    first = tf.saved_model.load(str(model.fused))
    np.testing.assert_array_equal(answer(first, model.inputs), model.expected)
    answers = []
    for path in (model.stock, model.fused):
        copy = tmp_path / path.name
        shutil.copytree(path, copy)
        (asset,) = (copy / "assets").iterdir()
        asset.write_text("".join(f"{word}\n" for word in reversed(WORDS)))
        answers.append(answer(tf.saved_model.load(str(copy)), model.inputs))
    np.testing.assert_array_equal(*answers)
    assert (answers[0] != model.expected).any()
    np.testing.assert_array_equal(answer(first, model.inputs), model.expected)


def test_first_calls_at_once(made: Callable[[str], Model]) -> None:
    model = made("tables")
    for _ in range(2):
        loaded, results = tf.saved_model.load(str(model.fused)), list[Any]()
        barrier = threading.Barrier(8)

        def call(loaded: Any = loaded, results: list[Any] = results, gate: Any = barrier) -> None:
            gate.wait()
            results.append(answer(loaded, model.inputs))

        threads = [threading.Thread(target=call) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == len(threads)
        for result in results:
            np.testing.assert_array_equal(result, model.expected)


def test_a_loaded_model_is_fused(made: Callable[[str], Model]) -> None:
    model = made("tables")
    loaded = fusion.saved_model_load(model.stock)
    calls = {one.op: one.calls for one in fusion.stats().ops}.get(GROUPED_IDS, 0)
    np.testing.assert_array_equal(answer(loaded, model.inputs), model.expected)
    assert {one.op: one.calls for one in fusion.stats().ops}[GROUPED_IDS] == calls + 1


def test_a_loaded_model_is_saved_again(made: Callable[[str], Model], tmp_path: Path) -> None:
    model = made("tables")
    loaded = tf.saved_model.load(str(model.fused))
    for _ in range(2):  # before and after the first call
        tf.saved_model.save(loaded, str(tmp_path), signatures=loaded.signatures)
        again = tf.saved_model.load(str(tmp_path))
        np.testing.assert_array_equal(answer(again, model.inputs), model.expected)
        np.testing.assert_array_equal(answer(loaded, model.inputs), model.expected)


def test_several_tables_of_one_file_are_split(made: Callable[[str], Model], tmp_path: Path) -> None:
    """The model names the file once for each."""
    model = made("tables")
    assert main(["split", "--no-verify", str(model.stock), str(tmp_path / "split")]) == 0
    parts = [tf.saved_model.load(str(tmp_path / "split" / part)) for part in ("lookup", "dense")]
    embeddings = parts[0].signatures["serving_default"](**model.inputs)
    (rows,) = parts[1].signatures["serving_default"](**embeddings).values()
    np.testing.assert_array_equal(rows, model.expected)


@pytest.mark.parametrize("kind", KINDS)
def test_fused_models_become_stock_ones_again(
    made: Callable[[str], Model], tmp_path: Path, kind: str
) -> None:
    model = made(kind)
    assert main(["rewrite", str(model.fused), str(tmp_path / "back"), "--target", "stock"]) == 0
    (meta,) = read_saved_model(tmp_path / "back").meta_graphs
    ops = used_ops(meta)
    assert not ops & {GROUPED_IDS, VOCABULARY_INDEX, "LookupTableExportV2"}
    assert "LookupTableFindV2" in ops


def test_inspect_names_the_ids(
    made: Callable[[str], Model], capsys: pytest.CaptureFixture[str]
) -> None:
    model = made("tables")
    assert main(["inspect", str(model.stock)]) == 0
    said = capsys.readouterr().out
    assert "can be fused  " in said
    assert "(ids of 6 columns, 6 by vocabularies)" in said
    assert main(["inspect", str(model.fused)]) == 0
    assert "already fused  " in capsys.readouterr().out
