"""Requests measured: repeated rows beside signatures that take each request once."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusion.saved_model import ModelError, VerificationError, bench_models, fuse_saved_model
from fusion.saved_model.bench import END_TO_END, IN_GRAPH, BenchReport
from fusion.saved_model.bench.feeds import generated_feeds
from fusion.saved_model.bench.requests import read_rows, request_plans
from fusion.saved_model.bench.selection import choose_signature
from fusion.saved_model.bench.sides import InGraph
from fusion.saved_model.model.source import read_saved_model
from tests.saved_model import request_models

SHORT: dict[str, Any] = {"seconds": 0.01, "requests": [(1, 6), (3, 4)]}


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models "stock" and "ranked", and "examples" and "parsed"."""
    folder = tmp_path_factory.mktemp("ranked")
    names = {"stock": "ranked", "examples": "parsed"}
    for name, other in names.items():
        request_models.save(folder / name, of_examples=name == "examples")
        inputs = ["user", "age"]
        fuse_saved_model(
            folder / name, folder / other, "stock", verify=False, request_inputs=inputs
        )
    return folder


@pytest.mark.parametrize("names", [("stock", "ranked"), ("ranked",), ("examples", "parsed")])
def test_both_kinds_of_requests_are_measured(ranked: Path, names: tuple[str, ...]) -> None:
    report = bench_models(*(ranked / name for name in names), **SHORT)
    assert [(m.way, m.batch, m.requests, m.signature) for m in report.measurements] == [
        (way, batch, count, signature)
        for way in (IN_GRAPH, END_TO_END)
        for batch, count, new in ((6, 1, "request"), (12, 3, "requests"))
        for signature in ("serving_default", f"serving_default_{new}")
    ]
    assert report.request_inputs == ("user", "age")
    assert report.outputs == "1 signature, 1 run, outputs equal within 1e-05 of the largest"
    loads = [(m.way, m.batch, m.clients, m.requests) for m in report.measurements if m.model]
    assert [ratio.load for ratio in report.ratios] == loads
    assert all(report.ratio(m) for m in report.measurements if m.model)
    assert BenchReport.from_dict(json.loads(json.dumps(report.to_dict()))) == report
    if names[0] == "examples":
        return
    sizes = {(m.requests, m.model): m.input_bytes for m in report.measurements}
    # Rows of two ids and a number; of the second an id each, and the numbers of candidates.
    assert sizes == {(1, 0): 6 * 20, (1, 1): 12 + 6 * 8, (3, 0): 12 * 20, (3, 1): 3 * 20 + 12 * 8}


@pytest.mark.parametrize("name", ["stock", "examples"])
def test_both_signatures_get_the_same_requests(ranked: Path, name: str) -> None:
    model = read_saved_model(ranked / name)
    signature = choose_signature(model)
    other = read_saved_model(ranked / {"stock": "ranked", "examples": "parsed"}[name])
    feeds = generated_feeds(model, signature, [12])
    (plan,) = request_plans([(3, 4)], signature, other, feeds)
    ((repeated, once),) = plan.feeds.values()
    if name == "stock":
        for key in ("user", "age"):
            assert np.array_equal(np.repeat(once[key], 4), repeated[key])
        assert np.array_equal(once["item"], repeated["item"])
    else:
        assert len(once["user_examples"]) == 3
        assert len(once["candidate_examples"]) == len(repeated["examples"]) == 12
    assert once["candidates_per_request"].tolist() == [4, 4, 4]
    assert once["candidates_per_request"].dtype == np.int64


def test_other_scores_are_an_error(ranked: Path, tmp_path: Path) -> None:
    other = request_models.save(tmp_path / "other", seed=2)
    with pytest.raises(VerificationError, match="ranked differ, nothing measured"):
        bench_models(other, ranked / "ranked", **SHORT)


def test_recorded_rows_are_of_both_signatures(ranked: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", **request_models.rows(7, user=range(7)))
    inputs = tmp_path / "inputs.npz"
    model = read_saved_model(ranked / "stock")
    rows = read_rows(inputs, model, choose_signature(model), [(1, 5), (2, 3)], 32)
    assert {size: feeds["user"].tolist() for size, feeds in rows.items()} == {
        5: [0, 1, 2, 3, 4],
        6: [0, 1, 2, 3, 4, 5],
    }
    report = bench_models(
        ranked / "stock", ranked / "ranked", inputs=inputs, seconds=0.01, requests=[(2, 3)]
    )
    assert {m.batch for m in report.measurements} == {6}
    with pytest.raises(ModelError, match=r"npz: 2x4 takes 8 rows, and its first batch has 7"):
        bench_models(ranked / "ranked", inputs=inputs, requests=[(1, 2), (2, 4)])


def test_records_are_read_in_batches_that_are_large_enough(ranked: Path, tmp_path: Path) -> None:
    file = request_models.write_examples(tmp_path / "r.tfrecord", request_models.rows(40))
    model = read_saved_model(ranked / "examples")
    rows = read_rows(file, model, choose_signature(model), [(1, 36)], 8)
    assert len(rows[36]["examples"]) == 36


def test_a_model_without_such_signatures(ranked: Path) -> None:
    with pytest.raises(ModelError, match=r"stock: no signature takes requests .*--request-inputs"):
        bench_models(ranked / "stock", **SHORT)


@pytest.mark.parametrize("requests", [[(0, 1)], [(1, 0)], [(1, 2), (1, 2)], [(1, 2, 3)]])
def test_batches_that_are_none(ranked: Path, requests: Any) -> None:
    with pytest.raises(ValueError, match="requests must be different pairs of numbers from 1 on"):
        bench_models(ranked / "ranked", requests=requests)


def test_functions_of_new_signatures_are_inlined(ranked: Path) -> None:
    model = read_saved_model(ranked / "ranked")
    for name in ("serving_default_request", "serving_default_requests"):
        signature = choose_signature(model, name=name)
        counts = {"candidates_per_request": np.array([6])}
        feeds = {"user": np.array([1]), "age": np.array([2.0]), "item": np.arange(6)}
        feeds |= counts if len(signature.inputs) > len(feeds) else {}
        with contextlib.closing(InGraph(model, signature)) as side:
            shares = side.shares(feeds)
        # The ops of a function that is called are no lookups of the graph.
        assert shares["lookups"] > 0, name
