"""The pages as a whole: their links, and that none is forgotten."""

import re

import pytest

from docs.pages import ROOT, linked, pages, prose

#: What MkDocs makes of a heading.
NOT_IN_ANCHORS = re.compile(r"[^\w\s-]")


def anchors(page):
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[-\s]+", "-", NOT_IN_ANCHORS.sub("", one).strip()) for one in plain}


def broken(page):
    """The links of a page that lead nowhere."""
    found = []
    for path, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)", prose(page)):
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            found.append(f"{path}#{anchor}")
    return found


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert broken(page) == []


def test_broken_links_are_found(tmp_path):
    (tmp_path / "other.md").write_text("# One\n\n```\n# two\n```\n")
    page = tmp_path / "page.md"
    page.write_text("[a](other.md#one) [b](other.md#two) [c](none.md) [d](#here) [e](https://x.y)")
    assert broken(page) == ["other.md#two", "none.md#", "#here"]
    assert linked(page) == {tmp_path / "other.md", tmp_path / "none.md"}


def test_the_site_has_all_pages():
    navigation = (ROOT / "docs/mkdocs.yml").read_text().partition("\nnav:\n")[2]
    named = re.findall(r" (\S+\.md)$", navigation, re.MULTILINE)
    assert sorted(named) == sorted(str(page.relative_to(ROOT)) for page in pages())


def test_the_readme_is_short_and_names_all_pages():
    readme = ROOT / "README.md"
    assert len(readme.read_text().splitlines()) <= 130
    assert {*(ROOT / "docs").glob("*.md")} <= linked(readme)
