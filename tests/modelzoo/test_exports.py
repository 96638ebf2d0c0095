"""Exports of the models answer as these do, before and after `fusion rewrite`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion.saved_model import fuse_saved_model, split_saved_model
from modelzoo import criteo
from modelzoo.criteo.convert import generate
from modelzoo.training import loop
from modelzoo.training.export import export_graph, export_keras, parsing
from modelzoo.training.setup import build, columns_of, shape_of
from modelzoo.training.steps import GraphSteps, KerasSteps
from tests.modelzoo.small import FEW, MODELS, SMALL, few


def test_whole_counts_are_read_from_examples(tmp_path: Path) -> None:
    """As the converter writes them, and as HugeCTR's scripts do."""
    generate(tmp_path / "data", criteo.CriteoData(cap=100), 64, "tfrecord")
    options = replace(SMALL, data=str(tmp_path / "data"))
    source, _ = few(options)
    steps = build(MODELS["dlrm"], options, source)
    assert isinstance(steps, KerasSteps)
    export_keras(steps, columns_of(options, source).inputs, tmp_path / "model")
    ((features, _),) = loop.first_batches(source, 64, 1)
    records = [*tf.data.TFRecordDataset(str(tmp_path / "data" / "part-00000.tfrecord"))]
    signatures = tf.saved_model.load(str(tmp_path / "model")).signatures
    parsed = signatures["parse_example"](examples=tf.stack(records))
    np.testing.assert_array_equal(
        parsed["logits"], signatures["serving_default"](**features)["logits"]
    )


def examples(features: dict[str, Any]) -> list[bytes]:
    """Serialized Examples of [n, 1] tensors, without what is missing."""
    made = []
    for row in range(len(features["I1"])):
        example = tf.train.Example()
        for name, values in features.items():
            one = np.asarray(values)[row, 0]
            if one == -1:
                continue
            held = example.features.feature[name]
            (held.float_list if name in criteo.NUMERIC else held.int64_list).value.append(one)
        made.append(example.SerializeToString())
    return made


@pytest.mark.parametrize(
    "chosen",
    [
        {"style": "keras"},
        {"style": "keras", "do_fusion": "v2"},
        {"style": "keras", "sharded": True},
        {"style": "graph"},
        {"style": "graph", "do_fusion": "v2"},
    ],
    ids=lambda chosen: "-".join(map(str, chosen.values())),
)
def test_exports_answer_as_the_model(tmp_path: Path, chosen: dict[str, Any]) -> None:
    options = replace(SMALL, **chosen)
    source, _ = few(options)
    model, path = MODELS["deepfm"], tmp_path / "model"
    steps = build(model, options, source)
    ((features, labels),) = loop.first_batches(source, 32, 1)
    steps.train(features, labels)
    columns = columns_of(options, source)
    if isinstance(steps, KerasSteps):
        export_keras(steps, columns.inputs, path)
    else:
        assert isinstance(steps, GraphSteps)
        steps.save(tmp_path / "weights")
        export_graph(model, shape_of(model, options), columns, tmp_path / "weights", path)
    wanted = steps.scores(features, labels).logits
    paths = [path]
    if [*chosen] == ["style"]:
        report = fuse_saved_model(path, tmp_path / "fused", verify=False)
        # Signatures of a graph share their lookups, those of Keras have their own.
        lookups = 2 * len(FEW) * (1 if options.style == "graph" else 3)
        assert report.fused_count == len(report.columns) == lookups
        paths.append(tmp_path / "fused")
    for one in paths:
        signatures = tf.saved_model.load(str(one)).signatures
        served = signatures["serving_default"](**features)
        np.testing.assert_allclose(served["logits"][:, 0], wanted, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            served["probabilities"], 1 / (1 + np.exp(-served["logits"])), rtol=1e-5
        )
        parsed = signatures["parse_example"](examples=tf.constant(examples(features)))
        np.testing.assert_array_equal(parsed["logits"], served["logits"])
        ids = {name: features[name] for name in FEW}
        embedded = signatures["embeddings"](**ids)
        shapes = {name: embedding.shape for name, embedding in embedded.items()}
        assert shapes == {"weights": (32, len(FEW)), "vectors": (32, len(FEW) * 4)}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "chosen",
    [{"style": "keras"}, {"style": "keras", "do_fusion": "v2"}, {"style": "graph"}],
    ids=lambda chosen: "-".join(chosen.values()),
)
def test_exports_are_split(tmp_path: Path, model: str, chosen: dict[str, Any]) -> None:
    """Lookups and the dense model behind them are compared with the export."""
    options = replace(SMALL, **chosen)
    source, _ = few(options)
    steps = build(MODELS[model], options, source)
    ((features, labels),) = loop.first_batches(source, 32, 1)
    steps.train(features, labels)
    columns = columns_of(options, source)
    if isinstance(steps, KerasSteps):
        export_keras(steps, columns.inputs, tmp_path / "model")
    else:
        assert isinstance(steps, GraphSteps)
        steps.save(tmp_path / "weights")
        shape = shape_of(MODELS[model], options)
        export_graph(MODELS[model], shape, columns, tmp_path / "weights", tmp_path / "model")
    done = split_saved_model(tmp_path / "model", tmp_path / "split")
    assert len(done.cuts) >= len(done.tables) >= len(FEW)
    assert done.verification is not None
    assert done.verification.same


def test_lists_of_ids_are_trained_and_parsed(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    generate(tmp_path / "data", criteo.CriteoData(cap=100), 64)
    file = tmp_path / "data" / "part-00000.parquet"
    table = pq.read_table(file)
    lists = pa.array([[k % 7, k % 5] for k in range(64)])
    pq.write_table(table.set_column(table.schema.get_field_index("C3"), "C3", lists), file)
    ended = []
    for chosen in (
        {"do_fusion": "v2"},
        {"sharded": True},
        {"do_fusion": "v2", "style": "graph"},
    ):
        options = replace(SMALL, data=str(tmp_path / "data"), **chosen)
        source, _ = few(options)
        assert isinstance(parsing(columns_of(options, source).inputs)["C3"], tf.io.VarLenFeature)
        steps = build(MODELS["dlrm"], options, source)
        losses = [steps.train(*batch)[0] for batch in loop.first_batches(source, 32, 2) * 3]
        assert losses[-1] < losses[0]
        ended.append(losses)
    np.testing.assert_allclose(ended[1], ended[0], rtol=1e-6)
