from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np

from fusion.saved_model.verify.outcome import Outcome, OutcomeWriter, read_outcomes
from fusion.saved_model.verify.values import same_bits


def test_outcomes_survive_the_disk(tmp_path: Path):
    tensors = {
        "f": np.array([[1.5, np.nan], [-0.0, np.inf]], np.float32),
        "b": np.array([1.5, -2], ml_dtypes.bfloat16),
        "s": np.array([b"", b"\x00\xff\x00"], dtype=object),
        "e": np.zeros([0, 3], np.int64),
    }
    good = Outcome("session", "serving_default", "batch 1", tuple(tensors), varying=("f",))
    bad = Outcome("session", "serving_default", "batch 2", error="OutOfRangeError", message="x")
    writer = OutcomeWriter(tmp_path)
    writer.write(good, tensors)
    writer.write(bad, {})
    writer.close()
    (first, values), (second, nothing) = read_outcomes(tmp_path)
    assert (first, second, nothing) == (good, bad, {})
    assert values.keys() == tensors.keys()
    for key, array in tensors.items():
        assert values[key].dtype == array.dtype
        assert values[key].shape == array.shape
        assert same_bits(values[key], array).all()
