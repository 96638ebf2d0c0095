"""Calls of FusedEmbeddingUpdate beside stock's ops."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from fusion.ops.updates.cpu_kernels.lowering import Inputs, lower
from fusion.schema.update_program import parse
from tests.update_programs import PROGRAMS, counts, result_count, run_stock, same

ADAM = PROGRAMS["k3_adam"]
SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-310, 1e30)
INVALID = tf.errors.InvalidArgumentError


class Case:
    """Variables, of which both sides have their own, and the inputs of a call."""

    def __init__(
        self, text, rows, dim, count, *, dtype="float32", tid="int32", special=False, seed=0
    ):
        self.text, self.rng, self.dtype = text, np.random.default_rng(seed), dtype
        self.rows, self.dim, self.special, self.counts = rows, dim, special, counts(text)
        slots = [self.floats((rows, dim)) for _ in range(max(1, self.counts["v"]))]
        slots = [slots[0], *(np.abs(slot) for slot in slots[1:])]
        self.start = slots
        self.counts["v"] = len(slots)
        self.scalars = [tf.constant(value, dtype) for value in (0.1, 0.01, 0.5, 1e-7, 0.02)]
        # One that is not used tells TensorFlow's function the dtype.
        self.scalars = self.scalars[: max(self.counts["s"], not self.counts["x"])]
        few = max(1, min(rows, count // 3))
        ids = self.rng.choice(rows, few, replace=False)[self.rng.integers(0, few, count)]
        self.ids = tf.constant(ids if count else [], tid)
        self.offsets = [int(self.rng.integers(-1, 4)) for _ in range(self.counts["x"])]
        self.wide = [self.matrix(count, offset) for offset in self.offsets]
        self.values = [
            tf.constant(wide[:count, max(offset, 0) :][:, :dim])
            for wide, offset in zip(self.wide, self.offsets, strict=True)
        ]

    def matrix(self, count, offset):
        """The entries alone, or with more rows and columns."""
        more = (0, 0) if offset < 0 else (int(self.rng.integers(0, 3)), offset + 2)
        return self.floats((count + more[0], self.dim + more[1]))

    def floats(self, shape):
        values = self.rng.normal(size=shape)
        if self.special:
            where = self.rng.random(shape) < 0.2
            values = np.where(where, self.rng.choice(SPECIAL, shape), values)
        return values.astype(self.dtype)

    def variables(self):
        return [tf.Variable(value) for value in self.start]

    def code(self, *, deduplicates=False):
        """What the program is lowered to."""
        counted = self.counts["v"], len(self.wide), len(self.scalars), result_count(self.text)
        return lower(self.text, Inputs(*counted, deduplicates))

    def update(self, variables, sparse=None, **changed):
        inputs = {
            "handles": [variable.handle for variable in variables],
            "ids": self.ids,
            "values": [tf.constant(value) for value in self.wide],
            "scalars": self.scalars,
            "dim": self.dim,
            "offsets": self.offsets,
            "sparse": [False] * len(variables) if sparse is None else sparse,
            "program": self.text,
            "code": self.code(deduplicates=changed.get("deduplicate", False)),
            "num_results": result_count(self.text),
        }
        return ops.fused_embedding_update(**inputs | changed)

    def check(self, steps=2, sparse=None, **attrs):
        ours, stock = self.variables(), self.variables()
        any_zero = "max" in self.text or "min" in self.text
        ids, values = self.ids, self.values
        if attrs.get("wrap_negative"):
            ids = tf.where(ids < 0, ids + self.rows, ids)
        if attrs.get("deduplicate"):
            ids, index = tf.unique(ids)
            values = [tf.math.unsorted_segment_sum(v, index, tf.size(ids)) for v in values]
        for _ in range(steps):
            results = self.update(ours, sparse, **attrs)
            expected = run_stock(parse(self.text), stock, ids, values, self.scalars)
            pairs = [*zip(ours, stock, strict=True), *zip(results, expected, strict=True)]
            for index, (one, other) in enumerate(pairs):
                assert same(one.numpy(), other.numpy(), any_zero=any_zero), index


def refused(case, variables, error, match, **changed):
    """Whether a call raises and leaves the variables as they were."""
    before = [variable.numpy() for variable in variables]
    with pytest.raises(error, match=match):
        case.update(variables, **changed)
    return all(same(v.numpy(), old) for v, old in zip(variables, before, strict=True))
