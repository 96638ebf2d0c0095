"""What is said of an installation that cannot work, and what setup.py makes of README.md."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fusion import installation

ROOT = Path(__file__).parents[1]
SETUP = runpy.run_path(str(ROOT / "setup.py"))

#: A distribution says in one of these files which packages it has.
SAYS = {
    "top_level.txt": "docs\nfusion\n",
    "RECORD": "docs/index.md,sha256=x,1\nfusion/__init__.py,sha256=x,1\n",
}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """What puts a distribution into a folder of the path: (its name, a file, what it says)."""

    def put(name: str, file: str, text: str) -> Path:
        folder = tmp_path / f"{name}-5.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 5.0\n")
        (folder / file).write_text(text)
        return tmp_path

    monkeypatch.syspath_prepend(tmp_path)
    return put


@pytest.mark.parametrize("file", SAYS)
def test_another_package_of_our_name_elsewhere_is_a_warning(
    install: Callable[..., Path], file: str
) -> None:
    install("pyfusion", file, SAYS[file])
    with pytest.warns(RuntimeWarning, match=r"^the distribution pyfusion 5\.0 has a package fus"):
        installation.require()


def test_another_package_in_our_folder_is_an_error(
    install: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = install("pyfusion", "top_level.txt", SAYS["top_level.txt"])
    monkeypatch.setattr(installation, "_PACKAGE", folder / "fusion")
    with pytest.raises(ImportError, match=r"^the distribution pyfusion 5\.0 .* uninstall both"):
        installation.require()


@pytest.mark.parametrize(
    ("name", "file", "text"),
    [
        ("tf_embedding.Fusion", "top_level.txt", "fusion\n"),  # another copy of this one
        ("pyfusion", "top_level.txt", "pyfusion\nfusion_tools\n"),
        ("pyfusion", "RECORD", "pyfusion/fusion/__init__.py,sha256=x,1\n"),
        ("pyfusion", "RECORD", "fusion/notes.txt,sha256=x,1\n"),  # no package
        ("pyfusion", "other.txt", "fusion\n"),
    ],
)
def test_others_are_no_matter(
    install: Callable[..., Path], name: str, file: str, text: str
) -> None:
    install(name, file, text)
    assert installation.others() == []


def test_metadata_that_cannot_be_read_is_no_matter(install: Callable[..., Path]) -> None:
    folder = install("odd", "RECORD", "")
    (folder / "odd-5.0.dist-info" / "RECORD").write_bytes(b"caf\xe9.py,,\n")
    install("removed", "top_level.txt", "fusion\n")
    (folder / "removed-5.0.dist-info" / "METADATA").unlink()
    assert installation.others() == []


def test_without_tensorflow_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['tensorflow'] = None; import fusion"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert said.startswith("ImportError: fusion needs TensorFlow 2.18 to 2.21, and there is none:")
    for extra in ("tensorflow", "tensorflow-cpu"):
        assert f"'tf-embedding-fusion[{extra}]'" in said


TEXT = """\
See [the page](docs/page.md#part), [`code`](a.py) and [a site](https://example.org/x).
![A plot](plot.png) and [below](#below), `call[0](x)`.
```python
table[0](docs/page.md)
```
[Last](LICENSE).
"""


def test_links_of_the_page_on_an_index_are_plain_text() -> None:
    assert (
        SETUP["index_page"](TEXT, "")
        == """\
See the page, `code` and [a site](https://example.org/x).
A plot and below, `call[0](x)`.
```python
table[0](docs/page.md)
```
Last.
"""
    )
    assert SETUP["project_urls"]("") == {}


def test_links_of_the_page_on_an_index_lead_to_the_repository() -> None:
    at = "https://example.org/files"
    assert (
        SETUP["index_page"](TEXT, f"{at}/")
        == f"""\
See [the page]({at}/docs/page.md#part), [`code`]({at}/a.py) and [a site](https://example.org/x).
![A plot]({at}/plot.png) and below, `call[0](x)`.
```python
table[0](docs/page.md)
```
[Last]({at}/LICENSE).
"""
    )
    for url in SETUP["project_urls"](at).values():
        path = url.removeprefix(at).lstrip("/")
        assert (ROOT / path).exists()


def test_every_link_of_the_readme_leads_to_a_file() -> None:
    at = "https://example.org/files"
    page = SETUP["index_page"]((ROOT / "README.md").read_text(), at)
    paths = re.findall(rf"\]\({at}/([^)#]+)", page)
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
