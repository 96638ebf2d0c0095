from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion.saved_model import ModelError, VerificationError, bench_models, fuse_saved_model
from fusion.saved_model.bench import END_TO_END, IN_GRAPH, BenchReport
from fusion.saved_model.model.source import MODEL_FILE, read_saved_model
from tests.saved_model import frozen_graphs

SHORT: dict[str, Any] = {"seconds": 0.01, "batches": (1, 5)}


def _scaled(path: Path, factor: float) -> Path:
    """A model that multiplies by a factor."""
    module = tf.Module()

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, name="x")])
    def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": x * factor}

    tf.saved_model.save(module, str(path), {"serving_default": serve})
    return path


def test_one_model_under_every_load(models: Path) -> None:
    lines: list[str] = []
    report = bench_models(models / "v1_resource", clients=(1, 2), progress=lines.append, **SHORT)
    loads = [(m.way, m.batch, m.clients, m.model) for m in report.measurements]
    assert loads == [
        (way, batch, clients, 0)
        for way in (IN_GRAPH, END_TO_END)
        for batch in (1, 5)
        for clients in (1, 2)
    ]
    for one in report.measurements:
        assert 0 < one.p50_ms <= one.p90_ms <= one.p99_ms
        assert one.examples_per_s > 0
        assert one.calls >= 5 * one.clients
    assert (report.models, report.outputs, report.ratios) == (
        (str(models / "v1_resource"),),
        None,
        (),
    )
    assert report.inputs == "generated"
    assert f"{END_TO_END}: batch 5, 2 clients" in lines


def test_two_models_side_by_side(models: Path, tmp_path: Path) -> None:
    fuse_saved_model(models / "tf2", tmp_path / "fused", verify=False)
    report = bench_models(models / "tf2", tmp_path / "fused", signature="embedding", **SHORT)
    assert report.signature == "embedding"
    assert report.outputs == "1 signature, 2 runs, outputs equal to the bit"
    assert [m.model for m in report.measurements] == [0, 1] * 4
    assert [(r.way, r.batch) for r in report.ratios] == [
        (way, batch) for way in (IN_GRAPH, END_TO_END) for batch in (1, 5)
    ]
    assert all(0 < r.low <= r.median <= r.high for r in report.ratios)
    first, second = report.measurements[:2]
    assert report.ratio(first) is None
    assert report.ratio(second) == report.ratios[0]
    assert BenchReport.from_dict(json.loads(json.dumps(report.to_dict()))) == report


def test_other_outputs_are_an_error_unless_tolerated(tmp_path: Path) -> None:
    a, b = (_scaled(tmp_path / n, f) for n, f in (("a", 1.0), ("b", 1.0 + 1e-6)))
    with pytest.raises(VerificationError) as caught:
        bench_models(a, b, **SHORT)
    text = str(caught.value)
    assert text.startswith(f"the outputs of {b} differ, nothing measured: signature")
    assert "elements differ, by at most" in text
    assert text.endswith("--tolerance allows for rounding")
    report = bench_models(a, b, tolerance=1e-5, **SHORT)
    assert report.outputs == "1 signature, 2 runs, outputs equal within 1e-05 of the largest"


def test_a_model_with_other_inputs(models: Path) -> None:
    with pytest.raises(ModelError, match=r"example: its signature .* has other inputs"):
        bench_models(models / "tf2", models / "example", **SHORT)


def test_a_second_model_without_the_signature(models: Path) -> None:
    with pytest.raises(ModelError, match=r"plain: of its signatures .* none is 'embedding'"):
        bench_models(models / "tf2", models / "plain", signature="embedding", **SHORT)


def test_inputs_from_a_file(models: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", x=np.ones([7, 3], np.float32))
    report = bench_models(models / "plain", inputs=tmp_path / "inputs.npz", seconds=0.01)
    assert {m.batch for m in report.measurements} == {7}
    assert report.inputs == str(tmp_path / "inputs.npz")


def test_inputs_that_the_model_refuses(models: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", examples=np.array([b"no Example"]))
    with pytest.raises(
        ModelError, match=r"does not run on batch 1 \(in graph\): .*parse"
    ) as caught:
        bench_models(models / "example", inputs=tmp_path / "inputs.npz", seconds=0.01)
    assert str(caught.value).startswith(str(models / "example"))


def test_a_model_that_cannot_be_loaded(models: Path, tmp_path: Path) -> None:
    shutil.copytree(models / "plain", tmp_path / "broken")
    shutil.rmtree(tmp_path / "broken" / "variables")
    with pytest.raises(ModelError, match=r"broken cannot be loaded: .*variables"):
        bench_models(tmp_path / "broken", **SHORT)


def test_a_model_that_crashes_tensorflow(models: Path, tmp_path: Path) -> None:
    shutil.copytree(models / "plain", tmp_path / "crash")
    proto = read_saved_model(tmp_path / "crash").proto
    for function in proto.meta_graphs[0].graph_def.library.function:
        for node in function.node_def:
            node.input.append("^abort")
        function.node_def.add(name="abort", op="Abort")
        function.control_ret["abort"] = "abort"
        function.signature.control_output.append("abort")
    (tmp_path / "crash" / MODEL_FILE).write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match=r"TensorFlow crashed \(SIG[A-Z]+\) while running .*crash"):
        bench_models(tmp_path / "crash", **SHORT)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("kill -SEGV $$", r"TensorFlow crashed \(SIGSEGV\) while running"),
        ("echo first >&2; echo last >&2; exit 9", "failed: last"),
        ("exec tail -f /dev/null", "measuring took more than 1 s"),
    ],
)
def test_a_child_that_does_not_end_well(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    child = tmp_path / "python"
    child.write_text(f"#!/bin/sh\n{script}\n")
    child.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(child))
    with pytest.raises(ModelError, match=message):
        bench_models(models / "plain", timeout=1, **SHORT)


def test_threads_are_set_before_tensorflow_starts_its_own(models: Path) -> None:
    assert bench_models(models / "tf2", threads=1, **SHORT).measurements


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("batches", ()),
        ("batches", (0,)),
        ("clients", (1, -1)),
        ("seconds", 0.0),
        ("tolerance", -1.0),
        ("threads", 0),
    ],
)
def test_arguments_out_of_range(models: Path, argument: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{argument} must .*got"):
        bench_models(models / "plain", **{**SHORT, argument: value})


def test_frozen_graphs_side_by_side(tmp_path: Path) -> None:
    stock = frozen_graphs.write(frozen_graphs.v1_graph(), tmp_path / "model.pb")
    fuse_saved_model(stock, tmp_path / "fused.pb", verify=False)
    report = bench_models(stock, tmp_path / "fused.pb", batches=[3], seconds=0.05)
    assert {one.way for one in report.measurements} == {IN_GRAPH, END_TO_END}
    assert len(report.ratios) == 2
    assert report.outputs is not None
