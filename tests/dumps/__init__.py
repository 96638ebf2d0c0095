"""Graphs of real programs as text, of all ages: what the pass must understand.

`graphs.tar.xz` holds 110 files, each of one program. A file's name says what the program does; its
sections are the graph as it was built, after TensorFlow's optimizer, frozen, or loaded again. Files
`legacy_*` have the ops that TensorFlow 1.13, 1.15 and 2.4 made of the same program.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tensorflow.core.framework import graph_pb2

from tests.graph_text import parse_graph

_FUNCTION = re.compile(r"^func @(?P<name>[^(]+)\((?P<args>.*)\) -> \((?P<rets>.*)\)$")


@dataclass(frozen=True)
class Dump:
    """One program.

    Attributes:
        name: the file's, without its ending.
        text: the file's.
    """

    name: str
    text: str

    def graphs(self) -> Iterator[tuple[str, graph_pb2.GraphDef]]:
        """Yields the title and the graph of each section."""
        for section in re.split(r"^## ", self.text, flags=re.MULTILINE)[1:]:
            title, _, body = section.partition("\n")
            if re.search(r"^%", body, flags=re.MULTILINE):
                yield title, parse_graph(_in_our_syntax(body))

    def graph(self, title: str) -> graph_pb2.GraphDef:
        """Returns the graph of one section."""
        return next(graph for found, graph in self.graphs() if found == title)


@cache
def dumps() -> dict[str, Dump]:
    """Returns all programs by name."""
    found = {}
    with tarfile.open(Path(__file__).parent / "graphs.tar.xz") as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            assert file is not None
            name = member.name.removesuffix(".txt")
            found[name] = Dump(name, file.read().decode())
    return dict(sorted(found.items()))


def _in_our_syntax(body: str) -> str:
    """Functions, which the files write in another way."""
    lines = []
    for line in body.splitlines():
        if (match := _FUNCTION.match(line)) is not None:
            args, rets = (match[key].replace(":", ": ") for key in ("args", "rets"))
            lines.append(f"function {match['name']}({args}) -> ({rets})")
        elif line.startswith("  ret "):
            lines += ["  return " + line.removeprefix("  ret "), "end"]
        else:
            lines.append(line)
    return "\n".join(lines)
