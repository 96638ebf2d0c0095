"""What is called with what: the signatures of the models, and the inputs of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fusion.saved_model.bench.feeds import Feeds
from fusion.saved_model.bench.report import batch_text
from fusion.saved_model.inputs.signature import Signature


class Batch(NamedTuple):
    """What a call is given.

    Attributes:
        rows: examples; of requests, their candidates.
        requests: how many; 0: these are no requests.
    """

    rows: int
    requests: int = 0

    def __str__(self) -> str:
        return batch_text(self.rows, self.requests)


@dataclass(frozen=True)
class Plan:
    """Signatures that take turns.

    Attributes:
        signatures: one of each model.
        feeds: for each batch the inputs of each of the signatures.
        rounding: what outputs may differ by at least, as a share of the largest element.
        request_inputs: of requests, the inputs or features that have one row for each.
    """

    signatures: Sequence[Signature]
    feeds: Mapping[Batch, Sequence[Feeds]]
    rounding: float = 0.0
    request_inputs: tuple[str, ...] = ()


def bytes_of(feeds: Feeds) -> int:
    """Returns how many bytes inputs have, those of strings without their lengths."""
    return sum(
        sum(map(len, array.ravel())) if array.dtype == object else array.nbytes
        for array in feeds.values()
    )
