"""SavedModels whose texts are split: one op splits them and makes ids of their parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion.cli.app import main
from fusion.saved_model import Rewrite, fuse_saved_model, rewrite_saved_model
from fusion.saved_model.model.meta_graph import used_ops
from fusion.saved_model.model.source import read_saved_model
from fusion.schema.names import GROUPED_SPLIT, VOCABULARY_INDEX

v1 = tf.compat.v1
ROWS, DIM = 20, 4
WORDS = ["red", "green", "a colour of more than 16 bytes"]
TEXTS = ["red|green", "", "blue|a colour of more than 16 bytes|red", "|", "green", "red||red"]


class Tags(tf.Module):
    """Bags of hashed parts, and of parts that are looked up in a file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        path.write_text("".join(f"{word}\n" for word in WORDS))
        lines = tf.lookup.TextFileInitializer(
            str(path),
            tf.string,
            tf.lookup.TextFileIndex.WHOLE_LINE,
            tf.int64,
            tf.lookup.TextFileIndex.LINE_NUMBER,
        )
        self.table = tf.lookup.StaticVocabularyTable(lines, 3)
        self.rows = [tf.Variable(tf.random.stateless_normal([ROWS, DIM], [k, 1])) for k in range(2)]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, f"x{k}") for k in range(2)])
    def __call__(self, x0: tf.Tensor, x1: tf.Tensor) -> dict[str, tf.Tensor]:
        parts = v1.string_split(x0, "|")
        hashed = parts.with_values(tf.strings.to_hash_bucket_fast(parts.values, ROWS))
        found = self.table.lookup(v1.strings.split(x1, "|"))
        rows = [
            tf.nn.safe_embedding_lookup_sparse(rows, ids, combiner="mean")
            for rows, ids in zip(self.rows, (hashed, found), strict=True)
        ]
        return {"rows": tf.concat(rows, 1)}


def ops(path: Path) -> set[str]:
    return {op for meta in read_saved_model(path).meta_graphs for op in used_ops(meta)}


def answer(path: Path, texts: list[str] = TEXTS) -> Any:
    inputs = {"x0": tf.constant(texts, tf.string), "x1": tf.constant(texts[::-1], tf.string)}
    return tf.saved_model.load(str(path)).signatures["serving_default"](**inputs)["rows"].numpy()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Rewrite]:
    """A folder with a model and what became of it."""
    folder = tmp_path_factory.mktemp("tags")
    model = Tags(folder / "words.txt")
    tf.saved_model.save(model, str(folder / "stock"), model.__call__)
    return folder, rewrite_saved_model(folder / "stock", folder / "fused")


def test_texts_are_split_by_the_op_and_verified(made: tuple[Path, Rewrite]) -> None:
    folder, done = made
    assert [(one.columns, one.vocabularies, one.split) for one in done.report.ids] == [(2, 1, True)]
    assert done.verification is not None
    assert done.verification.same
    assert done.verification.tolerance == 0
    assert ops(folder / "fused") >= {GROUPED_SPLIT, VOCABULARY_INDEX}
    assert not ops(folder / "fused") & {"StringSplit", "StringSplitV2", "StringToHashBucketFast"}
    for texts in (TEXTS, TEXTS * 300, TEXTS[:1], []):
        np.testing.assert_array_equal(
            answer(folder / "fused", texts), answer(folder / "stock", texts)
        )


def test_target_stock_splits_as_before(made: tuple[Path, Rewrite], tmp_path: Path) -> None:
    folder, _ = made
    fuse_saved_model(folder / "fused", tmp_path / "again", target="stock")
    assert not ops(tmp_path / "again") & {GROUPED_SPLIT, VOCABULARY_INDEX}
    np.testing.assert_array_equal(answer(tmp_path / "again"), answer(folder / "stock"))


def test_the_command_says_what_was_split(
    made: tuple[Path, Rewrite], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(made[0] / "stock")]) == 0
    assert "parts of texts, ids of 2 columns, 1 by vocabularies" in capsys.readouterr().out
