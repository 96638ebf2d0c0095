"""What fusion uses of TensorFlow and Keras that is not public goes through one module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import fusion
from fusion.runtime.tensorflow import private

ROOT = Path(fusion.__file__).parent
DOOR = private.__name__
NAMES = [(module, name) for module, names in private.NAMES.items() for name in names.split()]


@cache
def imported() -> list[tuple[str, str, str]]:
    """Of each import in fusion its file, the module and the name."""
    return [*_imported()]


def _imported() -> Iterator[tuple[str, str, str]]:
    for file in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            path = str(file.relative_to(ROOT))
            if isinstance(node, ast.ImportFrom):
                yield from ((path, node.module or "", alias.name) for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from ((path, alias.name, "") for alias in node.names)


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_the_installed_version_has_each_name(module: str, name: str):
    found = getattr(private, name)
    where = getattr(found, "__module__", None) or found.__name__
    assert where.partition(".")[0] in ("tensorflow", module.partition(".")[0])


def test_each_name_is_used_and_has_one_place():
    used = {name for _, module, name in imported() if module == DOOR}
    assert sorted(used) == sorted(name for _, name in NAMES)


def test_nothing_goes_past_it():
    private_ones = ("tensorflow.python", "keras.src", "tf_keras.src")
    past = [place for place in imported() if place[1].startswith(private_ones)]
    assert past == []


def test_a_name_that_is_not_in_the_table():
    with pytest.raises(AttributeError, match=r"private' has no attribute 'nothing'"):
        private.nothing  # noqa: B018
