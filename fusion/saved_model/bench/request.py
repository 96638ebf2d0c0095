"""What is to be measured, on its way to the process that does it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class BenchRequest:
    """What is to be measured.

    Attributes:
        models: the paths of one or two models.
        tags, signature: the signature's, for each model.
        batches: examples per call.
        clients: numbers of threads that call.
        seconds: for how long each model is called under each load.
        inputs: a file with the inputs, instead of generated ones of those batch sizes.
        batch_size: how many Examples of a TFRecord file of inputs are a batch.
        tolerance: see `compare_models`.
        threads: of each of TensorFlow's pools; None for as many as there are processors.
    """

    models: tuple[str, ...]
    tags: tuple[str, ...]
    signature: str
    batches: tuple[int, ...]
    clients: tuple[int, ...]
    seconds: float
    inputs: str | None
    batch_size: int
    tolerance: float
    threads: int | None

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, ready for JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(plain: dict[str, Any]) -> BenchRequest:
        """Returns the request that gave `plain`, also after its way through JSON."""
        tuples = {key: tuple(value) for key, value in plain.items() if isinstance(value, list)}
        return BenchRequest(**{**plain, **tuples})
