"""What fusion uses of TensorFlow and Keras that is not public is in the tables of one module."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fusion
from fusion.runtime.tensorflow import private

ROOT = Path(fusion.__file__).parent
DOOR, FILE = private.__name__, "runtime/tensorflow/private.py"


def rows(table: dict[str, str]) -> list[tuple[str, str]]:
    return [(owner, name) for owner, names in table.items() for name in names.split()]


NAMES, ATTRIBUTES = rows(private.NAMES), rows(private.ATTRIBUTES)
IN_TABLE = {name for _, name in ATTRIBUTES}

#: Packages with classes that derive from TensorFlow's or Keras's.
DERIVING = ("data", "distribute", "feature_column", "keras", "optimizers", "tables")
#: Where attributes are Numba's.
NUMBA = ("runtime/native/", "gpu_ops/language/")
#: What fusion notes on objects of others begins so.
OURS = "_fusion"
#: Attributes of the standard library.
STANDARD = {"_Pointer", "_asdict", "_exit", "_fields", "_replace"}

STATEMENTS = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.Assign
EXPRESSIONS = ast.Attribute | ast.Call | ast.Constant | ast.Name


class Found:
    """What there is in fusion: its places are the file and the line."""

    def __init__(self) -> None:
        self.imports: list[tuple[str, str, str]] = []  # place, module, name
        self.attributes: list[tuple[str, str]] = []  # place, name of a private one
        self.texts: list[tuple[str, str]] = []  # place, text
        self.own: set[str] = set()  # names that fusion defines
        for file in sorted(ROOT.rglob("*.py")):
            path, nodes = file.relative_to(ROOT), ast.walk(ast.parse(file.read_text()))
            for node in nodes:
                if isinstance(node, STATEMENTS | EXPRESSIONS):
                    self._add(node, f"{path}:{node.lineno}")

    def _add(self, node: ast.stmt | ast.expr, place: str) -> None:
        match node:
            case ast.ImportFrom():
                self.imports += [(place, node.module or "", alias.name) for alias in node.names]
            case ast.Import():
                self.imports += [(place, alias.name, "") for alias in node.names]
            case ast.Constant(value=str(text)):
                self.texts.append((place, text))
            case ast.FunctionDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                self.own.add(name)
            case ast.Attribute(attr=name) if is_private(name):
                self.attributes.append((place, name))
                if isinstance(node.ctx, ast.Store) and getattr(node.value, "id", "") == "self":
                    self.own.add(name)
            case ast.Call(func=ast.Name(id=name), args=[_, ast.Constant(value=str(text)), *_]):
                if name in ("getattr", "hasattr", "setattr", "replace") and is_private(text):
                    self.attributes.append((place, text))
            case ast.Assign(targets=[ast.Attribute(attr=name)], value=ast.Constant(value=True)):
                self.own.add(name)  # a mark on a function


def is_private(name: str) -> bool:
    return name.isidentifier() and name.startswith("_") and not name.startswith("__")


@pytest.fixture(scope="module")
def found() -> Found:
    return Found()


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_the_installed_version_has_each_name(module: str, name: str):
    thing = getattr(private, name)
    where = getattr(thing, "__module__", None) or thing.__name__
    assert where.partition(".")[0] in ("tensorflow", module.partition(".")[0])


def test_each_name_is_used_and_has_one_place(found: Found):
    used = {name for _, module, name in found.imports if module == DOOR}
    assert sorted(used) == sorted(name for _, name in NAMES)


def test_nothing_goes_past_it(found: Found):
    private_ones = ("tensorflow.python", "keras.src", "tf_keras.src")
    assert [one for one in found.imports if one[1].startswith(private_ones)] == []
    texts = [one for one in found.texts if one[1].startswith(private_ones)]
    assert [one for one in texts if not one[0].startswith(FILE)] == []


def test_a_name_that_is_not_in_the_table():
    with pytest.raises(AttributeError, match=r"private' has no attribute 'nothing'"):
        private.nothing  # noqa: B018


@pytest.mark.parametrize(("owner", "name"), ATTRIBUTES)
def test_the_installed_version_has_each_attribute(owner: str, name: str):
    thing: Any = pkgutil.resolve_name(owner)
    if owner == "keras.export.ExportArchive":  # which makes one of the backend
        thing = type(thing())
    classes = inspect.getmro(thing) if inspect.isclass(thing) else ()
    text = "".join(map(source, classes))
    assert hasattr(thing, name) or re.search(rf"\.{name}\b", text)


def source(cls: type) -> str:
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):  # of C
        return ""


def test_each_private_attribute_is_in_the_table(found: Found):
    known = IN_TABLE | STANDARD | found.own
    used = [one for one in found.attributes if not one[0].startswith(NUMBA)]
    assert [one for one in used if one[1] not in known and not one[1].startswith(OURS)] == []


def test_each_attribute_of_the_table_is_used(found: Found):
    texts = {text for place, text in found.texts if not place.startswith(FILE)}
    assert IN_TABLE - {name for _, name in found.attributes} - found.own - texts == set()


@pytest.mark.parametrize("package", DERIVING)
def test_each_overridden_method_is_in_the_table(package: str):
    for one in pkgutil.walk_packages([str(ROOT / package)], f"fusion.{package}."):
        module = importlib.import_module(one.name)
        for _, cls in inspect.getmembers(module, inspect.isclass):
            if cls.__module__ == module.__name__:
                assert {*overridden(cls)} <= IN_TABLE, cls


def overridden(cls: type) -> Iterator[str]:
    """The private methods of a class of fusion that a class of TensorFlow or Keras has, too."""
    theirs = ("tensorflow.", "keras.", "tf_keras.")
    bases = [base for base in cls.__mro__ if base.__module__.startswith(theirs)]
    for name, member in vars(cls).items():
        is_method = inspect.isfunction(member) or isinstance(member, property)
        if is_method and is_private(name) and any(name in vars(base) for base in bases):
            yield name
