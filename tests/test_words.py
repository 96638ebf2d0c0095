"""The check that prose avoids the words of a list."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import words


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('"""Reads rows.\n\n    Nobody else may write.\n"""\n', [(3, "nobody")]),
        ("x = 1  # it tells of\n", [(1, "tells")]),
        ("x = (\n    'fine'\n    '''for\nwant of'''\n)\n", [(3, "for want of")]),
        ("name = 0\nx = f'{name} is told'\n", [(2, "told")]),
        ("x = '\\nUpon a node'\n", [(1, "upon")]),
        ("tell = mend.told  # the teller amends what is retold\n", []),
    ],
)
def test_comments_and_strings_of_python_are_read(source: str, found: list[tuple[int, str]]) -> None:
    assert list(words.in_python(source)) == found


def test_uses_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        "README.md": "Fast lookups.\n",
        "Makefile": "# Side by side, lest it is slow.\n",
        "docs/limits.md": "One\n\n`x` is read by no\none.\n",
        "fusion/ops/a.py": "told = 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert words.main(tmp_path) == 1
    assert capsys.readouterr().out == (
        "Makefile:1: 'lest', see tests/words.py\ndocs/limits.md:3: 'no one', see tests/words.py\n"
    )
    (tmp_path / "Makefile").write_text("# Side by side.\n")
    (tmp_path / "docs/limits.md").write_text("`x` is not read.\n")
    assert words.main(tmp_path) == 0
    assert not capsys.readouterr().out
