"""Words that the documentation and the sources do not use: `python -m tests.words` finds them.

In Python files comments and strings are read, names are not. A phrase is found within one comment
or string, over line ends, too.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

_PATTERN = re.compile(
    r"""\b(?:
    # Say which caller, thread, process or op it is; or use the passive.
    nobody | somebody | anybody | everybody | no\s+one | someone | anyone | whoever | whom(?:ever)?
    # Report, show, return, say, distinguish; fix.
    | tells? | told | mends? | mended
    # In addition to, other than, also; again.
    | besides | anew
    # So that; until; on; among; so; from which, of it, by which, in which; since.
    | lest | till | shall | upon | amid | amidst | amongst | whilst | hence | thence | whence
    | hereby | herewith | thereby | therein | thereof | whereby | wherein
    | for\s+the\s+sake\s+of | for\s+want\s+of | in\s+the\s+midst\s+of
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)
_ESCAPE = re.compile(r"\\[nt]")
#: Before Python 3.12 an f-string is a STRING, the expressions in it included.
_PROSE = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def in_text(text: str, first: int = 1) -> Iterator[tuple[int, str]]:
    """Yields the line and the word of each use in a text that starts in line `first`."""
    for match in _PATTERN.finditer(_ESCAPE.sub("  ", text)):
        yield first + text.count("\n", 0, match.start()), " ".join(match[0].lower().split())


def in_python(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the word of each use in comments and strings of a module."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in _PROSE:
            yield from in_text(token.string, token.start[0])


def in_file(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the line and the word of each use in a file."""
    return (in_python if path.suffix == ".py" else in_text)(path.read_text())


def files(root: Path) -> Iterator[Path]:
    """Yields the files to check."""
    paths = [*root.glob("fusion/**/*.py"), *root.glob("docs/**/*.md"), *root.glob("docs/*.py")]
    yield from (root / "README.md", root / "Makefile", *sorted(paths))


def main(root: Path = ROOT) -> int:
    """Prints each use; returns the exit status."""
    status = 0
    for path in files(root):
        for line, word in in_file(path):
            print(f"{path.relative_to(root)}:{line}: {word!r}, see tests/words.py")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
