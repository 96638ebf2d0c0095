"""Asking workers of a cluster whether they know fused ops, without a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import tensorflow as tf

from fusion.runtime.tensorflow import cluster

_TASK = "/job:worker/replica:0/task:0"
_NOT_REGISTERED = tf.errors.NotFoundError(None, None, "Op type not registered")
#: What a worker says of the result of an op that it has failed to run, if it is asked early.
_NO_TENSOR = tf.errors.InvalidArgumentError(None, None, "Unable to find the relevant tensor")


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> cluster.Workers:
    current = SimpleNamespace(_server_def=object())
    stand_in = SimpleNamespace(context_safe=lambda: current, context=lambda: current)
    monkeypatch.setattr(cluster, "context", stand_in)
    monkeypatch.setattr(cluster, "_workers", lambda _: [_TASK])
    return cluster.Workers()


def _answer(monkeypatch: pytest.MonkeyPatch, *answers: Exception | None) -> Iterator[object]:
    left = iter(answers)

    def execute(*_: object) -> list[tf.Tensor]:
        answer = next(left)
        if answer is not None:
            raise answer
        return [tf.constant(0)]

    monkeypatch.setattr(cluster, "execute", SimpleNamespace(execute=execute))
    monkeypatch.setattr(tf, "device", lambda _: nullcontext())
    return left


def test_a_worker_is_asked_again_for_what_it_cannot_say_yet(
    workers: cluster.Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = _answer(monkeypatch, _NO_TENSOR, _NOT_REGISTERED)
    with pytest.raises(tf.errors.NotFoundError, match=f"{_TASK} does not know fusion's ops"):
        workers.check()
    assert not [*left]


def test_a_worker_that_never_answers_is_asked_before_each_op(
    workers: cluster.Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = cluster._TRIES
    left = _answer(monkeypatch, *[_NO_TENSOR] * 2 * tries, _NOT_REGISTERED)
    workers.check()
    workers.check()
    with pytest.raises(tf.errors.NotFoundError):
        workers.check()
    assert not [*left]


def test_a_worker_that_knows_the_ops_is_asked_once(
    workers: cluster.Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = _answer(monkeypatch, None)
    workers.check()
    workers.check()
    assert not [*left]
