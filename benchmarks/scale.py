"""What tables that are split by rows send over many replicas: a model, nothing is measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from benchmarks.markdown import table as markdown
from fusion.distribute import Table, Traffic, expected_distinct_ids
from fusion.distribute.text import size
from fusion.distribute.traffic import (
    replicated_traffic,
    row_sharded_messages,
    row_sharded_traffic,
)

#: Rows of the tables of MLPerf Training's DLRM-DCNv2: Criteo's 1TB logs, at most 40 million each.
#: They are `--num_embeddings_per_feature` of mlcommons/training, recommendation_v2/torchrec_dlrm.
ROWS = (
    *(40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956),
    *(405_282, 10, 2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000),
    *(590_152, 12_973, 108, 36),
)


def report(replicas: Sequence[int], batch: int, dimension: int, alpha: float) -> str:
    """Two tables in Markdown: bytes that a replica sends in a step, and messages.

    Args:
        replicas: numbers of them, a row each.
        batch: samples of a step on all replicas together, with one id for each table.
        dimension: of each table.
        alpha: exponent of Zipf's law of the ids, beside uniform ones.
    """
    tables = [Table(f"C{i}", rows, dimension) for i, rows in enumerate(ROWS, 1)]
    laws = {"uniform": None, f"Zipf, {alpha:g}": alpha}
    return "\n\n".join((_bytes(tables, replicas, batch, laws), _messages(tables, replicas, batch)))


def _bytes(
    tables: Sequence[Table], replicas: Sequence[int], batch: int, laws: dict[str, float | None]
) -> str:
    names = ("replicas", "tables on each", "ids", "distinct ids of each", "sent: ids", "rows")
    lines = []
    for count in replicas:
        memory = size(sum(table.elements * table.item_bytes for table in tables) / count)
        for name, alpha in laws.items():
            split = _sum(row_sharded_traffic(table, count, batch, alpha) for table in tables)
            copied = _sum(replicated_traffic(table, count, batch, alpha) for table in tables)
            sizes = (split.ids, split.rows, split.gradients, split.counts, split.total)
            distinct = f"{_distinct(tables, batch / count, alpha):,.0f}"
            lines.append((f"{count:,}", memory, name, distinct, *map(size, (*sizes, copied.total))))
    return markdown((*names, "gradients", "counts", "in all", "if replicated"), lines)


def _messages(tables: Sequence[Table], replicas: Sequence[int], batch: int) -> str:
    lines = []
    for count in replicas:
        shared = row_sharded_messages(count)
        ids = _distinct(tables, batch / count, None) / count
        of_tables = f"{shared * len(tables):,}", _few(ids / len(tables))
        lines.append((f"{count:,}", *of_tables, f"{shared:,}", _few(ids)))
    names = ("each table exchanges: messages", "ids in one", "tables share exchanges: messages")
    return markdown(("replicas", *names, "ids in one"), lines)


def _few(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def _distinct(tables: Sequence[Table], samples: float, alpha: float | None) -> float:
    return sum(expected_distinct_ids(table.rows, samples, alpha) for table in tables)


def _sum(parts: Iterable[Traffic]) -> Traffic:
    return Traffic(*np.sum([*parts], axis=0).tolist())
