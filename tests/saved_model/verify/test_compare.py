from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from fusion.saved_model import ModelError, compare_models
from fusion.saved_model.model.source import MODEL_FILE, read_saved_model
from fusion.saved_model.verify import Verification
from fusion.saved_model.verify.compare import compare_outcomes
from fusion.saved_model.verify.outcome import Outcome, OutcomeWriter

Run = tuple[Outcome, dict[str, np.ndarray]]


def _run(case: str, *values: float, varying: bool = False) -> Run:
    names = ("out",) if varying else ()
    outcome = Outcome("session", "score", case, outputs=("out",), varying=names)
    return outcome, {"out": np.array(values, np.float32)}


def _error(case: str, kind: str, may_raise: bool = True, violation: str = "") -> Run:
    outcome = Outcome(
        "session",
        "score",
        case,
        error=kind,
        message="said so",
        may_raise=may_raise,
        violation=violation,
    )
    return outcome, {}


def _compare(tmp_path: Path, a: list[Run], b: list[Run]) -> Verification:
    for name, runs in (("a", a), ("b", b)):
        (tmp_path / name).mkdir()
        writer = OutcomeWriter(tmp_path / name)
        for outcome, values in runs:
            writer.write(outcome, values)
        writer.close()
    return compare_outcomes(["score"], tmp_path / "a", tmp_path / "b")


def test_equal_outputs_are_the_same(tmp_path: Path):
    runs = [_run("batch 1", 1.0), _run("batch 2", 1.0, np.nan)]
    result = _compare(tmp_path, runs, runs)
    assert result.same
    assert result.runs == 2
    assert result.summary() == "1 signature, 2 runs, outputs equal to the bit"


def test_a_difference_names_signature_output_batch_size_and_count(tmp_path: Path):
    a = [_run("batch 1", 1.0), _run("batch 2", 1.0, 2.0, np.nan), _run("batch 3", 1.0)]
    b = [_run("batch 1", 1.0), _run("batch 2", 1.5, 2.0, 0.0), _run("batch 3", 3.0)]
    result = _compare(tmp_path, a, b)
    assert not result.same
    first, second = result.differences
    assert (first.signature, first.output, first.case) == ("score", "out", "batch 2")
    assert "batch 2 (session)" in str(first)
    assert (first.differing, first.elements, first.max_abs) == (2, 3, 0.5)
    assert second.max_abs == 2.0
    text = result.summary()
    assert "'score'" in text
    assert "'out'" in text
    assert "2 of 3 elements differ, by at most 0.5" in text
    assert "by at most 2" in text


def test_deviations_are_the_largest_of_all_batches(tmp_path: Path):
    """Shares are of batches: small differences of small outputs are large ones."""
    a = [_run("batch 1", 100.0, 0.0), _run("batch 2", 0.5, 0.25), _run("batch 3", 0.0, 0.0)]
    b = [_run("batch 1", 101.0, 0.0), _run("batch 2", 0.5, 0.5), _run("batch 3", 0.0, 0.125)]
    (found,) = _compare(tmp_path, a, b).deviations
    assert (found.max_abs, found.share, found.differing, found.elements) == (1.0, 0.5, 3, 6)


def test_another_shape_is_a_difference(tmp_path: Path):
    result = _compare(tmp_path, [_run("batch 1", 1.0)], [_run("batch 1", 1.0, 2.0)])
    assert "float32 [1] against float32 [2]" in result.summary()


def test_the_same_error_on_both_sides_is_reported_but_equal(tmp_path: Path):
    runs = [_error("batch 1", "InvalidArgumentError"), _run("batch 2", 1.0)]
    result = _compare(tmp_path, runs, runs)
    assert result.same
    assert result.errors_alike == ("score, batch 1 (session): InvalidArgumentError",)


@pytest.mark.parametrize("other", [_run("batch 1", 1.0), _error("batch 1", "NotFoundError")])
def test_another_error_or_none_is_a_difference(tmp_path: Path, other: Run):
    a = [_error("batch 1", "InvalidArgumentError"), _run("batch 2", 1.0)]
    result = _compare(tmp_path, a, [other, _run("batch 2", 1.0)])
    assert not result.same
    assert "the first model raises InvalidArgumentError (said so)" in result.summary()


def test_a_signature_that_never_runs_is_not_verified(tmp_path: Path):
    runs = [_error("batch 1", "InvalidArgumentError")]
    result = _compare(tmp_path, runs, runs)
    assert not result.same
    assert (
        "could not verify: signature 'score' gives nothing to compare "
        "(raises InvalidArgumentError (said so))" in result.summary()
    )


@pytest.mark.parametrize("other", [_run("batch 1", 1.0), _error("batch 1", "NotFoundError")])
def test_an_ordinary_batch_that_the_first_model_refuses_proves_nothing(tmp_path: Path, other: Run):
    a = [_error("batch 1", "InvalidArgumentError", may_raise=False), _run("batch 2", 1.0)]
    result = _compare(tmp_path, a, [other, _run("batch 2", 1.0)])
    assert result.same
    assert result.errors_alike == ()
    assert result.not_compared == (
        "score, batch 1 (session): raises InvalidArgumentError (said so)",
    )
    assert result.summary().endswith("outputs equal to the bit; 1 run not compared")


def test_errors_alike_over_ordinary_batches_alone_verify_nothing(tmp_path: Path):
    runs = [_error("batch 1", "InvalidArgumentError", may_raise=False)]
    result = _compare(tmp_path, runs, runs)
    assert not result.same
    assert len(result.unverified) == 1


def test_an_ordinary_batch_that_the_second_model_alone_refuses_is_a_difference(tmp_path: Path):
    a = [_run("batch 1", 1.0), _run("batch 2", 1.0)]
    b = [_error("batch 1", "InvalidArgumentError", may_raise=False), _run("batch 2", 1.0)]
    result = _compare(tmp_path, a, b)
    assert "the first model runs, the second raises InvalidArgumentError" in result.summary()


def test_malformed_inputs_that_the_second_model_alone_refuses_are_no_difference(tmp_path: Path):
    outcome, values = _run("batch 1", 1.0)
    malformed = replace(outcome, violation="'x_1' holds no row splits of 'x'"), values
    refused = _error("batch 1", "InvalidArgumentError", may_raise=False)
    ran = _run("batch 2", 1.0)
    result = _compare(tmp_path, [malformed, ran], [refused, ran])
    assert result.same
    (summary,) = result.not_compared
    assert "malformed, which the second model alone refuses: 'x_1' holds no row splits" in summary
    # That the first model refuses them too is no answer either.
    broken = _error("batch 1", "InvalidArgumentError", False, "'x_1' holds no row splits of 'x'")
    (tmp_path / "both").mkdir()
    summary = _compare(tmp_path / "both", [broken], [refused]).summary()
    assert "(said so); the inputs are malformed: 'x_1' holds no row splits of 'x'" in summary
    # But where both run, their outputs have to agree.
    different = outcome, {"out": np.ones(1, np.float32) * 2}
    (tmp_path / "more").mkdir()
    assert not _compare(tmp_path / "more", [malformed], [different]).same


def test_a_signature_whose_outputs_all_vary_is_not_verified(tmp_path: Path):
    a = [_run("batch 1", 1.0, varying=True)]
    result = _compare(tmp_path, a, [_run("batch 1", 2.0)])
    assert not result.same
    assert "gives nothing to compare (its outputs vary from run to run)" in result.summary()
    assert result.varying == ("score, output 'out'",)


def test_a_signature_with_empty_outputs_only_is_not_verified(tmp_path: Path):
    runs = [_run("batch 0")]
    result = _compare(tmp_path, runs, runs)
    assert result.unverified == ("signature 'score' gives nothing to compare (no batch)",)


def test_an_output_that_varies_beside_one_that_does_not_is_said(tmp_path: Path):
    def run(noise: float) -> list[Run]:
        outcome = Outcome("session", "score", "b", outputs=("out", "noise"), varying=("noise",))
        return [(outcome, {"out": np.ones(1), "noise": np.array([noise])})]

    result = _compare(tmp_path, run(1.0), run(2.0))
    assert result.same
    assert result.summary().endswith("equal to the bit, but for 1 that vary from run to run")


def test_models_with_other_signatures_are_different(models: Path):
    result = compare_models(models / "tf2", models / "example")
    assert not result.same
    assert {d.signature for d in result.differences} == {"embedding", "serving_default"}
    assert "different inputs: examples, items" in str(result.differences[1])


def test_a_model_without_signatures_cannot_be_verified(tmp_path: Path):
    tf.saved_model.save(tf.Module(), str(tmp_path / "model"))
    result = compare_models(tmp_path / "model", tmp_path / "model")
    assert not result.same
    assert result.summary() == "could not verify: the model has no callable signature"


def test_a_changed_combiner_is_found(models: Path, tmp_path: Path):
    changed = tmp_path / "changed"
    shutil.copytree(models / "tf2", changed)
    proto = read_saved_model(changed).proto
    for function in proto.meta_graphs[0].graph_def.library.function:
        for node in function.node_def:
            if node.op == "SparseSegmentMean":
                node.op = "SparseSegmentSum"
    (changed / MODEL_FILE).write_bytes(proto.SerializeToString())
    result = compare_models(models / "tf2", changed)
    assert {d.signature for d in result.differences} == {"embedding", "serving_default"}
    assert {d.output for d in result.differences} == {"embedding", "score"}
    assert all(d.max_abs and d.differing for d in result.differences)
    # Once through the session loader and once through the function loader.
    assert {d.loader for d in result.differences} == {"session", "function"}


def test_a_model_that_does_not_load_is_named_with_the_reason(models: Path, tmp_path: Path):
    broken = tmp_path / "broken"
    shutil.copytree(models / "plain", broken)
    shutil.rmtree(broken / "variables")
    with pytest.raises(ModelError, match=r"broken cannot be loaded: .*variables") as caught:
        compare_models(models / "plain", broken)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("kill -SEGV $$", r"TensorFlow crashed \(SIGSEGV\) while running"),
        ("echo first; echo last >&2; exit 9", "failed: last"),
        ("echo 0 >/proc/self/fd/$3; echo last >&2; exit 9", "failed: last"),
        ("exec tail -f /dev/null", "took more than 1 s"),
    ],
)
def test_a_child_that_does_not_end_well_is_reported(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
):
    child = tmp_path / "python"
    child.write_text(f"#!/bin/sh\n{script}\n")
    child.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(child))
    with pytest.raises(ModelError, match=message):
        compare_models(models / "plain", models / "plain", timeout=1, scratch=tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["python"]


def test_a_model_that_crashes_tensorflow_is_reported(models: Path, tmp_path: Path):
    class Crashing(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], name="x")])
        def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            with tf.control_dependencies([tf.raw_ops.Abort(error_msg="on purpose")]):
                return {"y": tf.identity(x)}

    model = Crashing()
    tf.saved_model.save(model, str(tmp_path / "model"), signatures=model.__call__)
    with pytest.raises(
        ModelError, match=r"TensorFlow crashed \(SIG[A-Z]+\) while running .*/model"
    ):
        compare_models(tmp_path / "model", tmp_path / "model")


class Strict(tf.Module):
    """Asserts that words are known, as Keras's StringLookup(num_oov_indices=0) does."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = [tf.Variable(tf.random.stateless_normal([3, 4], [n, 1])) for n in range(2)]
        self.tables = [
            tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(words, tf.range(3, dtype=tf.int64)), -1
            )
            for words in (["ant", "bee", "cat"], ["rice", "salt", "tea"])
        ]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name) for name in "ab"])
    def serve(self, a: tf.Tensor, b: tf.Tensor) -> dict[str, tf.Tensor]:
        found = [table.lookup(texts) for table, texts in zip(self.tables, (a, b), strict=True)]
        with tf.control_dependencies([tf.debugging.assert_non_negative(ids) for ids in found]):
            rows = [tf.gather(*pair) for pair in zip(self.rows, found, strict=True)]
        return {"y": tf.concat(rows, 1)}


def test_words_are_from_the_table_of_each_input(tmp_path: Path):
    """Of two tables' words together the model would take no batch of 32."""
    module = Strict()
    tf.saved_model.save(module, str(tmp_path / "model"), module.serve)
    module.rows[1].assign_add(tf.ones([3, 4]))
    tf.saved_model.save(module, str(tmp_path / "other"), module.serve)
    result = compare_models(tmp_path / "model", tmp_path / "other")
    assert not result.unverified
    assert not result.not_compared
    assert {one.case for one in result.differences} >= {"batch 1", "batch 32"}
    assert {text.split(" (")[0] for text in result.errors_alike} == {
        "serving_default, batch 32 with unknown values"
    }
