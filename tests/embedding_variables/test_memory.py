"""How much memory embedding variables take."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion import ops

v1 = tf.compat.v1

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
    with variable.beside():
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


def _resident_bytes() -> int:
    (size,) = re.findall(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(size) << 10


# The first one has too little to take all memory, should it be copied.
@pytest.mark.parametrize("capacity", [2**24, None], ids=str)
def test_initializers_of_a_graph_make_variables_anew_and_copy_nothing(capacity):
    with tf.Graph().as_default(), v1.Session() as session:
        variable = fusion.EmbeddingVariable("t", 16, capacity=capacity)
        keys = v1.placeholder(tf.int64, [None])
        loss = tf.reduce_sum(variable.embedding_lookup(keys))
        train = v1.train.AdagradOptimizer(0.1).minimize(loss)
        known = ops.embedding_key_entries(index=variable.index.handle).keys
        initialize = v1.global_variables_initializer()
        session.run(initialize)
        found = []
        for first in (7, 8, 7):  # the rows belong to others each time
            some = [first, 1, 2, 3]
            found.append([session.run((train, loss), {keys: some})[1] for _ in range(3)])
            assert sorted(session.run(known)) == sorted(some)
            before = _resident_bytes()
            session.run(initialize)
            session.run(variable.index.initializer)
            assert session.run(known).size == 0
            assert _resident_bytes() - before < 1 << 28
        assert found[0] == found[2] != found[1]
