"""What setup.cfg cannot say: the page of the distribution on a package index, and its URLs.

README.md has links to other files of the repository, which lead nowhere from such a page. Those of
the repository at `FUSION_PROJECT_URL` (the address of a folder with its files) do; without it they
are plain text, and there are no URLs.
"""

import os
import re
from pathlib import Path

from setuptools import setup

#: Code, in which nothing is a link, or a link or an image: its mark, its text and its target.
_CODE = r"^```.*?^```$|`[^`\n]*`"
_LINK = r"(!?)\[((?:[^\[\]`]|`[^`]*`)*)\]\(([^()\s]+)\)"
_CODE_OR_LINK = re.compile(f"{_CODE}|{_LINK}", re.MULTILINE | re.DOTALL)


def index_page(text: str, url: str) -> str:
    """A README's text with links that lead somewhere from any page.

    Args:
        text: Markdown.
        url: what relative links are to; without one they become plain text.
    """

    def absolute(link: re.Match[str]) -> str:
        mark, shown, target = link.groups()
        if target is None or re.match(r"[a-z]+:", target):
            return link.group()
        if not url or target.startswith("#"):
            return shown
        return f"{mark}[{shown}]({url.rstrip('/')}/{target})"

    return _CODE_OR_LINK.sub(absolute, text)


def project_urls(url: str) -> dict[str, str]:
    """The links beside the page."""
    if not url:
        return {}
    base = url.rstrip("/")
    return {
        "Source": base,
        "Documentation": f"{base}/docs/install.md",
        "Changelog": f"{base}/CHANGELOG.md",
    }


if __name__ == "__main__":
    url = os.environ.get("FUSION_PROJECT_URL", "")
    readme = Path(__file__).with_name("README.md").read_text()
    setup(long_description=index_page(readme, url), project_urls=project_urls(url))
