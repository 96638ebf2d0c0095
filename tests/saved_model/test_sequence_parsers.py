"""SavedModels that take serialized tf.SequenceExamples: parsers are fused, and come back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.cli.app import main
from fusion.saved_model import (
    Rewrite,
    RewriteOptions,
    bench_models,
    compare_models,
    rewrite_saved_model,
)
from fusion.schema.names import OP_NAMES, PARSE_SEQUENCE
from tests.example_bytes import floats, ints, sequence_of, strings
from tests.saved_model.test_parsers import ops

STOCK = "ParseSequenceExampleV2"
LOOKUPS = "GroupedEmbeddingLookup"
ITEMS = 50


class Model(tf.Module):
    """Scores of what was seen: a lookup of a ragged list, and of ids of the context."""

    def __init__(self) -> None:
        super().__init__()
        values = np.linspace(-1, 1, ITEMS * 4, dtype=np.float32)
        self.table = tf.Variable(values.reshape(ITEMS, 4))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "examples")])
    def serve(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        context, lists, lengths = tf.io.parse_sequence_example(
            examples,
            {
                "shop": tf.io.VarLenFeature(tf.int64),
                "price": tf.io.FixedLenFeature([2], tf.float32, [1.0, 2.0]),
            },
            {
                "seen": tf.io.RaggedFeature(tf.int64),
                "clicks": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True),
                "words": tf.io.VarLenFeature(tf.string),
            },
        )
        shops = tf.nn.safe_embedding_lookup_sparse(self.table, context["shop"], combiner="sum")
        seen = lists["seen"].merge_dims(1, 2).to_sparse()
        bags = tf.nn.safe_embedding_lookup_sparse(self.table, seen, combiner="mean")
        return {
            "score": tf.concat([shops, bags, context["price"]], 1),
            "clicks": lists["clicks"],
            "count": lengths["clicks"],
            "words": tf.sparse.to_dense(lists["words"]),
        }


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sequences") / "model"
    model = Model()
    tf.saved_model.save(model, str(path), {"serving_default": model.serve})
    return path


@pytest.fixture(scope="module")
def fused(source: Path) -> tuple[Path, Rewrite]:
    """The fused model, and what was done."""
    path = source.parent / "fused"
    return path, rewrite_saved_model(source, path, RewriteOptions())


def row(number: int) -> bytes:
    return sequence_of(
        {"shop": ints([number, 3]), "price": floats([number, 0.5])} if number % 2 else {},
        {
            "seen": [ints([number] * k) for k in range(number)],
            "clicks": [ints([k]) for k in range(number % 3)],
            "words": [strings([b"one", b"two"]), b""],
        },
    )


def answers(path: Path) -> list[Any]:
    """What a model answers to SequenceExamples."""
    serve = tf.saved_model.load(str(path)).signatures["serving_default"]
    batches = (tf.constant([row(k) for k in range(n)], tf.string) for n in (1, 5))
    found = [serve(examples=batch) for batch in batches]
    return [one[name].numpy() for one in found for name in sorted(one)]


def assert_equal(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_parser_is_fused_with_the_lookups_and_verified(
    source: Path, fused: tuple[Path, Rewrite]
) -> None:
    path, done = fused
    assert ops(path) >= {PARSE_SEQUENCE, LOOKUPS}
    assert STOCK not in ops(path)
    (report,) = done.report.parsers
    assert (report.fused, report.features) == (True, 5)
    assert done.verification is not None
    assert done.verification.same
    assert done.verification.tolerance == 0
    record = json.loads((path / "fusion.json").read_text())
    assert {*record["ops"]} == ops(path) & {*OP_NAMES}
    (parser,) = record["report"]["parsers"]
    assert parser["records"] == "tf.SequenceExamples"
    assert_equal(answers(path), answers(source))


def test_a_second_rewrite_changes_nothing(fused: tuple[Path, Rewrite], tmp_path: Path) -> None:
    again = rewrite_saved_model(fused[0], tmp_path / "again", RewriteOptions(verify=False))
    assert again.report.fused_count == 0
    assert all(column.is_fused_already for column in again.report.columns)
    (report,) = again.report.parsers
    assert report.fused_before


@pytest.mark.parametrize("is_fused", [False, True])
def test_by_stock_ops(
    source: Path, fused: tuple[Path, Rewrite], tmp_path: Path, is_fused: bool
) -> None:
    path = fused[0] if is_fused else source
    done = rewrite_saved_model(path, tmp_path / "stock", RewriteOptions("stock"))
    assert done.verification is not None
    assert done.verification.same
    assert not ops(tmp_path / "stock") & {*OP_NAMES}
    assert STOCK in ops(tmp_path / "stock")
    assert_equal(answers(tmp_path / "stock"), answers(source))


def test_models_are_compared_and_measured(source: Path, fused: tuple[Path, Rewrite]) -> None:
    path, _ = fused
    found = compare_models(source, path)
    assert found.same
    assert found.runs > 3
    report = bench_models(source, path, seconds=0.01, batches=(4,))
    assert report.outputs is not None
    assert report.outputs.endswith("outputs equal to the bit")
    alone = bench_models(path, seconds=0.01, batches=(4,))  # whose inputs the fused op says
    assert {measured.batch for measured in alone.measurements} == {4}


def test_a_loaded_model_is_fused(source: Path) -> None:
    model = fusion.saved_model_load(source)
    calls = {one.op: one.calls for one in fusion.stats().ops}.get(PARSE_SEQUENCE, 0)
    model.signatures["serving_default"](examples=tf.constant([row(3)]))
    assert {one.op: one.calls for one in fusion.stats().ops}[PARSE_SEQUENCE] == calls + 1


def test_what_inspect_says(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["inspect", str(source)])
    said = capsys.readouterr().out
    assert "can be fused  " in said
    assert "(tf.SequenceExamples, 5 features)" in said
