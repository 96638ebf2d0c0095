"""Text from models, safe to show."""

from __future__ import annotations

import pytest

from fusion.printable import printable, printable_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("input_layer/C17_embedding", "input_layer/C17_embedding"),
        ("größe 漢字 [red]x[/red] :cat:", "größe 漢字 [red]x[/red] :cat:"),
        ("", ""),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("over\rwritten\nline\ttab\x07", r"over\rwritten\nline\ttab\x07"),
        ("\u202eesrever\u2066\u200b\ufeff", r"\u202eesrever\u2066\u200b\ufeff"),
        ("\x9b31m\x85\u2028\u2029\x7f", r"\x9b31m\x85\u2028\u2029\x7f"),
        ("\ud800", r"\ud800"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_all_that_is_not_printed_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown  # once is enough
    assert shown.isprintable()


def test_anything_is_shown_as_its_text() -> None:
    assert printable(ValueError("a\nb")) == r"a\nb"


def test_lines_stay_lines() -> None:
    assert printable_lines("a\n\x1bb\r\n\x0bc") == "a\n\\x1bb\\r\n\\x0bc"
