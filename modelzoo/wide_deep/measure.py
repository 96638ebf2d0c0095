"""Comparing two models that run in two processes: their bits, and their time."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from modelzoo.wide_deep.worker import ModelProcess, Request

BLOCKS = 7
CALLS = 20
CAPTION = (
    f"Milliseconds per call, arguments and results included: median ± half the interquartile "
    f"range of {BLOCKS * CALLS} calls. Speedup: median (range) over {BLOCKS} blocks of {CALLS} "
    f"calls, the models taking turns. embed: the embedding part alone."
)


def difference(
    expected: Mapping[str, npt.NDArray[Any]], actual: Mapping[str, npt.NDArray[Any]]
) -> str | None:
    """Says how two models' outputs differ, None if they are the same bit for bit."""
    if expected.keys() != actual.keys():
        return f"the outputs are {sorted(actual)}, expected {sorted(expected)}"
    for name, wanted in expected.items():
        got = actual[name]
        if (wanted.shape, wanted.dtype) != (got.shape, got.dtype):
            return (
                f"output {name} is {got.dtype} {got.shape}, expected {wanted.dtype} {wanted.shape}"
            )
        if wanted.tobytes() != got.tobytes():
            bits = f"u{wanted.dtype.itemsize}"
            count = int(np.sum(wanted.view(bits) != got.view(bits)))
            gap = np.max(np.abs(wanted - got), initial=0.0)
            return f"output {name} differs in {count} of {wanted.size} values, by up to {gap:.3g}"
    return None


@dataclasses.dataclass(frozen=True)
class Pair:
    """Times of two models on the same calls.

    Attributes:
        before: seconds of each call of the first model.
        after: seconds of each call of the second.
        ratios: per block of calls, the first model's median over the second's.
    """

    before: list[float]
    after: list[float]
    ratios: list[float]

    @property
    def speedup(self) -> float:
        """How many times faster the second model is: the median over the blocks."""
        return float(np.median(self.ratios))


def interleaved(
    before: ModelProcess, after: ModelProcess, request: Request, blocks: int = BLOCKS
) -> Pair:
    """Times both models in alternating blocks of calls, after one block each to warm up."""
    for model in (before, after):
        model.ask("seconds", request, CALLS)
    pair = Pair([], [], [])
    for block in range(blocks):
        models = [(before, pair.before), (after, pair.after)]
        # Whoever runs second finds the caches and the clock as the other left them.
        medians = {}
        for model, times in models if block % 2 == 0 else reversed(models):
            seconds = model.ask("seconds", request, CALLS)
            times.extend(seconds)
            medians[model] = np.median(seconds)
        pair.ratios.append(float(medians[before] / medians[after]))
    return pair
