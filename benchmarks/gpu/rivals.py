"""The GPU workloads by others: torch's embedding_bag in a loop, FBGEMM's batched tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.lookups.bags_side import batched_bags

if TYPE_CHECKING:
    from benchmarks.gpu.prepared import Prepared


def torch_milliseconds(prepared: Prepared, repeats: int) -> float | None:
    """The time of torch's embedding_bag, column by column; None without torch."""
    torch = prepared.memory.torch
    if torch is None:
        return None
    bag = torch.nn.functional.embedding_bag
    given = list(zip(prepared.workload.columns, prepared.tables, prepared.held, strict=True))

    def call() -> None:
        for column, table, (ids, splits) in given:
            bag(ids, table, splits, mode=column.combiner, include_last_offset=True)

    return prepared.memory.milliseconds(call, repeats)


def fbgemm_milliseconds(prepared: Prepared, repeats: int) -> float | None:
    """The time of FBGEMM's table-batched bags, all columns in one call; None without it.

    Neither where the columns' combiners differ: a call has one.
    """
    torch, columns = prepared.memory.torch, prepared.workload.columns
    if torch is None or len({column.combiner for column in columns}) > 1:
        return None
    ends = np.cumsum([0, *(ids.size for ids in prepared.ids)])
    starts = [one[:-1] + end for one, end in zip(prepared.splits, ends[:-1], strict=True)]
    offsets = torch.from_numpy(np.concatenate([*starts, ends[-1:]]).astype(np.int32)).cuda()
    ids = torch.from_numpy(np.concatenate(prepared.ids).astype(np.int32)).cuda()
    try:
        shapes = [(column.rows, column.dim) for column in columns]
        bags = batched_bags(shapes, "cuda", columns[0].combiner)
        return prepared.memory.milliseconds(lambda: bags(ids, offsets), repeats)
    except (ImportError, OSError, RuntimeError):  # it may be there for CPUs alone
        return None
