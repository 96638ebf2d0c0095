"""What of the pages is generated says what the package does."""

import pytest

from docs.reference import FOLDER, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_current(name):
    page = (FOLDER / name).read_text()
    assert page == PAGES[name](), "run: python -m docs.reference"


def test_the_page_of_stores_has_the_fields_of_hps():
    assert "| `supportlonglong` | true or false |" in PAGES["stores.md"]()
