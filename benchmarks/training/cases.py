"""What is trained: a model of embeddings and dense layers, by framework, optimizer and rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Literal

from benchmarks.inputs import Distribution

Framework = Literal["keras", "tf_keras", "compat.v1"]
FRAMEWORKS: tuple[Framework, ...] = ("keras", "tf_keras", "compat.v1")

SLOTS = {"sgd": 0, "adagrad": 1, "adam": 2, "momentum": 1, "rmsprop": 2, "ftrl": 2, "lion": 1}
"""Optimizers, and how many variables of a table's size each keeps at most."""

#: What is measured if nothing else is asked for.
_OPTIMIZERS = ("sgd", "adagrad", "adam")
_ROWS: dict[Framework, tuple[int, ...]] = {
    "keras": (10_000, 100_000, 1_000_000),
    "tf_keras": (100_000,),
    "compat.v1": (100_000,),
}

#: What stock's time over the fused one's should be at least.
_LEAST: dict[tuple[str, str, int], float] = {
    ("keras", "sgd", 10_000): 1.3,
    ("keras", "sgd", 1_000_000): 10.0,
    ("keras", "adagrad", 10_000): 3.0,
    ("keras", "adagrad", 1_000_000): 30.0,
    ("keras", "adam", 10_000): 1.5,
    ("keras", "adam", 1_000_000): 2.5,
    **{
        (framework, optimizer, 100_000): 1.3
        for framework in ("tf_keras", "compat.v1")
        for optimizer in _OPTIMIZERS
    },
}

ROWS_OF_BATCH = ("sgd", "adagrad", "ftrl")
"""Optimizers that leave rows outside the batch as they are: no fused step of theirs allocates what
a table has, nor takes longer for more rows."""
_SMALL, _LARGE = 10_000, 1_000_000
MOST_GROWTH = 1.5
"""What a fused step of tables of 1,000,000 rows may take, over one of tables of 10,000."""

#: Steps after which losses and variables are compared; fewer where each takes a second.
_STEPS, _STEPS_OF_LARGE = 200, 20


@dataclasses.dataclass(frozen=True)
class Case:
    """Embeddings of one id per row side by side, dense layers, and one logit.

    Attributes:
        framework: "keras" is Keras 3.
        optimizer: one of `SLOTS`.
        rows: of each table.
        steps: after which losses and variables are compared.
        columns: how many tables.
        dim: of each table.
        batch: rows of a batch.
        hidden: units of the dense layers.
        batches: how many different ones there are.
        distribution: of the ids.
        reference_rows: of another fused model, whose steps take turns with the others'; None for
            no such model.
        least: what stock's time over the fused one's should be, or None.

    Raises:
        ValueError: the optimizer is not known, or the framework has none of that name.
    """

    framework: Framework
    optimizer: str
    rows: int
    steps: int = _STEPS
    columns: int = 26
    dim: int = 16
    batch: int = 512
    hidden: tuple[int, ...] = (256, 256, 256)
    batches: int = 200
    distribution: Distribution = "uniform"
    reference_rows: int | None = None
    least: float | None = None

    def __post_init__(self) -> None:
        if self.optimizer not in SLOTS:
            raise ValueError(f"optimizer must be one of {', '.join(SLOTS)}, got {self.optimizer!r}")
        if (self.framework, self.optimizer) == ("compat.v1", "lion"):
            raise ValueError("tf.compat.v1.train has no optimizer lion")
        for name in ("rows", "steps", "columns", "dim", "batch", "batches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def title(self) -> str:
        """What it is, in a few words."""
        return f"{self.framework} {self.optimizer}, {self.rows:,} rows, {self.distribution}"

    @property
    def table_bytes(self) -> int:
        """Bytes of one table, float32."""
        return 4 * self.rows * self.dim

    @property
    def bytes_needed(self) -> int:
        """Bytes of tables and slots of both sides, and of what stock's step copies beside them.

        A stock step reads whole tables, each into a copy, and a sweeping optimizer makes tensors
        of a table's size for some of them at once.
        """
        return self.columns * self.table_bytes * (2 * (1 + SLOTS[self.optimizer]) + 2)

    def fitting(self, available: int) -> Case:
        """The same with as many tables as `available` bytes of memory have space for, at least 1.

        The bound goes with tables that are left out: it is of all of them.
        """
        if self.bytes_needed <= available:
            return self
        columns = max(1, self.columns * available // self.bytes_needed)
        return dataclasses.replace(self, columns=columns, least=None)

    def small(self) -> Case:
        """A small one, to try it out: rows by a hundredth, few tables and batches, no bound."""
        return dataclasses.replace(
            self,
            rows=max(100, self.rows // 100),
            steps=min(self.steps, 10),
            columns=min(self.columns, 4),
            hidden=(32,),
            batches=min(self.batches, 8),
            reference_rows=None if self.reference_rows is None else 100,
            least=None,
        )


def select(
    frameworks: Sequence[Framework] = (),
    optimizers: Sequence[str] = (),
    rows: Sequence[int] = (),
    distribution: Distribution = "uniform",
) -> Iterator[Case]:
    """Yields the cases of these frameworks, optimizers and rows; of none, those with bounds."""
    for framework in frameworks or FRAMEWORKS:
        for optimizer in optimizers or _OPTIMIZERS:
            if (framework, optimizer) == ("compat.v1", "lion") and len(frameworks) != 1:
                continue
            for count in rows or _ROWS[framework]:
                is_large = count >= _LARGE
                is_flat = framework == "keras" and optimizer in ROWS_OF_BATCH and is_large
                yield Case(
                    framework,
                    optimizer,
                    count,
                    steps=_STEPS_OF_LARGE if is_large else _STEPS,
                    distribution=distribution,
                    reference_rows=_SMALL if is_flat else None,
                    least=_LEAST.get((framework, optimizer, count)),
                )
