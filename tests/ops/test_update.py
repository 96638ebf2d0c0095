"""FusedEmbeddingUpdate leaves the bits of stock's ops, one for each line of a program."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from fusion.schema.update_program import parse
from tests.update_programs import PROGRAMS, counts, run_stock, same

SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-310, 1e30)


class Case:
    """Variables, of which both sides have their own, and the inputs of a call."""

    def __init__(
        self, text, rows, dim, count, *, dtype="float32", tid="int32", special=False, seed=0
    ):
        self.text, self.rng, self.dtype = text, np.random.default_rng(seed), dtype
        self.rows, self.dim, self.special, self.counts = rows, dim, special, counts(text)
        slots = [self.floats((rows, dim)) for _ in range(self.counts["v"])]
        slots = [slots[0], *(np.abs(slot) for slot in slots[1:])]
        self.start = slots
        self.scalars = [tf.constant(value, dtype) for value in (0.1, 0.01, 0.5, 1e-7, 0.02)]
        self.scalars = self.scalars[: self.counts["s"]]
        few = max(1, min(rows, count // 3))
        ids = self.rng.choice(rows, few, replace=False)[self.rng.integers(0, few, count)]
        self.ids = tf.constant(ids if count else [], tid)
        self.offsets = [int(self.rng.integers(0, 4)) for _ in range(self.counts["x"])]
        self.wide = [self.floats((count, dim + offset + 2)) for offset in self.offsets]
        self.values = [
            tf.constant(wide[:, offset : offset + dim])
            for wide, offset in zip(self.wide, self.offsets, strict=True)
        ]

    def floats(self, shape):
        values = self.rng.normal(size=shape)
        if self.special:
            where = self.rng.random(shape) < 0.2
            values = np.where(where, self.rng.choice(SPECIAL, shape), values)
        return values.astype(self.dtype)

    def variables(self):
        return [tf.Variable(value) for value in self.start]

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
            "num_results": parse(self.text).result_count,
        }
        return ops.fused_embedding_update(**inputs | changed)

    def check(self, steps=2, sparse=None):
        ours, stock = self.variables(), self.variables()
        any_zero = "max" in self.text or "min" in self.text
        for _ in range(steps):
            results = self.update(ours, sparse)
            expected = run_stock(parse(self.text), stock, self.ids, self.values, self.scalars)
            pairs = [*zip(ours, stock, strict=True), *zip(results, expected, strict=True)]
            for index, (one, other) in enumerate(pairs):
                assert same(one.numpy(), other.numpy(), any_zero=any_zero), index


SHAPES = [(1, 1), (7, 3), (300, 5), (129, 8), (5000, 16), (64, 64)]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("count", [0, 1, 7, 600])
def test_has_the_bits_of_stock(name, count):
    for index, (rows, dim) in enumerate(SHAPES):
        dtype, tid = ("float32", "float64")[index % 2], ("int32", "int64")[index // 2 % 2]
        Case(PROGRAMS[name], rows, dim, count, dtype=dtype, tid=tid, seed=index).check()


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("tid", ["int32", "int64"])
def test_numbers_that_are_not_finite_zeros_and_denormals(name, dtype, tid):
    for seed, (rows, dim, count) in enumerate([(40, 3, 30), (500, 16, 600), (2000, 1, 7)]):
        case = Case(PROGRAMS[name], rows, dim, count, dtype=dtype, tid=tid, special=True, seed=seed)
        case.check()


@pytest.mark.parametrize("name", ["k3_sgd", "k3_adagrad", "k3_adam", "tk_adam"])
@pytest.mark.parametrize("sparse", [True, False])
def test_either_access(name, sparse):
    case = Case(PROGRAMS[name], 300, 8, 60)
    case.check(sparse=[sparse] * case.counts["v"])
    case.check(sparse=[sparse, *[not sparse] * (case.counts["v"] - 1)])
