"""What tables that are split by rows send over many replicas: a model, nothing is measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from benchmarks.case import Row
from fusion.distribute import Table, Traffic, expected_distinct_ids
from fusion.distribute.traffic import (
    replicated_traffic,
    row_sharded_messages,
    row_sharded_traffic,
)
from fusion.printable import size

#: Rows of the tables of MLPerf Training's DLRM-DCNv2: Criteo's 1TB logs, at most 40 million each.
#: They are `--num_embeddings_per_feature` of mlcommons/training, recommendation_v2/torchrec_dlrm.
ROWS = (
    *(40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956),
    *(405_282, 10, 2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000),
    *(590_152, 12_973, 108, 36),
)


def measure(replicas: int, batch: int, dimension: int, alpha: float) -> Iterator[Row]:
    """Yields bytes that a replica sends in a step, and messages.

    Args:
        replicas: how many there are.
        batch: samples of a step on all replicas together, with one id for each table.
        dimension: of each table.
        alpha: exponent of Zipf's law of the ids, beside uniform ones.
    """
    tables = [Table(f"C{i}", rows, dimension) for i, rows in enumerate(ROWS, 1)]
    memory = size(sum(table.elements * table.item_bytes for table in tables) / replicas)
    for name, law in {"uniform": None, f"Zipf, {alpha:g}": alpha}.items():
        split = _sum(row_sharded_traffic(table, replicas, batch, law) for table in tables)
        copied = _sum(replicated_traffic(table, replicas, batch, law) for table in tables)
        sent = {"sent: ids": split.ids, "rows": split.rows, "gradients": split.gradients}
        sent |= {"counts": split.counts, "in all": split.total, "if replicated": copied.total}
        distinct = f"{_distinct(tables, batch / replicas, law):,.0f}"
        yield Row(
            {"replicas": replicas, "tables on each": memory, "ids": name},
            {"distinct ids of each": distinct, **{k: size(one) for k, one in sent.items()}},
        )
    shared, ids = row_sharded_messages(replicas), _distinct(tables, batch / replicas, None)
    values = {
        "each table exchanges: messages": f"{shared * len(tables):,}",
        "ids in one": _few(ids / replicas / len(tables)),
        "tables share exchanges: messages": f"{shared:,}",
        "ids in one of these": _few(ids / replicas),
    }
    yield Row({"replicas": replicas}, values)


def _few(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def _distinct(tables: Sequence[Table], samples: float, alpha: float | None) -> float:
    return sum(expected_distinct_ids(table.rows, samples, alpha) for table in tables)


def _sum(parts: Iterable[Traffic]) -> Traffic:
    return Traffic(*np.sum([*parts], axis=0).tolist())
