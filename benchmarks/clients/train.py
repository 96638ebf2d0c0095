"""Trains one model, stock and under fusion, after a comparison, in turns.

python -m benchmarks.clients.train MODEL RESULT.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.clients.models import BATCH
from benchmarks.clients.trainings import TRAININGS
from benchmarks.training.measure import control, paired, timed
from benchmarks.training.sides import FitSide

_SECONDS, _STEPS = 15.0, 50


def train(name: str, steps: int = _STEPS, seconds: float = _SECONDS) -> dict[str, Any]:
    """Returns what is said of a training: see `paired` and `timed` of `benchmarks.training`."""
    training = TRAININGS[name]
    dataset = training.dataset()
    first = training.build()
    values = first.get_weights()

    def side() -> FitSide:
        model = training.build()
        # Not all of their initial values are seeded.
        model.set_weights(values)
        return FitSide(model, dataset)

    stock, fused = FitSide(first, dataset), side()
    found = paired(stock, fused, steps, _say)
    if not found["compared"]["equal"]:
        found["control"] = control(side, steps, _say)
    return {
        "model": name,
        "library": training.library,
        "optimizer": training.optimizer,
        "batch": BATCH,
        "least": training.least,
        **found,
        **timed({"stock": stock, "fused": fused}, seconds),
    }


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(train(sys.argv[1]), indent=1) + "\n")
