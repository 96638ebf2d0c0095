"""What the threads do over and over: lookups whose results are known bit by bit."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from fusion.lookup import VERSIONS
from fusion.ops.common import COMBINERS, FLOATS, IDS
from fusion.saved_model import fuse_saved_model
from tests import reference
from tests.differential import compare, ours
from tests.differential.case import Case
from tests.differential.run import outcome
from tests.saved_model import models

Bits = tuple[bytes, ...]


@dataclass(frozen=True)
class Job:
    """Something to do and the bits it must give, or the error; `weight` is how often it is done."""

    kind: str
    label: str
    weight: float
    run: Callable[[], Bits]
    expected: Bits | type[Exception]

    def check(self) -> str | None:
        """Does it once; the result is what was wrong."""
        try:
            actual = self.run()
        except Exception as error:
            if isinstance(self.expected, type) and isinstance(error, self.expected):
                return None
            return f"{type(error).__name__}: {error}"
        if isinstance(self.expected, type):
            return f"no {self.expected.__name__}"
        return None if actual == self.expected else "other bits"


def random_case(rng: np.random.Generator, mode: str) -> Case:
    """Any lookup with finite numbers, of a size at which calls are short."""
    count = int(rng.integers(0, 12))
    shards = int(rng.choice([1, 1, 2, 3]))
    weighted = rng.random() < 0.4
    return Case(
        version=str(rng.choice(VERSIONS)),
        mode=mode,
        table=str(rng.choice(["variables", "tensors"] if shards > 1 else ["variable", "tensor"])),
        shards=shards,
        strategy=str(rng.choice(["div", "mod"])),
        rows=int(rng.choice([3, 20, 100])),
        dim=int(rng.choice([1, 3, 8, 16, 32])),
        dtype=str(rng.choice(FLOATS)),
        ids_dtype=str(rng.choice(IDS)),
        lengths=tuple(rng.choice([0, 1, 2, 5, 9, 30], count).tolist()),
        shuffled=bool(rng.integers(2)),
        negative=float(rng.choice([0.0, 0.2])),
        weights=str(rng.choice(["sparse", "tensor"])) if weighted else None,
        combiner=str(rng.choice(COMBINERS)),
        max_norm=None if rng.random() < 0.6 else float(rng.choice([0.0, 0.7, 3.0])),
        default_id=None if rng.integers(2) else int(rng.integers(3)),
        seed=int(rng.integers(2**32)),
    )


def verified_bits(case: Case) -> Bits:
    """The bits of a lookup that agrees with stock TensorFlow.

    Raises:
      Mismatch: it does not agree.
    """
    if not compare.check(case):
        raise AssertionError(f"there is nothing to compare: {case!r}")
    return outcome(case, ours.lookup).to_bytes()


def fresh(case: Case, expected: Bits) -> Job:
    """A lookup, forward and backward, with variables and graph of its own each time."""
    kind = {"eager": "eager", "function": "traced", "session": "new session"}[case.mode]
    weight = 1.0 if case.mode == "eager" else 0.05

    def run() -> Bits:
        return outcome(case, ours.lookup).to_bytes()

    return Job(kind, repr(case), weight, run, expected)


def shared(case: Case, expected: Bits) -> Job:
    """A lookup in one concrete function, or one session, that all threads call."""
    prepared: list[Callable[[], Any]] = []

    def prepare(mode: str, build: Callable[..., Any], arrays: Any, make: Any) -> Any:
        prepared.append(reference.prepare(mode, build, arrays, make))
        return prepared[0]()

    def run() -> Bits:
        return outcome(case, ours.lookup, lambda *_: prepared[0]()).to_bytes()

    outcome(case, ours.lookup, prepare)
    return Job(f"shared {case.mode}", repr(case), 1.0, run, expected)


def refused(case: Case) -> Job:
    """A lookup with an id that is outside the table."""
    bad = replace(case, lengths=(*case.lengths, 1))
    bad.arrays.values[-1] = bad.rows

    def run() -> Bits:
        return outcome(bad, ours.lookup).to_bytes()

    return Job("refused", repr(bad), 0.2, run, tf.errors.InvalidArgumentError)


def saved_model(seed: int) -> Job:
    """A signature of a rewritten SavedModel, which gives the bits of the stock one."""
    rng = np.random.default_rng(seed)
    items, shops = (_sparse(rng, rows) for rows in (models.ROWS, 2 * models.ROWS))
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    models.tf2_module(folder / "stock")
    fuse_saved_model(folder / "stock", folder / "fused", verify=False)
    stock, fused = (tf.saved_model.load(str(folder / name)) for name in ("stock", "fused"))

    def run(model: Any) -> Bits:
        return (model.embedding(items, shops)["embedding"].numpy().tobytes(),)

    return Job("rewritten model", f"seed {seed}", 2.0, lambda: run(fused), run(stock))


def _sparse(rng: np.random.Generator, rows: int) -> tf.SparseTensor:
    arrays = reference.sparse(rng, rng.integers(0, 12, 20).tolist(), rows, negative=0.1)
    return tf.SparseTensor(arrays["indices"], arrays["values"], arrays["dense_shape"])


def verified(seed: int, counts: dict[str, int], **fixed: Any) -> list[tuple[Case, Bits]]:
    """Random lookups, so many of each mode, and their bits; keyword arguments are for all."""
    rng = np.random.default_rng(seed)
    cases = [
        replace(random_case(rng, mode), **fixed)
        for mode, count in counts.items()
        for _ in range(count)
    ]
    return [(case, verified_bits(case)) for case in cases]


def all_jobs(seed: int) -> list[Job]:
    """Jobs of every kind."""
    new = verified(seed + 1, {"eager": 40, "function": 5, "session": 5})
    kept = verified(seed + 2, {"function": 20, "session": 10})
    bad = verified(seed + 3, {"eager": 3, "function": 1, "session": 1})
    return [
        *(fresh(*pair) for pair in new),
        *(shared(*pair) for pair in kept),
        *(refused(case) for case, _ in bad),
        *(saved_model(seed + k) for k in range(2)),
    ]
