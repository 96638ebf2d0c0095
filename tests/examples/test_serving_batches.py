"""Which requests the example server's batcher computes together, and who gets which rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager

import numpy as np
import pytest

from examples.serving.batching import Batcher
from examples.serving.messages import Arrays

SECONDS = 60


class Doubling:
    """Doubles `x`, raises for negative numbers, and notes the rows of each call."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.begun, self.may_go_on = threading.Event(), threading.Event()

    def __call__(self, inputs: Arrays) -> dict[str, np.ndarray]:
        self.begun.set()
        assert self.may_go_on.wait(SECONDS)
        x = inputs["x"]
        self.calls.append(len(x))
        if np.any(x < 0):
            raise ValueError("negative")
        return {"y": 2 * x}


def arrays(*values: float, dtype: type = np.float32) -> dict[str, np.ndarray]:
    return {"x": np.array(values, dtype).reshape(-1, 1)}


@contextmanager
def busy(model: Doubling, max_rows: int) -> Iterator[Batcher]:
    """A batcher that is computing a request of one row; what is submitted now waits together."""
    batcher = Batcher(model, max_rows, max_wait=0.0)
    first = batcher.submit(arrays(0), 1)
    assert model.begun.wait(SECONDS)
    yield batcher
    model.may_go_on.set()
    batcher.close()
    assert first.result(SECONDS)["y"].tolist() == [[0]]


def test_each_request_gets_its_own_rows() -> None:
    model = Doubling()
    sent = [arrays(1), arrays(2, 3), arrays(), arrays(4, 5, 6)]
    with busy(model, max_rows=64) as batcher:
        results = [batcher.submit(one, len(one["x"])) for one in sent]
    assert model.calls == [1, 6]
    for one, result in zip(sent, results, strict=True):
        np.testing.assert_array_equal(result.result(SECONDS)["y"], 2 * one["x"])


def test_a_call_has_no_more_rows_than_it_may() -> None:
    model = Doubling()
    with busy(model, max_rows=4) as batcher:
        results = [batcher.submit(arrays(*range(n)), n) for n in (2, 2, 1, 3, 9, 1)]
    assert model.calls == [1, 4, 4, 9, 1]
    assert [len(result.result(SECONDS)["y"]) for result in results] == [2, 2, 1, 3, 9, 1]


def test_other_dtypes_and_shapes_are_not_joined() -> None:
    model = Doubling()
    with busy(model, max_rows=64) as batcher:
        wide = {"x": np.ones((2, 3), np.float32)}
        results = [
            batcher.submit(arrays(1), 1),
            batcher.submit(arrays(1, 2, dtype=np.float64), 2),
            batcher.submit(wide, 2),
            batcher.submit(wide, 2),
        ]
    assert model.calls == [1, 1, 2, 4]
    assert [r.result(SECONDS)["y"].dtype for r in results[:2]] == [np.float32, np.float64]
    assert results[3].result(SECONDS)["y"].shape == (2, 3)


def test_an_error_is_that_of_its_request_alone() -> None:
    model = Doubling()
    with busy(model, max_rows=64) as batcher:
        results = [batcher.submit(arrays(n), 1) for n in (1, -1, 2)]
    assert model.calls == [1, 3, 1, 1, 1]
    assert [results[n].result(SECONDS)["y"].item() for n in (0, 2)] == [2, 4]
    with pytest.raises(ValueError, match="negative"):
        results[1].result(SECONDS)


def test_results_that_have_no_row_for_each_are_computed_alone() -> None:
    model = Doubling()

    def total(inputs: Arrays) -> dict[str, np.ndarray]:
        return {"total": model(inputs)["y"].sum()} if len(inputs["x"]) > 1 else model(inputs)

    batcher = Batcher(total, 64, 0.0)
    first = batcher.submit(arrays(0), 1)
    assert model.begun.wait(SECONDS)
    results = [batcher.submit(arrays(n), 1) for n in (1, 2)]
    model.may_go_on.set()
    batcher.close()
    assert model.calls == [1, 2, 1, 1]
    assert [r.result(SECONDS)["y"].item() for r in (first, *results)] == [0, 2, 4]


def test_what_is_cancelled_is_not_computed() -> None:
    model = Doubling()
    with busy(model, max_rows=64) as batcher:
        results = [batcher.submit(arrays(n), 1) for n in (1, 2, 3)]
        assert results[1].cancel()
    assert model.calls == [1, 2]
    assert [results[n].result(SECONDS)["y"].item() for n in (0, 2)] == [2, 6]
    with pytest.raises(CancelledError):
        results[1].result(SECONDS)


def test_nothing_is_taken_after_the_end() -> None:
    model = Doubling()
    with busy(model, max_rows=64) as batcher:
        pass
    assert batcher.submit(arrays(1), 1).cancelled()
    assert model.calls == [1]


def test_the_first_waits_for_others() -> None:
    model = Doubling()
    model.may_go_on.set()
    batcher = Batcher(model, max_rows=2, max_wait=SECONDS)
    results = [batcher.submit(arrays(n), 1) for n in (1, 2)]
    assert [r.result(SECONDS)["y"].item() for r in results] == [2, 4]
    assert model.calls == [2]
    batcher.close()
