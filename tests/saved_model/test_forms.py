"""Inputs that belong together: models that take them are rewritten, compared and measured."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion.saved_model import (
    ModelError,
    RewriteOptions,
    VerificationError,
    bench_models,
    compare_models,
    fuse_saved_model,
    rewrite_saved_model,
)
from fusion.saved_model.bench.feeds import generated_feeds, read_feeds
from fusion.saved_model.bench.selection import choose_signature
from fusion.saved_model.inputs.cases import CASES, Ids
from fusion.saved_model.model.source import read_saved_model
from tests import zygote
from tests.built_once import built_once
from tests.saved_model.forms import ITEMS, OLD_FORMS, TOGETHER, model_of
from tests.saved_model.test_rewrite import ROOT

#: The batches over which no model has a reason to raise an error.
ORDINARY = [c.name for c in CASES if c.ids in (Ids.IN_RANGE, Ids.UNEQUAL) and c.batch]
SIGNATURES = {**TOGETHER, "old": sorted(OLD_FORMS)}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def build(folder: Path) -> None:
        command = [sys.executable, "-m", "tests.saved_model.forms", str(folder)]
        zygote.run(command, cwd=ROOT, check=True, capture_output=True)

    return built_once(tmp_path_factory, "forms", build)


@pytest.mark.parametrize("target", ["fused", "stock"])
@pytest.mark.parametrize("model", SIGNATURES)
def test_every_form_is_compared_and_written(built: Path, tmp_path: Path, model: str, target: str):
    done = rewrite_saved_model(built / model, tmp_path / "new", RewriteOptions(target))
    assert done.report.fused_count
    found = done.verification
    assert found is not None
    assert found.same
    assert list(found.signatures) == SIGNATURES[model]
    # In no form does stock refuse what was made up for it.
    ordinary = [
        text for text in found.not_compared if re.search(rf", ({'|'.join(ORDINARY)}) \(", text)
    ]
    assert ordinary == []


@pytest.mark.parametrize("model", SIGNATURES)
def test_other_tables_are_found_in_every_form(built: Path, model: str):
    found = compare_models(built / model, built / f"{model}_changed")
    assert sorted({d.signature for d in found.differences}) == SIGNATURES[model]
    for name in SIGNATURES[model]:
        cases = {d.case for d in found.differences if d.signature == name}
        assert {"batch 1", "batch 32"} & cases, name


@pytest.mark.parametrize("target", ["source", "fused", "stock"])
@pytest.mark.parametrize("model", TOGETHER)
def test_models_are_measured_on_inputs_that_they_take(
    built: Path, tmp_path: Path, model: str, target: str
):
    """What belongs together is found in rewritten models too."""
    path = built / model
    if target != "source":
        path = tmp_path / target
        fuse_saved_model(built / model, path, target, verify=False)
    source = read_saved_model(path)
    functions = tf.saved_model.load(str(path)).signatures
    for name in TOGETHER[model]:
        signature = choose_signature(source, name=name)
        for size, feeds in generated_feeds(source, signature, (1, 64)).items():
            specs = {spec.key: tf.as_dtype(spec.dtype) for spec in signature.inputs}
            arrays = {key: tf.constant(array, specs[key]) for key, array in feeds.items()}
            rows = functions[name](**arrays)["vector"].shape[0]
            assert rows == (1 if name == "one_sequence_example" else size), name


def test_bench_runs_a_ragged_form(built: Path):
    form = "ragged_of_two_ranks"
    report = bench_models(built / model_of(form), signature=form, batches=[8], seconds=0.01)
    assert {m.batch for m in report.measurements} == {8}


@pytest.mark.parametrize("model", TOGETHER)
def test_the_batch_of_recorded_inputs_is_the_number_of_rows(
    built: Path, tmp_path: Path, model: str
):
    source = read_saved_model(built / model)
    for name in TOGETHER[model]:
        signature = choose_signature(source, name=name)
        if any(spec.dtype == tf.string.as_datatype_enum for spec in signature.inputs):
            continue  # NumPy drops zero bytes at the end
        feeds = generated_feeds(source, signature, (16,))[16]
        np.savez(tmp_path / "inputs.npz", **dict[str, Any](feeds))
        assert list(read_feeds(tmp_path / "inputs.npz", source, signature)) == [16], name


def test_inputs_that_cannot_be_made_up_are_named_with_what_to_record(built: Path, tmp_path: Path):
    expected = (
        r"signature 'serving_default' gives nothing to compare \(no inputs can be made up: input "
        r"'raw' is read by DecodeRaw, .*\); record .*numpy\.savez\) with the arrays raw.* --inputs "
    )
    with pytest.raises(VerificationError, match=expected):
        fuse_saved_model(built / "opaque", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(ModelError, match=r"input 'raw' is read by DecodeRaw.* --inputs FILE"):
        bench_models(built / "opaque", batches=[2], seconds=0.01)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Two records of four ids each, none of which ends with a zero byte."""
    ids = np.array([[1, 2, 3, -1], [-1, 7, ITEMS - 1, -1]], np.int64)
    file = tmp_path / "inputs.npz"
    np.savez(file, raw=np.array([row.tobytes() for row in ids]))
    return file


@pytest.mark.parametrize("target", ["fused", "stock"])
def test_recorded_inputs_take_their_place(built: Path, tmp_path: Path, recorded: Path, target: str):
    options = RewriteOptions(target, inputs=recorded)
    done = rewrite_saved_model(built / "opaque", tmp_path / "new", options)
    assert done.verification is not None
    assert done.verification.same
    assert done.verification.runs == 2
    report = bench_models(built / "opaque", tmp_path / "new", inputs=recorded, seconds=0.01)
    assert {m.batch for m in report.measurements} == {2}


def test_recorded_inputs_find_other_tables(built: Path, recorded: Path):
    found = compare_models(built / "opaque", built / "opaque_changed", inputs=recorded)
    assert {d.case for d in found.differences} == {"the recorded batch"}


def test_records_of_a_file_take_their_place(models: Path, tmp_path: Path):
    example = tf.train.Example()
    example.features.feature["item"].int64_list.value.extend([1, 2])
    example.features.feature["price"].float_list.value.extend([1.0, 2.0])
    file = tmp_path / "examples.tfrecord"
    with tf.io.TFRecordWriter(str(file)) as writer:
        for _ in range(5):
            writer.write(example.SerializeToString())
    options = RewriteOptions(inputs=file, batch_size=4)
    done = rewrite_saved_model(models / "example", tmp_path / "new", options)
    assert done.verification is not None
    assert done.verification.runs == 4  # two batches, two loaders
    report = bench_models(models / "example", inputs=file, batch_size=4, seconds=0.01)
    assert {m.batch for m in report.measurements} == {4}


def test_a_check_that_only_the_fused_op_makes_is_no_difference(built: Path, tmp_path: Path):
    """Stock reads row splits that do not fit as it likes; the fused op refuses them."""
    model = built / model_of("ragged")
    fused = tmp_path / "fused"
    fuse_saved_model(model, fused, verify=False)
    good = {"basket": np.arange(5), "basket_1": np.array([0, 2, 5])}
    bad = {"basket": np.arange(5), "basket_1": np.array([1, 3, 6])}
    for name, arrays in (("good", good), ("bad", bad)):
        file = tmp_path / f"{name}.npz"
        np.savez(file, **dict[str, Any]({f"ragged/{key}": arrays[key] for key in arrays}))
        found = compare_models(model, fused, inputs=file)
        assert found.differences == ()
        assert found.same == (name == "good")
        if name == "bad":
            assert (
                "the inputs are malformed, which the second model alone refuses: 'basket_1' "
                in (found.summary())
            )
            assert "they do not begin with 0" in found.summary()
    signature = choose_signature(read_saved_model(model), name="ragged")
    with pytest.raises(ModelError, match="'basket_1' holds no row splits of 'basket'"):
        read_feeds(tmp_path / "bad.npz", read_saved_model(model), signature)
