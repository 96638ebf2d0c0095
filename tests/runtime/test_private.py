"""What fusion uses of TensorFlow and Keras that is not public is in the tables of one module."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import fusion
from fusion.runtime.tensorflow import private

ROOT = Path(fusion.__file__).parent
DOOR = private.__name__
NAMES = [(module, name) for module, names in private.NAMES.items() for name in names.split()]
ATTRIBUTES = [
    (owner, name) for owner, names in private.ATTRIBUTES.items() for name in names.split()
]

#: Where attributes are Numba's.
NUMBA = ("runtime/native/", "gpu_ops/language/")
#: What fusion notes on objects of others begins so.
OURS = "_fusion"
#: Attributes of the standard library.
STANDARD = {"_Pointer", "_asdict", "_exit", "_fields", "_replace"}


@cache
def nodes() -> list[tuple[str, ast.AST]]:
    """All nodes of the syntax trees of fusion's modules, with the file."""
    files = [(str(file.relative_to(ROOT)), file) for file in sorted(ROOT.rglob("*.py"))]
    return [(path, node) for path, file in files for node in ast.walk(ast.parse(file.read_text()))]


@cache
def imported() -> list[tuple[str, str, str]]:
    """Of each import in fusion its file, the module and the name."""
    return [*_imported()]


def _imported() -> Iterator[tuple[str, str, str]]:
    for path, node in nodes():
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
    assert [place for place in imported() if place[1].startswith(private_ones)] == []
    door = "runtime/tensorflow/private.py"
    texts = [(path, str(getattr(node, "value", ""))) for path, node in nodes() if path != door]
    assert [text for text in texts if text[1].startswith(private_ones)] == []


def test_a_name_that_is_not_in_the_table():
    with pytest.raises(AttributeError, match=r"private' has no attribute 'nothing'"):
        private.nothing  # noqa: B018


def _used() -> Iterator[tuple[str, str]]:
    """Of each private attribute in fusion the place and the name, also where it is a text."""
    for path, node in nodes():
        name = None
        if isinstance(node, ast.Attribute):
            name = node.attr
        elif isinstance(node, ast.Call) and len(node.args) > 1:
            function = getattr(node.func, "id", None)
            if function in ("getattr", "hasattr", "setattr", "replace"):
                name = getattr(node.args[1], "value", None)
        if isinstance(name, str) and re.fullmatch("_[a-zA-Z][a-zA-Z0-9_]*", name):
            yield f"{path}:{node.lineno}", name


def _own() -> Iterator[str]:
    """The names that fusion defines, and those that mark its functions: `f._is_ours = True`."""
    for _, node in nodes():
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield from [node.attr] if getattr(node.value, "id", "") in ("self", "cls") else []
        elif isinstance(node, ast.Assign) and getattr(node.value, "value", None) is True:
            yield from (getattr(target, "attr", "") for target in node.targets)


@pytest.mark.parametrize(("owner", "name"), ATTRIBUTES)
def test_the_installed_version_has_each_attribute(owner: str, name: str):
    found: Any = pkgutil.resolve_name(owner)
    if inspect.isfunction(found):  # Keras has some in the place of classes
        found = type(found())
    classes = inspect.getmro(found) if inspect.isclass(found) else ()
    sources = "".join(map(_source, classes))
    assert hasattr(found, name) or re.search(rf"\.{name}\b", sources)


def _source(cls: type) -> str:
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):  # of C
        return ""


def test_each_private_attribute_is_in_the_table():
    known = {name for _, name in ATTRIBUTES} | STANDARD | {*_own()}
    used = [(place, name) for place, name in _used() if not place.startswith(NUMBA)]
    assert [one for one in used if one[1] not in known and not one[1].startswith(OURS)] == []


def test_each_attribute_of_the_table_is_used():
    text = "\n".join(ast.unparse(node) for _, node in nodes() if isinstance(node, ast.Module))
    counts = {name: len(re.findall(rf"\b{name}\b", text)) for _, name in ATTRIBUTES}
    in_table = [name for _, name in ATTRIBUTES]
    assert [name for name in counts if counts[name] <= in_table.count(name)] == []
