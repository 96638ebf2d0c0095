from __future__ import annotations

from benchmarks.tables import measure


def test_small_tables() -> None:
    growth, *rows = measure(3000, 8, 0.01)
    assert growth.key == {"new keys of a step": 208, "until there are": 3000}
    lookups = [row.values for row in rows if "lookup" in row.key]
    steps = [row.key["step of Adagrad"] for row in rows if "lookup" not in row.key]
    assert len(lookups) == 5
    assert lookups[0]["times ours"] == 1
    assert steps == ["EmbeddingVariable", "plain table"]
