from __future__ import annotations

from typing import Any

import pytest

from modelzoo import results
from modelzoo.results_page import BATCHES, MODELS, STEPS, _steps_table


def measured(name: str, *variants: str) -> dict[str, Any]:
    found = {
        variant: {
            "milliseconds": 10.0 / place,
            "samples_per_second": 100.0 * place,
            "speedup": [place - 0.5, float(place), place + 0.5],
        }
        for place, variant in enumerate(variants, 1)
    }
    return {key: {"steps": {f"{name} {batch}": found for batch in BATCHES}} for key in MODELS}


def test_the_base_of_a_table_of_steps_is_its_first_variant() -> None:
    text = "\n".join(_steps_table(measured("keras", "layers", "layers-enable", "v2"), "keras"))
    assert "the speedup over `layers`:" in text
    assert "| Wide and deep | 512 | layers | 10.0 | 100 |  |  |" in text
    assert "| Wide and deep | 512 | layers-enable | 5.0 | 200 | 2.00 (1.50 to 2.50) |  |" in text
    assert "| Wide and deep | 512 | v2 | 3.3 | 300 | 3.00 (2.50 to 3.50) | 1.07 |" in text
    assert "`layers` is Keras's own `Embedding`" in text
    text = "\n".join(_steps_table(measured("graph", "stock", "v2"), "graph"))
    assert "the speedup over `stock`:" in text
    assert "`layers`" not in text


def test_steps_of_a_model_are_measured_by_style_and_optimizer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    ran: list[tuple[Any, ...]] = []

    def command(*words: Any) -> None:
        ran.append(words)
        (tmp_path / "bench.json").write_text('{"variants": {}}')

    monkeypatch.setattr(results, "_command", command)
    found = results._measured("steps", "dlrm", None, tmp_path, 5, 3)  # type: ignore[arg-type]
    assert [*found] == [f"{name} {batch}" for name in STEPS for batch in BATCHES]
    of_adam = [words for words in ran if "adam" in words]
    assert len(of_adam) == len(BATCHES)
    assert all("layers,layers-enable" in words for words in of_adam)
