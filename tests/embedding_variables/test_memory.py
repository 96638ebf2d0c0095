"""How much memory embedding variables take."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import fusion

#: Mappings of this test are larger than anything else that is mapped on demand.
_LARGE = 1 << 30


def mapped_bytes() -> int:
    """What is in use of large memory that is mapped on demand (`nr` in smaps, see proc(5))."""
    found = 0
    for part in re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
        sizes = {name: int(kib) << 10 for name, kib in re.findall(r"(\w+): +(\d+) kB", part)}
        if sizes.get("Size", 0) > _LARGE and re.search(r"VmFlags:.* nr\b", part):
            found += sizes["Rss"]
    return found


@pytest.mark.parametrize(("dimension", "slots"), [(1, 0), (16, 0), (16, 1), (64, 2)])
def test_rows_take_little_more_than_their_numbers(dimension, slots):
    rows = 2_000_000
    before = mapped_bytes()
    variable = fusion.EmbeddingVariable("t", dimension, default_value=1.0)
    zeros = fusion.tables.initial_rows.ZerosOnDemand()
    others = [tf.Variable(zeros(variable.table.shape)) for _ in range(slots)]

    @tf.function
    def train(keys: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            found = variable.embedding_lookup(keys)
        slices = tape.gradient(found, variable.table)
        for slot in others:
            slot.scatter_add(slices)

    keys = np.random.default_rng(0).permutation(rows) * 7919
    for some in np.split(keys, 20):
        train(tf.constant(some))
    assert variable.statistics().rows == rows
    bound = 1.3 * rows * ((1 + slots) * 4 * dimension + 24)
    assert mapped_bytes() - before < bound
