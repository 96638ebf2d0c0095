"""The loop of training, which goes on where it was killed, and evaluation."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Protocol

import numpy as np

from modelzoo.criteo.source import Source
from modelzoo.options import Options
from modelzoo.training.run import Run, RunError, State, evaluated
from modelzoo.training.scores import auc
from modelzoo.training.steps import Scored, Steps

#: Steps between what is kept of the loss, and samples of which the AUC of training is.
_TOLD_EVERY, _RECENT = 10, 20_000
_EVAL_BATCH = 4096


class Watcher(Protocol):
    """Sees how training goes on."""

    def stepped(self, step: int, numbers: dict[str, float]) -> None:
        """Some steps were done."""

    def evaluated(self, step: int, numbers: dict[str, float]) -> None:
        """Held-out samples were evaluated."""


class Silent:
    """Watches and says nothing."""

    def stepped(self, step: int, numbers: dict[str, float]) -> None:
        """See `Watcher`."""

    def evaluated(self, step: int, numbers: dict[str, float]) -> None:
        """See `Watcher`."""


def train(run: Run, steps: Steps, source: Source, held_out: Source, watcher: Watcher) -> State:
    """Trains from the last checkpoint on; a checkpoint is written at the end, too.

    Raises:
        RunError: the data have no samples, or the loss is not a number any more.
    """
    options, state = run.options, run.begin()
    run.restore(steps)
    recent, last, under_way = _Recent(options), time.monotonic(), deque[Callable[[], None]]()
    batches = _endless(steps, source, options.batch_size, state.epoch, state.batch)
    while not state.is_over(options):
        with recent.waiting():
            features, labels, epoch, batch = next(batches)
        state = replace(state, step=state.step + 1, epoch=epoch, batch=batch)
        step = steps.start(features, labels)
        under_way.append(partial(recent.add, state.step, step))
        is_told = _is_due(state.step, _TOLD_EVERY, options.steps)
        is_evaluated = _is_due(state.step, options.eval_every, options.steps)
        is_saved = _is_due(state.step, options.save_every, options.steps)
        # What is told or kept is of all steps up to this one.
        left = 0 if is_told or is_evaluated or is_saved else steps.at_once - 1
        while len(under_way) > left:
            under_way.popleft()()
        if is_told:
            passed, last = time.monotonic() - last, time.monotonic()
            numbers = recent.told(passed)
            run.tell(state.step, **numbers)
            watcher.stepped(state.step, numbers)
        if is_evaluated:
            numbers = evaluate(steps, held_out, options)
            state = evaluated(state, numbers["eval_auc"])
            run.tell(state.step, **numbers)
            watcher.evaluated(state.step, numbers)
            last = time.monotonic()
        if is_saved or state.is_over(options):
            run.save(steps, state)
    return state


def _is_due(step: int, every: int, end: int) -> bool:
    return step == end or (every > 0 and step % every == 0)


def evaluate(steps: Steps, source: Source, options: Options) -> dict[str, float]:
    """The AUC and the mean loss of the first held-out samples.

    Raises:
        RunError: there are none.
    """
    labels, scores, left = [], [], options.eval_samples
    for batch in steps.batches(source.dataset(_EVAL_BATCH).prefetch(2)):
        own_labels, own_scores = steps.scores(*batch)
        labels.append(own_labels[:left])
        scores.append(own_scores[:left])
        left -= len(labels[-1])
        if left <= 0:
            break
    if not labels:
        raise RunError("there are no held-out samples")
    all_labels, logits = np.concatenate(labels), np.concatenate(scores).astype(np.float64)
    # The cross entropy by logits, which cannot overflow.
    losses = np.maximum(logits, 0) - logits * all_labels + np.log1p(np.exp(-np.abs(logits)))
    return {"eval_auc": auc(all_labels, logits), "eval_loss": float(losses.mean())}


def _endless(
    steps: Steps, source: Source, batch_size: int, epoch: int, batch: int
) -> Iterator[tuple[Any, Any, int, int]]:
    """Batches behind some of an epoch, with the epoch and how many batches of it were used then.

    The data begin again when they end.
    """
    while True:
        dataset = source.dataset(batch_size, skip_batches=batch).prefetch(4)
        for features, labels in steps.batches(dataset):
            batch += 1
            yield features, labels, epoch, batch
        if batch == 0:
            raise RunError("the data have no samples")
        epoch, batch = epoch + 1, 0


class _Recent:
    """The last samples of training, scored before the step that learned of them, and losses."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._labels: list[Any] = []
        self._scores: list[Any] = []
        self._losses: list[float] = []
        self._waited = 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time until the next batch is there."""
        start = time.monotonic()
        yield
        self._waited += time.monotonic() - start

    def add(self, step: int, wait: Callable[[], tuple[float, Scored]]) -> None:
        """Waits for a step."""
        loss, (labels, logits) = wait()
        if not np.isfinite(loss):
            raise RunError(
                f"the loss of step {step} is {loss}: a smaller rate than "
                f"{self._options.rate or 'the default'} may help (--rate)"
            )
        self._losses.append(loss)
        self._labels.append(labels)
        self._scores.append(logits)
        while sum(map(len, self._labels[1:])) >= _RECENT:
            del self._labels[0], self._scores[0]

    def told(self, seconds: float) -> dict[str, float]:
        """What is told of the steps since it was asked before, which took some seconds.

        `waiting` is the share of the time in which there was no batch to go on with.
        """
        losses, self._losses = self._losses, []
        waited, self._waited = self._waited, 0.0
        return {
            "loss": float(np.mean(losses)),
            "auc": auc(np.concatenate(self._labels), np.concatenate(self._scores)),
            "samples_per_second": len(losses) * self._options.batch_size / max(seconds, 1e-9),
            "waiting": min(waited / max(seconds, 1e-9), 1.0),
        }


def first_batches(source: Source, batch_size: int, count: int) -> list[tuple[Any, Any]]:
    """So many batches, to be used again and again."""
    return [*islice(source.dataset(batch_size), count)]
