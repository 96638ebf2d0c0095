"""Which inputs repeat in recorded batches, and a rewrite that takes these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion.saved_model import (
    ModelError,
    RewriteOptions,
    compare_models,
    fuse_saved_model,
    repeated_inputs,
    rewrite_saved_model,
)
from fusion.saved_model.requests.repeats import InputRows, repeated_text
from tests.saved_model import request_models
from tests.saved_model.request_models import rows, write_examples

v1 = tf.compat.v1


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return request_models.save(tmp_path_factory.mktemp("ranking") / "stock")


@pytest.fixture(scope="module")
def of_examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return request_models.save(tmp_path_factory.mktemp("ranking") / "stock", of_examples=True)


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path / "inputs.npz", **arrays)
    return path / "inputs.npz"


def test_what_has_the_same_row_throughout_repeats(stock: Path, tmp_path: Path) -> None:
    found = repeated_inputs(stock, npz(tmp_path, **rows(5)))
    assert (found.signature, found.kind, found.batches) == ("serving_default", "input", (5,))
    assert found.names == found.request_inputs() == ("age", "user")
    assert found.inputs == (
        InputRows("age", 1, 1, 20, 4),
        InputRows("item", 5, 0, 40, 8),
        InputRows("user", 1, 1, 40, 8),
    )
    text = "2 of 3 inputs repeat: 1 row would do in place of 5, 48 of 100 bytes less"
    assert repeated_text(found) == text
    assert found.to_dict()["repeat"] == ["age", "user"]


def test_features_of_examples_repeat(of_examples: Path, tmp_path: Path) -> None:
    other = rows(3, user=[8, 8, 9], age=[-1, -1, -1])
    file = write_examples(tmp_path / "r.tfrecord", rows(3), other, rows(1))
    found = repeated_inputs(of_examples, file, batch_size=3)
    assert (found.kind, found.batches, found.seen) == ("feature", (3, 3), "6 rows of 2 batches")
    assert found.names == ("age",)
    batches = {one.name: (one.different, one.batches) for one in found.inputs}
    assert batches == {"age": (2, 2), "item": (6, 0), "user": (3, 1)}
    text = repeated_text(found)
    assert text.startswith("1 of 3 features repeats: 2 rows would do in place of 6, ")
    (number,) = (one for one in found.inputs if one.name == "age")
    assert number.bytes == 3 * number.bytes_once  # of the second batch none has any


def test_rows_of_sparse_inputs(tmp_path: Path) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        history, item = (
            v1.sparse_placeholder(tf.int64, [None, None]),
            v1.placeholder("int64", [None]),
        )
        table = v1.get_variable("table", [9, 4])
        sums = tf.nn.safe_embedding_lookup_sparse(table, history, combiner="sum")
        score = tf.reduce_sum(sums * tf.gather(table, item), 1)
        session.run(v1.global_variables_initializer())
        inputs = {"history": history, "item": item}
        v1.saved_model.simple_save(session, str(tmp_path / "m"), inputs, {"score": score})
    parts: dict[str, Any] = {
        "history/indices": [[0, 0], [0, 1], [1, 0], [1, 1]],
        "history/dense_shape": [2, 2],
        "item": [1, 2],
    }
    for values, names in (([3, 4, 3, 4], ("history",)), ([3, 4, 4, 3], ())):
        file = npz(tmp_path, **parts, **{"history/values": values})
        assert repeated_inputs(tmp_path / "m", file).names == names
    parts["history/indices"][3][1] = 2
    file = npz(tmp_path, **parts | {"history/dense_shape": [2, 3], "history/values": [3, 4, 3, 4]})
    assert repeated_inputs(tmp_path / "m", file).names == ()


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        (rows(1), "no batch of signature 'serving_default' has 2 rows or more"),
        (rows(3, user=[1, 2, 3], age=[1, 1, 2]), r"no input .* the same row .*; seen: 3 rows"),
        (rows(2, item=[4, 4]), "each input .*, so that none describes candidates; seen: 2 rows"),
    ],
)
def test_what_is_no_proof_is_refused(
    stock: Path, tmp_path: Path, batch: dict[str, np.ndarray], why: str
) -> None:
    file = npz(tmp_path, **batch)
    with pytest.raises(ModelError, match=why):
        fuse_saved_model(stock, tmp_path / "new", request_inputs="auto", inputs=file)
    assert not (tmp_path / "new").exists()


def test_a_signature_without_features(tmp_path: Path) -> None:
    spec = tf.TensorSpec([None], tf.string, name="word")
    upper = tf.function(lambda word: {"upper": tf.strings.upper(word)}, input_signature=[spec])
    tf.saved_model.save(tf.Module(), str(tmp_path / "m"), upper)
    file = npz(tmp_path, word=np.array([b"a", b"a"]))
    with pytest.raises(ModelError, match="Examples are read by another op"):
        repeated_inputs(tmp_path / "m", file)


def test_what_is_no_example(of_examples: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"npz: an Example cannot be parsed"):
        repeated_inputs(of_examples, npz(tmp_path, examples=np.array([b"no", b"no"])))


def test_a_rewrite_takes_what_repeats(stock: Path, tmp_path: Path) -> None:
    options = RewriteOptions(
        target="stock", request_inputs="auto", inputs=npz(tmp_path, **rows(5, age=range(5)))
    )
    done = rewrite_saved_model(stock, tmp_path / "new", options)
    assert {one.names for one in done.requests} == {("user",)}
    assert done.repeats is not None
    assert done.repeats.seen == "5 rows"
    record = json.loads((tmp_path / "new/fusion.json").read_bytes())
    assert record["options"]["request_inputs"] == "auto"
    first, second = record["request_signatures"]
    assert (first["name"], first["of"], first["names"], first["counts"]) == (
        "serving_default_request",
        "serving_default",
        ["user"],
        "",
    )
    assert second["counts"] == "candidates_per_request"


def test_features_are_taken_as_well_and_the_record_stays(of_examples: Path, tmp_path: Path) -> None:
    file = write_examples(tmp_path / "r.tfrecord", rows(4))
    fuse_saved_model(
        of_examples, tmp_path / "new", "stock", False, request_inputs="auto", inputs=file
    )
    done = rewrite_saved_model(tmp_path / "new", tmp_path / "again")
    assert done.verification is not None
    suffixes = ("", "_request", "_requests", "_elwc")
    signatures = {f"serving_default{suffix}" for suffix in suffixes}
    assert {*done.verification.signatures} == signatures
    records = [
        json.loads((tmp_path / name / "fusion.json").read_bytes())["request_signatures"]
        for name in ("new", "again")
    ]
    assert records[0] == records[1]
    assert records[0][0]["names"] == ["age", "user"]
    assert records[0][0]["examples"] == "examples"
    for first, second in ((of_examples, tmp_path / "again"), (tmp_path / "again", of_examples)):
        same = compare_models(first, second)
        assert not same.differences
        assert {*same.signatures} == signatures


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"request_inputs": "user"}, "request_inputs must be names or 'auto', not 'user'"),
        ({"request_inputs": "auto"}, "request_inputs must be names without inputs"),
    ],
)
def test_wrong_options(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=f"fuse_saved_model: {why}"):
        RewriteOptions(**options)
    with pytest.raises(ValueError, match=f"fuse_saved_model: {why}"):
        fuse_saved_model("stock", "new", **options)
