"""`python -m benchmarks pass`, on few columns."""

from __future__ import annotations

import pytest

from benchmarks import passes


def test_what_the_pass_costs_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "_COLUMNS", 3)
    numbers = passes.measure(1)
    assert numbers["thousand_columns"]["columns"] == 3
    assert numbers["without_embeddings"]["ms"] > 0
