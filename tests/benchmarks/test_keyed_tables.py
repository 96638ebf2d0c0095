from __future__ import annotations

from benchmarks.keyed_tables import measure, report


def test_small_tables():
    said: list[str] = []
    numbers = measure(3000, 8, 0.01, said.append)
    assert numbers["lookup_keys"] == 208
    assert len(numbers["lookups"]) == 5
    assert {*numbers["steps"]} == {"EmbeddingVariable", "plain table"}
    text = report(numbers)
    for name in numbers["lookups"]:
        assert f"| {name} |" in text
        assert name in ("EmbeddingVariable", *said)
    assert "208 new keys each, until there are 3,000" in text
