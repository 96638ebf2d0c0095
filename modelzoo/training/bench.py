"""Whole steps of training without fusion and with it, side by side in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from itertools import cycle, islice
from typing import Any

import fusion
from modelzoo.criteo.source import Source
from modelzoo.options import Model, Options
from modelzoo.training.loop import first_batches
from modelzoo.training.run import RunError
from modelzoo.training.setup import build
from modelzoo.training.steps import Steps

VARIANTS = ("stock", "v1", "v2", "enable")
"""Stock columns; fused ones of both families; stock ones that `fusion.enable` fuses."""

_BATCHES = 32
_COMPARED = 3
_WARM_UP = 10
#: What losses may differ by: TensorFlow orders the arithmetic of dense layers in its own ways.
_TOLERANCE = 1e-5


def measure(
    model: Model, options: Options, source: Source, rounds: int, steps_per_round: int
) -> dict[str, Any]:
    """Measures steps of each variant, which take turns; their losses must agree first.

    Batches are in memory, so that the pipeline is not measured.

    Args:
        model, options: what is trained; `do_fusion` and `enable` are those of the variant.
        source: the samples.
        rounds: how often the variants take turns.
        steps_per_round: steps of a variant in a row.

    Returns:
        By variant the median of milliseconds per step of the rounds, samples per second, and the
        speedup over stock: least, median and most of the rounds.

    Raises:
        RunError: the losses of a variant differ from stock's.
    """
    batches = first_batches(source, options.batch_size, _BATCHES)
    steps: dict[str, Steps] = {}
    losses: dict[str, list[float]] = {}
    for name in VARIANTS:
        own = replace(options, do_fusion=name if name in ("v1", "v2") else None, enable=False)
        steps[name] = build(model, own, source)
        # Graphs are optimized when they run first.
        with fusion.fused() if name == "enable" else nullcontext():
            losses[name] = [steps[name].train(*batch)[0] for batch in batches[:_COMPARED]]
        _check_losses(name, losses[name], losses["stock"])
    # When all are there: to set the seeds of one, TensorFlow forgets the functions of those before.
    for name in VARIANTS:
        _timed(steps[name].train, batches, _WARM_UP)
    seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for turn in range(rounds):
        # Each is first and last as often as the others.
        for name in islice(cycle(VARIANTS), turn, turn + len(VARIANTS)):
            seconds[name].append(_timed(steps[name].train, batches, steps_per_round))
    return {
        "model": model.name,
        "options": asdict(options),
        "losses": losses,
        "variants": {name: _told(seconds[name], seconds["stock"], options) for name in VARIANTS},
    }


def _check_losses(name: str, found: list[float], wanted: list[float]) -> None:
    for step, (own, other) in enumerate(zip(found, wanted, strict=True), 1):
        if abs(own - other) > _TOLERANCE * abs(other):
            raise RunError(f"the loss of step {step} is {own} with {name}, {other} with stock")


def _timed(train: Callable[..., Any], batches: list[Any], steps: int) -> float:
    """Seconds per step."""
    start = time.perf_counter()
    for features, labels in islice(cycle(batches), steps):
        train(features, labels)
    return (time.perf_counter() - start) / steps


def _told(seconds: list[float], stock: list[float], options: Options) -> dict[str, Any]:
    ratios = [other / own for own, other in zip(seconds, stock, strict=True)]
    middle = statistics.median(seconds)
    return {
        "milliseconds": 1e3 * middle,
        "samples_per_second": options.batch_size / middle,
        "speedup": [min(ratios), statistics.median(ratios), max(ratios)],
    }
