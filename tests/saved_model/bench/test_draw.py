from __future__ import annotations

import io

import matplotlib.image
import numpy as np

from fusion.saved_model.bench import END_TO_END, IN_GRAPH, BenchReport, Measurement
from fusion.saved_model.bench.draw import draw_report
from fusion.saved_model.bench.report import short_names


def _report(batches: tuple[int, ...], models: tuple[str, ...]) -> BenchReport:
    measurements = tuple(
        Measurement(way, batch, clients, model, 10, 0.1, 0.2, 0.3 + model, 100.0 * batch)
        for way in (IN_GRAPH, END_TO_END)
        for batch in batches
        for clients in (1, 8)
        for model in range(len(models))
    )
    return BenchReport(models, "rank", "generated", None, 1.0, {}, 0.0, measurements, ())


def _pixels(report: BenchReport) -> np.ndarray:
    return matplotlib.image.imread(io.BytesIO(draw_report(report)), format="png")


def test_a_picture_shows_what_was_measured() -> None:
    two = _pixels(_report((512, 1, 64), ("/m/stock", "/m/fused")))
    assert two.shape[:2] == (840, 1200)
    assert np.array_equal(two, _pixels(_report((1, 64, 512), ("/m/stock", "/m/fused"))))
    assert not np.array_equal(two, _pixels(_report((1, 64, 512), ("/m/stock",))))


def test_a_single_batch_can_be_drawn() -> None:
    assert _pixels(_report((64,), ("/m/stock",))).shape[:2] == (840, 1200)


def test_requests_have_lines_of_their_own() -> None:
    batches = [(200, 1), (200, 8), (400, 8)]
    measurements = tuple(
        Measurement(way, batch, 1, model, 9, 0.1, 0.2, 0.3, 9.0, 0, {}, requests, f"s{model}")
        for way in (IN_GRAPH, END_TO_END)
        for batch, requests in batches
        for model in range(2)
    )
    models = ("/m/stock", "/m/new")
    report = BenchReport(models, "rank", "generated", None, 1.0, {}, 0.0, measurements, (), ("a",))
    assert _pixels(report).shape[:2] == (840, 1200)


def test_names_are_paths_without_what_they_share() -> None:
    assert short_names(("/m/a/stock", "/m/b/fused")) == ("a/stock", "b/fused")
    assert short_names(("/m/stock", "/m/stock")) == ("stock", "stock")
    assert short_names(("/m/stock/",)) == ("stock",)
    assert short_names(("/m", "/m/fused")) == (".", "fused")
