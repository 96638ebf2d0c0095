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
from benchmarks.training.measure import paired, timed
from benchmarks.training.sides import FitSide

_SECONDS, _STEPS = 15.0, 50


def train(name: str, steps: int = _STEPS, seconds: float = _SECONDS) -> dict[str, Any]:
    """Returns what is said of a training: see `paired` and `timed` of `benchmarks.training`."""
    training = TRAININGS[name]
    models = [training.build() for _ in range(2)]
    # Not all of their initial values are seeded.
    models[1].set_weights(models[0].get_weights())
    dataset = training.dataset()
    stock, fused = (FitSide(model, dataset) for model in models)
    return {
        "model": name,
        "library": training.library,
        "optimizer": training.optimizer,
        "batch": BATCH,
        "least": training.least,
        **paired(stock, fused, steps, lambda line: print(line, flush=True)),
        **timed({"stock": stock, "fused": fused}, seconds),
    }


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(train(sys.argv[1]), indent=1) + "\n")
