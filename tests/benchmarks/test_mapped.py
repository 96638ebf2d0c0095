"""What is refused of models whose tables are files."""

from __future__ import annotations

import pytest

from benchmarks import mapped


def test_memory_for_half_of_the_tables_must_hold_a_process() -> None:
    with pytest.raises(ValueError, match=r"pages: --gigabytes must be 4\.3 or more, is 4"):
        next(mapped.measure("pages", 4.0, 1, 0.1))
