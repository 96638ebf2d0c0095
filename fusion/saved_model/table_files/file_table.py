"""A table that a model reads from a file."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import PurePosixPath

from tensorflow.core.framework import node_def_pb2

from fusion.runtime.tensorflow.private import dtypes
from fusion.schema.names import READ_TABLE_FILE

#: Where the files of tables are, among a model's assets.
FOLDER = "tables"

#: The scope of the nodes that read them.
SCOPE = "fusion_tables"


@dataclass(frozen=True)
class FileTable:
    """A table in a file.

    Attributes:
        key: of the variable, in the checkpoint.
        handle: the node of the main graph that gives the variable's handle.
        name: for people.
        rows, width: how many rows there are, and elements of one.
        dtype: their DataType.
        file: its path below the folder of assets; tables with the same bytes may share one.
        in_memory: whether all of it is read when the model is loaded.
    """

    key: str
    handle: str
    name: str
    rows: int
    width: int
    dtype: int
    file: PurePosixPath
    in_memory: bool = False

    @property
    def is_restored(self) -> bool:
        """Whether the variable had another value before that of the file."""
        return False

    @property
    def size(self) -> int:
        """The bytes of the table."""
        return self.rows * self.width * element_bytes(self.dtype)

    @staticmethod
    def scope(index: int) -> str:
        """Returns the scope of the nodes that read one of the tables of a model."""
        return f"{SCOPE}/{index}"

    def set_read(self, node: node_def_pb2.NodeDef) -> None:
        """Turns a node into the one that reads the file; its input stays."""
        node.op = READ_TABLE_FILE
        node.attr["T"].type = self.dtype
        node.attr["rows"].i, node.attr["width"].i = self.rows, self.width
        node.attr["in_memory"].b = self.in_memory


def element_bytes(dtype: int) -> int:
    """Returns the bytes of an element of this DataType."""
    size: int = dtypes.as_dtype(dtype).size
    return size


def file_name(name: str, used: Collection[PurePosixPath]) -> PurePosixPath:
    """Returns an unused file for a table of this name."""
    folder = PurePosixPath(FOLDER)
    while folder in used:
        folder = folder.with_name(f"{folder.name}_")
    plain = "".join(c if c.isalnum() or c in "._-" else "_" for c in name)[:200].lstrip(".")
    plain, number = plain or "table", 1
    file = folder / plain
    while file in used:
        number += 1
        file = folder / f"{plain}.{number}"
    return file
