"""Calls of requests: a signature with repeated rows beside those that take each request once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np

from fusion.saved_model.bench.feeds import Feeds, read_feeds
from fusion.saved_model.bench.plans import Batch, Plan
from fusion.saved_model.bench.report import batch_text
from fusion.saved_model.bench.selection import choose_signature
from fusion.saved_model.errors import ModelError
from fusion.saved_model.inputs.signature import Signature
from fusion.saved_model.model.source import SourceModel
from fusion.saved_model.verify.requests import (
    REQUEST_ROUNDING,
    RequestCheck,
    first_rows,
    recorded_checks,
    request_batch,
)

Requests = Sequence[tuple[int, int]]
"""Numbers of requests, and of the candidates of each."""


def check_requests(requests: Requests) -> None:
    """Raises ValueError if there is a batch without requests or candidates, or one twice."""
    pairs = [tuple(one) for one in requests]
    if any(len(one) != 2 or min(one) < 1 for one in pairs) or len({*pairs}) < len(pairs):
        raise ValueError(f"requests must be different pairs of numbers from 1 on, got {pairs}")


def rows_of(batch: tuple[int, int]) -> int:
    """Returns how many candidates the requests of a batch have."""
    requests, candidates = batch
    return requests * candidates


def original_of(model: SourceModel) -> str | None:
    """Returns the only signature that others of the model take requests of."""
    names = {check.of for check in recorded_checks(model)}
    return names.pop() if len(names) == 1 else None


def request_signatures(
    model: SourceModel, original: Signature, requests: Requests
) -> dict[bool, tuple[RequestCheck, Signature]]:
    """Returns the signatures for one request, and for several, that are needed.

    Raises:
        ModelError: the model has no such signature by its record.
    """
    recorded = [one for one in recorded_checks(model) if one.of == original.name]
    checks = {not one.counts: one for one in recorded if not one.lists}
    needed = {count == 1 for count, _ in requests}
    if not needed <= checks.keys():
        raise ModelError(
            f"{model.path}: no signature takes requests of {original.title!r}; "
            "`fusion rewrite --request-inputs` adds them, and its fusion.json names them"
        )
    return {
        is_one: (checks[is_one], choose_signature(model, original.tags, checks[is_one].name))
        for is_one in sorted(needed, reverse=True)
    }


def read_rows(
    path: str | os.PathLike[str],
    model: SourceModel,
    signature: Signature,
    requests: Requests,
    batch_size: int,
) -> dict[int, Feeds]:
    """Returns the first rows of a file of recorded inputs, by their number.

    Raises:
        ModelError: see `read_feeds`; or there are too few.
    """
    needed = {rows_of(batch): batch for batch in requests}
    feeds = read_feeds(path, model, signature, max(batch_size, *needed))
    ((size, arrays),) = feeds.items()
    if max(needed) > size:
        text = batch_text(max(needed), needed[max(needed)][0])
        raise ModelError(f"{path}: {text} takes {max(needed)} rows, and its first batch has {size}")
    return {rows: first_rows(signature, arrays, rows) for rows in needed}


def request_plans(
    requests: Requests, original: Signature, model: SourceModel, rows: Mapping[int, Feeds]
) -> list[Plan]:
    """Returns what is called with what: one request at a time, then several.

    Args:
        requests: the batches.
        original: the signature that takes a row of the request for each candidate.
        model: the one whose signatures take requests once.
        rows: inputs of the original, by their number of rows.
    """
    plans = []
    for is_one, (check, own) in request_signatures(model, original, requests).items():
        feeds = dict[Batch, Sequence[Feeds]]()
        for count, candidates in requests:
            if (count == 1) is is_one:
                counts, size = np.full(count, candidates), count * candidates
                feeds[Batch(size, count)] = request_batch(check, original, dict(rows[size]), counts)
        plans.append(Plan((original, own), feeds, REQUEST_ROUNDING, check.names))
    return plans
