"""Copies the pages of the repository, and what they link to, to where `make docs` reads them.

MkDocs takes pages from one folder, and these lie beside what they describe.
"""

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("benchmarks", "docs", "examples", "modelzoo")
STYLE = ROOT / "docs/site.css"
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def pages() -> list[Path]:
    """The pages, README.md first."""
    inside = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.md")))
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *inside]


def prose(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return CODE.sub("", page.read_text())


def linked(page: Path) -> set[Path]:
    """The files of the repository that a page links to, those which do not exist included."""
    return {(page.parent / link).resolve() for link in LINK.findall(prose(page))}


def copy(target: Path) -> None:
    """Writes all of it into a folder, after removing what is there."""
    shutil.rmtree(target, ignore_errors=True)
    for path in {STYLE, *pages(), *(file for page in pages() for file in linked(page))}:
        if path.is_file():  # MkDocs reports a broken link
            copied = target / path.relative_to(ROOT)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copied)


if __name__ == "__main__":
    copy(Path(sys.argv[1]))
