"""SavedModels that take serialized tf.Examples: their parsers are fused, and come back."""

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
from fusion.saved_model.model.meta_graph import used_ops
from fusion.saved_model.model.source import read_saved_model
from fusion.schema.names import OP_NAMES, PARSE_EXAMPLE
from tests.example_bytes import floats, ints, of

LOOKUPS = "GroupedEmbeddingLookup"


def ops(path: Path) -> set[str]:
    return {op for meta in read_saved_model(path).meta_graphs for op in used_ops(meta)}


@pytest.fixture(scope="module")
def fused(models: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Rewrite]:
    """The fused model, and what was done."""
    path = tmp_path_factory.mktemp("parsers") / "fused"
    return path, rewrite_saved_model(models / "example", path, RewriteOptions())


def answers(path: Path) -> list[Any]:
    """What a model answers to Examples."""
    serve = tf.saved_model.load(str(path)).signatures["serving_default"]
    rows = [of(item=ints([1, 2]), shop=ints([n]), price=floats([n, 0.5])) for n in range(5)]
    return [serve(examples=tf.constant(rows[:n], tf.string))["score"].numpy() for n in (0, 1, 5)]


def assert_equal(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_parser_is_fused_with_the_lookups_and_verified(
    models: Path, fused: tuple[Path, Rewrite]
) -> None:
    path, done = fused
    assert ops(path) >= {PARSE_EXAMPLE, LOOKUPS}
    assert not ops(path) & {"ParseExample", "ParseExampleV2"}
    (report,) = done.report.parsers
    assert (report.fused, report.features) == (True, 3)
    assert done.verification is not None
    assert done.verification.same
    assert done.verification.tolerance == 0
    record = json.loads((path / "fusion.json").read_text())
    assert {*record["ops"]} == ops(path) & {*OP_NAMES}
    (parser,) = record["report"]["parsers"]
    assert parser["fused"]
    assert_equal(answers(path), answers(models / "example"))


def test_a_second_rewrite_changes_nothing(fused: tuple[Path, Rewrite], tmp_path: Path) -> None:
    path, _ = fused
    again = rewrite_saved_model(path, tmp_path / "again", RewriteOptions(verify=False))
    assert again.report.fused_count == 0
    assert all(column.is_fused_already for column in again.report.columns)
    (report,) = again.report.parsers
    assert report.fused_before
    assert (tmp_path / "again/saved_model.pb").read_bytes() == (
        path / "saved_model.pb"
    ).read_bytes()


@pytest.mark.parametrize("source", ["stock", "fused"])
def test_by_stock_ops(
    models: Path, fused: tuple[Path, Rewrite], tmp_path: Path, source: str
) -> None:
    path = fused[0] if source == "fused" else models / "example"
    done = rewrite_saved_model(path, tmp_path / "stock", RewriteOptions("stock"))
    assert done.verification is not None
    assert done.verification.same
    assert not ops(tmp_path / "stock") & {*OP_NAMES}
    assert "ParseExampleV2" in ops(tmp_path / "stock")
    assert compare_models(models / "example", tmp_path / "stock").same
    assert_equal(answers(tmp_path / "stock"), answers(models / "example"))


def test_models_are_compared_and_measured(models: Path, fused: tuple[Path, Rewrite]) -> None:
    path, _ = fused
    found = compare_models(models / "example", path)
    assert found.same
    assert found.runs > 3
    report = bench_models(models / "example", path, seconds=0.01, batches=(4,))
    assert report.outputs is not None
    assert report.outputs.endswith("outputs equal to the bit")
    assert {measured.batch for measured in report.measurements} == {4}
    alone = bench_models(path, seconds=0.01, batches=(4,))  # whose inputs the fused op says
    assert {measured.batch for measured in alone.measurements} == {4}


def test_a_loaded_model_is_fused(models: Path) -> None:
    model = fusion.saved_model_load(models / "example")
    serve = model.signatures["serving_default"]
    calls = {one.op: one.calls for one in fusion.stats().ops}.get(PARSE_EXAMPLE, 0)
    rows = [of(item=ints([1]), shop=ints([2]), price=floats([1, 2]))]
    serve(examples=tf.constant(rows))
    assert {one.op: one.calls for one in fusion.stats().ops}[PARSE_EXAMPLE] == calls + 1


def parsing_alone(path: Path) -> None:
    """A model without a lookup."""
    module = tf.Module()

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def serve(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        feature = tf.io.FixedLenFeature([2], tf.float32, [1.0, 2.0])
        return {"sum": tf.reduce_sum(tf.io.parse_example(examples, {"x": feature})["x"], 1)}

    tf.saved_model.save(module, str(path), {"serving_default": serve})


def test_a_parser_without_lookups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parsing_alone(tmp_path / "model")
    main(["inspect", str(tmp_path / "model")])
    said = capsys.readouterr().out
    assert "can be fused  " in said
    assert "(tf.Examples, 1 feature)" in said
    main(["rewrite", str(tmp_path / "model"), str(tmp_path / "fused")])
    said = capsys.readouterr().out
    assert "no embedding column found\n" in said
    assert "ParseExample/ParseExampleV2 (tf.Examples, 1 feature)" in said
    assert "verified: " in said
    assert "nothing was rewritten" not in said
    assert PARSE_EXAMPLE in ops(tmp_path / "fused")
    main(["rewrite", str(tmp_path / "fused"), str(tmp_path / "again")])
    said = capsys.readouterr().out
    assert "already fused  " in said
    assert "nothing was rewritten" in said
    main(["rewrite", str(tmp_path / "fused"), str(tmp_path / "stock"), "--target", "stock"])
    assert "nothing was rewritten" not in capsys.readouterr().out
    assert not ops(tmp_path / "stock") & {*OP_NAMES}
    main(["rewrite", str(tmp_path / "stock"), str(tmp_path / "same"), "--target", "stock"])
    assert "nothing was rewritten" in capsys.readouterr().out


class Hashed(tf.Module):
    """A list and a word, both hashed, and numbers side by side, beside a ragged list."""

    def __init__(self) -> None:
        make = tf.random.stateless_normal
        self.tables = [tf.Variable(make([50, 4], [k, 1])) for k in range(3)]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "examples")])
    def serve(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        number = tf.io.FixedLenFeature([1], tf.float32)
        features = {
            "words": tf.io.VarLenFeature(tf.string),
            "word": tf.io.FixedLenFeature([1], tf.string),
            "ids": tf.io.RaggedFeature(tf.int64),
            **dict.fromkeys(("a", "b", "c"), number),
        }
        parsed = tf.io.parse_example(examples, features)
        fast = tf.strings.to_hash_bucket_fast
        words = parsed["words"].with_values(fast(parsed["words"].values, 50))
        rows = [
            tf.nn.safe_embedding_lookup_sparse(self.tables[0], words),
            tf.nn.embedding_lookup(self.tables[1], tf.squeeze(fast(parsed["word"], 50), 1)),
            tf.reduce_sum(tf.gather(self.tables[2], parsed["ids"]), 1),
        ]
        return {"out": tf.concat([*rows, parsed["c"], parsed["a"], parsed["b"]], 1)}


def test_hashes_and_numbers_side_by_side_are_verified_both_ways(tmp_path: Path) -> None:
    stock, fused, back = (tmp_path / name for name in ("stock", "fused", "back"))
    module = Hashed()
    tf.saved_model.save(module, str(stock), signatures=module.serve)
    done = rewrite_saved_model(stock, fused)
    (parser,) = done.report.parsers
    assert parser.hashed == 2
    again = rewrite_saved_model(fused, back, RewriteOptions(target="stock"))
    for one in (done, again):
        assert one.verification is not None
        assert one.verification.same
        assert not one.verification.differences
    for pair in ((fused, stock), (stock, fused)):
        verification = compare_models(*pair)
        assert verification.same
        assert "not compared" not in verification.summary()


def test_a_list_of_a_function_that_keeps_its_number() -> None:
    """One sparse feature, which becomes a ragged one, and a dense one."""
    table = tf.Variable(tf.random.stateless_normal([50, 4], [1, 1]))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def serve(examples: tf.Tensor) -> list[tf.Tensor]:
        features = {
            "bag": tf.io.VarLenFeature(tf.int64),
            "x": tf.io.FixedLenFeature([1], tf.float32, 0.5),
        }
        parsed = tf.io.parse_example(examples, features)
        return [tf.nn.safe_embedding_lookup_sparse(table, parsed["bag"]), parsed["x"]]

    example = tf.train.Example()
    example.features.feature["bag"].int64_list.value.extend([3, 4])
    texts = tf.constant([example.SerializeToString(), b""])
    fused = fusion.fuse_function(serve.get_concrete_function())
    for one, other in zip(fused(texts), serve(texts), strict=True):
        np.testing.assert_array_equal(one, other)
