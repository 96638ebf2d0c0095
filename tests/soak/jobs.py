"""What the threads do over and over: lookups whose results are known bit by bit."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from fusion.lookup import VERSIONS
from fusion.saved_model import fuse_saved_model
from fusion.schema.attributes import COMBINERS, FLOATS, IDS
from tests import reference
from tests.differential import compare, ours
from tests.differential.case import Case
from tests.differential.run import outcome
from tests.saved_model import models

Bits = tuple[bytes, ...]

#: How many lookups of each mode are done with variables and graphs of their own.
_FRESH = {"eager": 40, "function": 5, "session": 5}

#: With how many batches each shared function is called.
_CALLS_OF_EACH = 3


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


def shared(known: list[tuple[Case, Bits]]) -> list[Job]:
    """Lookups in one concrete function, or one session, that all threads call.

    The cases differ in their numbers only, and their tables are fed: whoever gets the result of
    another call gets other bits.
    """
    prepared: list[Callable[..., Any]] = []

    def prepare(mode: str, build: Callable[..., Any], arrays: Any, make: Any) -> Any:
        prepared.append(reference.prepare(mode, build, arrays, make))
        return prepared[0](arrays)

    def job(case: Case, expected: Bits) -> Job:
        def run() -> Bits:
            call = lambda mode, build, arrays, make: prepared[0](arrays)  # noqa: E731
            return outcome(case, ours.lookup, call).to_bytes()

        return Job(f"shared {case.mode}", repr(case), 1.0, run, expected)

    outcome(known[0][0], ours.lookup, prepare)
    return [job(*pair) for pair in known]


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


def verified(cases: Iterable[Case]) -> list[tuple[Case, Bits]]:
    """Lookups and their bits."""
    return [(case, verified_bits(case)) for case in cases]


def random_cases(rng: np.random.Generator, counts: dict[str, int]) -> list[Case]:
    """Random lookups, so many of each mode."""
    return [random_case(rng, mode) for mode, count in counts.items() for _ in range(count)]


def all_jobs(seed: int) -> list[Job]:
    """Jobs of every kind."""
    rng = np.random.default_rng([seed, 1])
    fed = [
        [replace(case, table="fed", seed=case.seed + k) for k in range(_CALLS_OF_EACH)]
        for case in random_cases(rng, {"function": 10, "session": 5})
    ]
    return [
        *(fresh(*pair) for pair in verified(random_cases(rng, _FRESH))),
        *(job for cases in fed for job in shared(verified(cases))),
        *(refused(case) for case in random_cases(rng, {"eager": 3, "function": 1, "session": 1})),
        *(saved_model(seed + k) for k in range(2)),
    ]
