"""What is measured of models that rank candidates for a request."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import tensorflow as tf

from benchmarks.catalog import CASES
from benchmarks.clients.requests import DEEPCTR, KERAS_RS
from benchmarks.request_models import MODELS
from benchmarks.requests import EXAMPLES, TENSORS, deviation, measure


@pytest.mark.parametrize(("inputs", "target"), [(TENSORS, "stock"), (EXAMPLES, "fused")])
def test_each_number_of_candidates_has_a_row(inputs: str, target: str) -> None:
    rows = [*measure("two towers", inputs, target, "1,4", 50, 0.01)]
    assert [row.key["candidates"] for row in rows] == [1, 4]
    for row in rows:
        assert row.number("times as fast") > 0
        assert ("candidates alone, ms" in row.values) is (inputs == TENSORS)
    before, _, after = str(rows[1].values["bytes"]).partition(" -> ")
    assert int(before) > int(after.partition(",")[0])


def test_other_outputs_are_an_error() -> None:
    scores = tf.constant([[1.0], [2.0]])
    assert deviation({"stock": lambda: scores, "request": lambda: scores}) == 0
    with pytest.raises(AssertionError, match=r"outputs differ by 5\.0e-05 of the largest"):
        deviation({"stock": lambda: scores, "request": lambda: scores + 1e-4})


def test_the_lists_of_models_are_whole() -> None:
    built: dict[str, Mapping[str, object]] = {
        "requests": MODELS,
        "clients-requests": DEEPCTR,
        "clients-requests-keras3": KERAS_RS,
    }
    for name, models in built.items():
        assert CASES[name].options["model"] == tuple(models)
