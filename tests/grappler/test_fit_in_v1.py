"""tf_keras in the mode of TensorFlow 1, whose Session trains, validates and predicts in turn."""

from __future__ import annotations

import json
import os
import sys

from tests import zygote
from tests.grappler.fitted_in_v1 import FIELDS, SEQUENCES

PROGRAM = [sys.executable, "-m", "tests.grappler.fitted_in_v1"]

#: Steps and, of the ops that one Session runs, those of `predict` and `evaluate`, validation too.
STEPS, OTHERS = 2 * (2 * 6 + 1), 2 * (2 * 6 + 6 + 6)


def test_a_model_of_deepctr_is_fitted_validated_and_asked_with_the_same_bits() -> None:
    ran = zygote.run(
        [*PROGRAM, "adagrad", "adam"], env={**os.environ}, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout)
    assert [*seen] == ["adagrad", "adam"]
    for optimizer in seen.values():
        assert optimizer["difference"] == 0
        assert len({*optimizer["losses"]}) == 2
        calls = optimizer["calls"]
        assert calls["GroupedEmbeddingLookup"] == STEPS + OTHERS
        assert calls["FusedEmbeddingUpdate"] >= STEPS * len(FIELDS + SEQUENCES)
