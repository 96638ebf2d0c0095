"""The sources that an object is compiled from, and a digest of what in them changes its code.

An object is compiled from the modules of the functions that make it, from all modules that these
import, directly or not, and from the packages of those. Of a module its syntax tree counts, without
docstrings: comments and formatting change nothing.

To parse all sources takes longer than to load a kernel. So the results of parsing come with the
package or are in the kernel cache, in a file that is named after the bytes of all sources.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.util import resolve_name
from pathlib import Path
from typing import NamedTuple

from fusion.runtime.cache import kernel_cache
from fusion.runtime.cache.kernel_cache import KernelCache

_PACKAGE = Path(__file__).resolve().parents[2]
#: The folders with sources of objects; modules in no folder count, too.
_FOLDERS = ("runtime", "schema", "cpu_ops", "gpu_ops", "ops")
#: A source in C++ belongs to the module of the same name in its folder.
_CC_SUFFIX = ".cc"
#: The bytes of a `.pyc` before its code: they describe its source, which is missing.
_PYC_HEAD_BYTES = 16

#: Packages that register ops and have the public functions. Modules in them do not depend on
#: what else they import.
_REGISTERING = frozenset({"fusion", "fusion.ops"})
#: Imports of these add no code: public functions of ops, for gradients; factories of kernels, which
#: name the modules that they take kernels from as their own; the module that loads objects.
_APART = frozenset(
    {
        *("fusion.ops", "fusion.ops.base.bodies", "fusion.ops.base.gpu_bodies"),
        "fusion.runtime.native.objects",
    }
)
#: Modules that import others by names that are computed, and make objects that name those.
_NAMING = frozenset(
    {
        *("fusion.ops.base.bodies", "fusion.gpu_ops.kernels.registry"),
        "fusion.runtime.native.compiler",
    }
)


class Source(NamedTuple):
    """The result of parsing a module: a digest of its code, and the modules that it imports."""

    digest: str
    imports: tuple[str, ...]


def digest(*modules: str) -> str:
    """A digest of all that functions of modules depend on in this package."""
    return _digest(frozenset(modules))


def digest_of_bytes() -> str:
    """A digest of the bytes of all sources, the same in all versions of Python."""
    return _sources().digest


def digest_of_all() -> str:
    """A digest of all that any function depends on in this package."""
    return digest(*(_sources().graph or ()))


def keep_in(files: KernelCache) -> None:
    """Writes the results of parsing to a cache, if possible, for processes that use it."""
    sources = _sources()
    if sources.graph is not None:
        files.offer(sources.file_name, _packed(sources.graph))


def keep_for_any_python(files: KernelCache) -> None:
    """Writes the results of parsing for all versions of Python that the package is installed with.

    Where the bytes of all sources are equal, any version's digest of their syntax trees identifies
    them.
    """
    sources = _sources()
    assert sources.graph is not None
    files.offer(sources.packaged_name, _packed(sources.graph))


@cache
def _digest(modules: frozenset[str]) -> str:
    sources = _sources()
    graph = sources.graph
    if graph is None:
        return sources.digest
    foreign = sorted(modules - graph.keys())
    dependencies = closure(graph, modules) if not foreign else graph.keys()
    sha256 = hashlib.sha256()
    for name in sorted(dependencies):
        sha256.update(f"{name} {graph[name].digest}\n".encode())
    for name in foreign:  # an op of another package, whose imports are not known
        file = getattr(sys.modules.get(name), "__file__", None)
        sha256.update(Path(file).read_bytes() if file else name.encode())
    return sha256.hexdigest()


def closure(graph: Mapping[str, Source], modules: Iterable[str]) -> set[str]:
    """The modules and all that they depend on."""
    result, waiting = set[str](), [*modules]
    while waiting:
        name = waiting.pop()
        if name not in result:
            result.add(name)
            waiting += graph[name].imports
    return result


class _Sources(NamedTuple):
    """All sources of this package.

    Attributes:
      digest: a digest of their bytes.
      graph: the results of parsing, by the names of modules; None for a build without sources.
    """

    digest: str
    graph: Mapping[str, Source] | None

    @property
    def file_name(self) -> str:
        """The name of the file with the graph of this version of Python."""
        python = "".join(platform.python_version_tuple()[:2])
        return f"sources-{python}-{self.digest[:24]}.json"

    @property
    def packaged_name(self) -> str:
        """The name of the file in the package, made by one version of Python for all."""
        return f"sources-{self.digest[:24]}.json"


@cache
def _sources() -> _Sources:
    """All sources, with the graph from the package or the cache, or else parsed and cached."""
    files, are_compiled = read(_PACKAGE)
    sha256 = hashlib.sha256()
    for path, content in files.items():
        sha256.update(f"{path} {len(content)}\n".encode())
        sha256.update(content)
    sources = _Sources(sha256.hexdigest(), None)
    if are_compiled:
        return sources
    cache = kernel_cache.default()
    packaged = kernel_cache.packaged().read(sources.packaged_name)
    if file := packaged or cache.read(sources.file_name):
        graph = {name: Source(*source) for name, source in json.loads(file.content).items()}
    else:
        graph = parse(files)
        cache.offer(sources.file_name, _packed(graph))
    return sources._replace(graph=graph)


def read(package: Path) -> tuple[dict[str, bytes], bool]:
    """The files that objects may be made from, by the path in the package.

    A build may have `.pyc` files instead of sources; the second value says whether it has.
    """
    root = f"{package}/"
    paths = os.listdir(root)
    for folder in _FOLDERS:
        for above, folders, names in os.walk(root + folder):
            if "__pycache__" in folders:
                folders.remove("__pycache__")
            paths += (f"{above}/{name}".removeprefix(root) for name in names)
    paths = [path for path in sorted(paths) if path.endswith((".py", ".pyc", _CC_SUFFIX))]
    files, are_compiled = dict[str, bytes](), False
    for path in paths:
        if path.endswith(".pyc"):
            if path.removesuffix("c") not in paths:
                are_compiled = True
                files[path] = _content(root + path)[_PYC_HEAD_BYTES:]
        else:
            files[path] = _content(root + path)
    return files, are_compiled


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _packed(graph: Mapping[str, Source]) -> bytes:
    return json.dumps(graph, separators=(",", ":")).encode()


def parse(files: Mapping[str, bytes]) -> dict[str, Source]:
    """Parses sources; returns the results by the names of modules.

    Args:
      files: the bytes of each source, by the path in the package.
    """
    names = {_module_of(path) for path in files if path.endswith(".py")}
    return {
        _module_of(path): _source(path, content, files, names)
        for path, content in files.items()
        if path.endswith(".py")
    }


def _module_of(path: str) -> str:
    parts = ("fusion", *path.removesuffix(".py").split("/"))
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _source(path: str, content: bytes, files: Mapping[str, bytes], modules: set[str]) -> Source:
    name, tree = _module_of(path), ast.parse(content)
    package = name if path.endswith("__init__.py") else name.rpartition(".")[0]
    imports = {module for module in _imported(tree, name, package, modules) if module not in _APART}
    parents = {package}
    while package:
        package = package.rpartition(".")[0]
        parents.add(package)
    imports |= parents & modules - _REGISTERING
    sha256 = hashlib.sha256(ast.dump(_without_docstrings(tree)).encode())
    sha256.update(files.get(f"{path.removesuffix('.py')}{_CC_SUFFIX}", b""))
    return Source(sha256.hexdigest()[:32], tuple(sorted(imports - {name})))


def _imported(tree: ast.AST, name: str, package: str, modules: set[str]) -> Iterator[str]:
    """The modules of the package that a module imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                # The package itself gives all of it.
                yield from modules if alias.name == "fusion" else {alias.name} & modules
        elif isinstance(node, ast.ImportFrom):
            dots = "." * node.level
            module = resolve_name(f"{dots}{node.module or ''}", package)
            for alias in node.names:
                inside = f"{module}.{alias.name}"
                yield from {inside if inside in modules else module} & modules
        elif isinstance(node, ast.Call) and _is_import(node.func) and name not in _NAMING:
            yield from _computed(node, modules)


def _is_import(function: ast.AST) -> bool:
    called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return called in ("import_module", "__import__")


def _computed(call: ast.Call, modules: set[str]) -> set[str]:
    """The modules that a call may import: all whose names begin as the computed name does."""
    text = call.args[0] if call.args else None
    first = text.values[0] if isinstance(text, ast.JoinedStr) and text.values else text
    start = str(first.value) if isinstance(first, ast.Constant) else ""
    return {name for name in modules if name.startswith(start)}


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                del node.body[0]
    return tree
