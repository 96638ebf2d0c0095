"""What is measured of models that rank candidates for a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import requests
from benchmarks.calls import call_of, deviation, held, hold
from benchmarks.case import Row
from benchmarks.catalog import CASES
from benchmarks.clients import requests as clients
from benchmarks.request_bound import own_part
from benchmarks.request_models import MODELS
from benchmarks.requests import EXAMPLES, TENSORS, measure


@pytest.mark.parametrize(("inputs", "target"), [(TENSORS, "stock"), (EXAMPLES, "fused")])
def test_each_number_of_candidates_has_a_row(inputs: str, target: str) -> None:
    rows = [*measure("two towers", inputs, target, "1,4", 50, 0.01)]
    assert [row.key for row in rows] == [
        {"model": "two towers", "inputs": inputs, "target": target, "candidates": count}
        for count in (1, 4)
    ]
    for row in rows:
        assert row.number("candidates alone, ms") > 0
        assert row.number("candidates alone, times as fast") > 0
        assert row.number("times as fast") > 0
    before, _, after = str(rows[1].values["bytes"]).partition(" -> ")
    assert int(before) > int(after.partition(",")[0])


def test_other_outputs_end_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a rewriter that takes the wrong user."""
    batch = requests._batch

    def wrong(*arguments: Any) -> Any:
        repeated, once = batch(*arguments)
        return repeated, {**once, "user0": once["user0"] + 1}

    monkeypatch.setattr(requests, "_batch", wrong)
    with pytest.raises(AssertionError, match="request: outputs differ by"):
        next(measure("two towers", TENSORS, "stock", "4", 50, 0.01))


SCORES = tf.constant([[1.0], [2.0]])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (SCORES + 1e-4, r"other: outputs differ by 5\.0e-05 of the largest"),
        (SCORES * float("nan"), "other: outputs differ by nan of the largest"),
        (SCORES[:1], r"other: \(1, 1\), first: \(2, 1\)"),
    ],
)
def test_other_outputs_are_an_error(other: tf.Tensor, message: str) -> None:
    calls = {"first": lambda: SCORES, "same": lambda: SCORES, "other": lambda: SCORES + 1e-6}
    assert 0 < deviation(calls) < 1e-6
    with pytest.raises(AssertionError, match=message):
        deviation({**calls, "other": lambda: other})


def test_outputs_that_are_no_numbers_are_an_error() -> None:
    with pytest.raises(AssertionError, match="outputs of first are not finite"):
        deviation({"first": lambda: SCORES * float("inf"), "other": lambda: SCORES})


class _Scores(tf.Module):
    """What NAME_request is of: one user, some items."""

    def __init__(self) -> None:
        super().__init__()
        normal = tf.random.stateless_normal
        self.users, self.items = (tf.Variable(normal([20, 4], [1, k])) for k in range(2))

    @tf.function(
        input_signature=[
            tf.TensorSpec([1], tf.int64, "user"),
            tf.TensorSpec([None], tf.int64, "item"),
        ]
    )
    def serve(self, user: tf.Tensor, item: tf.Tensor) -> dict[str, tf.Tensor]:
        users = tf.nn.relu(tf.gather(self.users, user))
        with tf.control_dependencies([tf.debugging.assert_non_negative(user)]):
            return {"scores": tf.gather(self.items, item) @ tf.transpose(users)}


def test_of_the_candidates_own_part_the_rest_is_a_constant() -> None:
    model = _Scores()
    signature = model.serve.get_concrete_function()
    inputs = held({"user": np.array([3]), "item": np.arange(5)})
    own = {"item": inputs["item"]}
    call = own_part(signature, {"user": np.array([3])}, own)
    whole = call_of(signature, inputs, ["scores"])
    assert deviation({"whole": whole, "own": call}) < 1e-6
    hold(own, {"item": np.array([7, 1])})
    assert deviation({"whole": whole, "own": call}) < 1e-6
    kinds = [op.type for op in call.get_concrete_function().graph.get_operations()]  # type: ignore[attr-defined]
    assert kinds.count("ResourceGather") == 1
    assert not {"Relu", "Transpose", "Assert", "If", "StatelessIf"} & {*kinds}
    # Items are no constants.
    model.items.assign(2 * model.items)
    assert deviation({"whole": whole, "own": call}) < 1e-6


class _Ranker:
    """A model as those of libraries are called, saved and changed."""

    def __init__(self, mixes: bool) -> None:
        self.mixes = mixes
        self.weights = [tf.Variable(tf.zeros([3, 1]), name=f"kernel{k}") for k in range(2)]
        self.variables = self.weights
        # Each of a name in the model.
        self.module = tf.Module()
        self.module.kernels = self.weights

    def __call__(self, given: Mapping[str, tf.Tensor], training: bool = False) -> tf.Tensor:
        user, item = given["user_numbers"], given["item_numbers"]
        if self.mixes:
            user = user - tf.reduce_mean(user, 0)
        return user @ self.weights[0] + item @ self.weights[1]


def _rows(monkeypatch: pytest.MonkeyPatch, model: Any) -> list[Row]:
    inputs = {"user_numbers": ((3,), False), "item_numbers": ((3,), False)}
    monkeypatch.setitem(clients.DEEPCTR, "model", clients.Ranking("a library", model, inputs))
    monkeypatch.setattr(clients, "export", _save)
    return [*clients.measure("model", "", 9, 0.01)]


def _save(model: _Ranker, arrays: Mapping[str, Any], path: Any, with_layers: bool) -> None:
    specs = {name: tf.TensorSpec([None, 3], tf.float32, name) for name in arrays}
    serve = tf.function(lambda **given: {"scores": model(given)})
    tf.saved_model.save(model.module, str(path), serve.get_concrete_function(**specs))


def test_a_client_model_is_measured_or_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = _rows(monkeypatch, lambda: _Ranker(mixes=False))
    assert row.key == {"model": "model", "library": "a library", "candidates": 9}
    assert row.number("times as fast") > 0
    assert float(str(row.values["deviation"])) < 1e-5
    (refused,) = _rows(monkeypatch, lambda: _Ranker(mixes=True))
    assert refused.key == row.key
    assert refused.values == {"times as fast": "refused"}
    assert any("Mean goes over the rows" in note for note in refused.notes)


def test_rows_that_differ_are_counted() -> None:
    ramp = np.arange(10.0)
    assert clients.different_rows(ramp[:, None]) == 10
    assert clients.different_rows(np.array([[0.0]] * 5 + [[1.0]] * 5)) == 2
    assert clients.different_rows(np.stack([ramp, 1 + 1e-6 * ramp], 1)) == 1


class _Saturated(_Ranker):
    """All scores are one, unless weights are small."""

    def __call__(self, given: Mapping[str, tf.Tensor], training: bool = False) -> tf.Tensor:
        return tf.minimum(self.limit + super().__call__(given), 1.0)

    limit = 0.7


def test_weights_are_such_that_rows_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _Saturated(mixes=False)
    monkeypatch.setattr(clients, "_SCALES", (100.0, 0.01))
    (row,) = _rows(monkeypatch, lambda: model)
    assert row.number("times as fast") > 0
    assert 0 < np.abs(model.weights[0].numpy()).max() < 0.1
    model.limit = 2.0
    with pytest.raises(AssertionError, match="1 of 9 rows are different"):
        _rows(monkeypatch, lambda: model)


def test_the_lists_of_models_are_whole() -> None:
    built: dict[str, Mapping[str, object]] = {
        "requests": MODELS,
        "clients-requests": clients.DEEPCTR,
        "clients-requests-keras3": clients.KERAS_RS,
    }
    for name, models in built.items():
        assert CASES[name].options["model"] == tuple(models)
    assert CASES["requests"].options["inputs"] == (TENSORS, EXAMPLES)
