"""Whole steps of training without fusion and with it, side by side in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from typing import Any

import fusion
from modelzoo.criteo.source import Source
from modelzoo.options import Model, Options
from modelzoo.training.loop import first_batches
from modelzoo.training.run import RunError
from modelzoo.training.setup import build
from modelzoo.training.steps import Steps


@dataclass(frozen=True)
class Variant:
    """A way to build and to run a model.

    Attributes:
        name: of it.
        is_stock: whether it is made of Keras 3's own layers, and of no columns.
        do_fusion: None for stock columns, "v1" or "v2" for fused ones.
        enable: whether its graphs are optimized under `fusion.enable`.
    """

    name: str
    is_stock: bool = False
    do_fusion: str | None = None
    enable: bool = False


_COLUMNS = (
    Variant("stock"),
    Variant("v1", do_fusion="v1"),
    Variant("v2", do_fusion="v2"),
    Variant("enable", enable=True),
)
_LAYERS = (
    Variant("layers", is_stock=True),
    Variant("layers-enable", is_stock=True, enable=True),
)


def variants(style: str, lists: Sequence[str] = ()) -> tuple[Variant, ...]:
    """What is compared, the base first: in Keras 3 its own layers, in compat.v1 stock columns.

    Args:
        style: as of `Options`.
        lists: the features of the samples that have lists of ids, which stock layers cannot take.
    """
    return (*_LAYERS, *_COLUMNS) if style == "keras" and not lists else _COLUMNS


_BATCHES = 32
_COMPARED = 3
_WARM_UP = 10
#: What losses may differ by: TensorFlow orders the arithmetic of dense layers in its own ways.
_TOLERANCE = 1e-5


def measure(
    model: Model,
    options: Options,
    source: Source,
    rounds: int,
    steps_per_round: int,
    names: Sequence[str] = (),
) -> dict[str, Any]:
    """Measures steps of each variant, which take turns; their losses must agree first.

    Batches are in memory, so that the pipeline is not measured.

    Args:
        model, options: what is trained; `do_fusion` and `enable` are those of the variant.
        source: the samples.
        rounds: how often the variants take turns.
        steps_per_round: steps of a variant in a row.
        names: of the variants; none for all.

    Returns:
        By variant the median of milliseconds per step of the rounds, samples per second, and the
        speedup over the first variant: least, median and most of the rounds.

    Raises:
        RunError: the losses of a variant differ from those of stock, or there is no such variant.
    """
    asked = _asked(options, source, names)
    batches = first_batches(source, options.batch_size, _BATCHES)
    # All at first: to set the seeds of one, TensorFlow forgets the functions of those before.
    steps = {one.name: _built(model, options, source, one) for one in asked}
    losses = _losses(asked, steps, batches[:_COMPARED])
    for each in steps.values():
        _timed(each.train, batches, _WARM_UP)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds):
        # Each is first and last as often as the others.
        for name in islice(cycle(steps), turn, turn + len(steps)):
            seconds[name].append(_timed(steps[name].train, batches, steps_per_round))
    return {
        "model": model.name,
        "options": asdict(options),
        "losses": losses,
        "variants": {name: _told(seconds[name], seconds[asked[0].name], options) for name in steps},
    }


def _built(model: Model, options: Options, source: Source, variant: Variant) -> Steps:
    own = replace(options, do_fusion=variant.do_fusion, enable=False)
    return build(model, own, source, variant.is_stock)


def _asked(options: Options, source: Source, names: Sequence[str]) -> tuple[Variant, ...]:
    known = variants(options.style, source.lists)
    if unknown := {*names} - {one.name for one in known}:
        shown = ", ".join(one.name for one in known)
        raise RunError(f"variants must be some of {shown}, got {', '.join(sorted(unknown))}")
    return tuple(one for one in known if one.name in names or not names)


def _losses(
    asked: Sequence[Variant], steps: Mapping[str, Steps], batches: Sequence[Any]
) -> dict[str, list[float]]:
    """The losses of each variant's first steps, with which its graphs are optimized.

    Raises:
        RunError: they differ from those of another variant.
    """
    losses: dict[str, list[float]] = {}
    for one in asked:
        with fusion.fused() if one.enable else nullcontext():
            losses[one.name] = [steps[one.name].train(*batch)[0] for batch in batches]
        # Missing ids have a row in stock layers alone, whose zeros change with the first step.
        for other in (asked[0], next(base for base in asked if base.is_stock == one.is_stock)):
            count = len(batches) if other.is_stock == one.is_stock else 1
            wanted = losses[other.name][:count]
            _check_losses(one.name, losses[one.name][:count], other.name, wanted)
    return losses


def _check_losses(name: str, found: list[float], base: str, wanted: list[float]) -> None:
    for step, (own, other) in enumerate(zip(found, wanted, strict=True), 1):
        if abs(own - other) > _TOLERANCE * abs(other):
            raise RunError(f"the loss of step {step} is {own} with {name}, {other} with {base}")


def _timed(train: Callable[..., Any], batches: list[Any], steps: int) -> float:
    """Seconds per step."""
    start = time.perf_counter()
    for features, labels in islice(cycle(batches), steps):
        train(features, labels)
    return (time.perf_counter() - start) / steps


def _told(seconds: list[float], base: list[float], options: Options) -> dict[str, Any]:
    ratios = [other / own for own, other in zip(seconds, base, strict=True)]
    middle = statistics.median(seconds)
    return {
        "milliseconds": 1e3 * middle,
        "samples_per_second": options.batch_size / middle,
        "speedup": [min(ratios), statistics.median(ratios), max(ratios)],
    }
