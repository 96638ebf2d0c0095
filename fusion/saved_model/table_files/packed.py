"""Packs tables of a model: rows of fewer bits, which lookups read as they are.

The result is another matrix of float32, and another model: whether it is among the variables or in
a file is for others to say.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from fusion.passes.analysis.handles import Place
from fusion.passes.pack_tables import Packing, TablePacker, shared_names
from fusion.runtime.tensorflow.private import as_dtype
from fusion.saved_model.errors import ModelError, reason_of
from fusion.saved_model.model.meta_graph import bound_arguments, node_name
from fusion.saved_model.table_files.file_table import FileTable
from fusion.saved_model.table_files.initial import init_op
from fusion.saved_model.table_files.keep import find_tables, variable_numbers
from fusion.saved_model.table_files.objects import forget_slots
from fusion.saved_model.table_files.tensor_bundle import Bundle, read_bundle
from fusion.schema.row_formats import PACKED_FORMATS, pack_rows, packed_words, unpack_rows

FLOAT32 = "float32"
TABLE_DTYPES = (FLOAT32, *PACKED_FORMATS)
"""What the elements of a table can be stored as."""

_BLOCK_BYTES = 1 << 24


@dataclass(frozen=True)
class TableDtypes:
    """The dtype that each table is stored as.

    Attributes:
        default: of tables of so many bytes.
        min_bytes: smaller ones stay as they are.
        named: (pattern, dtype) of tables by their names, whatever their sizes; the last one counts
            that fits.
    """

    default: str = FLOAT32
    min_bytes: int = 0
    named: tuple[tuple[str, str], ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether every table stays as it is."""
        return {self.default, *(dtype for _, dtype in self.named)} == {FLOAT32}

    def of(self, name: str, size: int) -> str:
        """Returns the dtype for a table of this name and so many bytes."""
        for pattern, dtype in reversed(self.named):
            if fnmatch.fnmatchcase(name, pattern):
                return dtype
        return self.default if size >= self.min_bytes else FLOAT32

    def names(self, name: str) -> bool:
        """Whether a table is chosen by its name."""
        return any(fnmatch.fnmatchcase(name, pattern) for pattern, _ in self.named)


@dataclass(frozen=True)
class PackedTable:
    """A table that was packed, or why it was not.

    Attributes:
        name: for people.
        dtype: of its elements: one of `TABLE_DTYPES`, or as they were.
        rows, dimension: its shape.
        stored_bytes: that it has now.
        deviation: the largest absolute difference of a finite element from what it was.
        largest: the largest absolute value of a finite element.
        refusal: why it is as it was, although another dtype was requested; "" if it was packed.
    """

    name: str
    dtype: str
    rows: int
    dimension: int
    stored_bytes: int
    deviation: float = 0.0
    largest: float = 0.0
    refusal: str = ""

    @property
    def plain_bytes(self) -> int:
        """The bytes that it has as float32."""
        return 4 * self.rows * self.dimension

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        fields = {
            "name": self.name,
            "dtype": self.dtype,
            "shape": [self.rows, self.dimension],
            "bytes": self.stored_bytes,
            "float32_bytes": self.plain_bytes,
        }
        if self.refusal:
            return {**fields, "refusal": self.refusal}
        return {**fields, "deviation": self.deviation, "largest": self.largest}


def pack_model(
    meta: meta_graph_pb2.MetaGraphDef,
    bundle: Bundle,
    dtypes: TableDtypes,
    scratch: Path,
    others: Sequence[PackedTable] = (),
) -> tuple[Bundle, list[PackedTable]]:
    """Packs the tables of a model, where possible.

    Args:
        meta: the model, which is changed.
        bundle: its variables.
        dtypes: what tables become.
        scratch: a folder for packed tables, which has to stay until the result has been written.
        others: tables that cannot be packed, with the reasons.

    Returns:
        The variables with packed tables among them, and what became of each table that was asked
        for.

    Raises:
        ModelError: a table that is chosen by name is none or cannot be packed; or the variables
            cannot be read.
        OSError: a file cannot be written.
    """
    tables = find_tables(meta, bundle, 1, in_memory=False)
    names = sorted([*(table.name for table in tables), *(one.name for one in others)])
    for pattern, _ in dtypes.named:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            known = ", ".join(dict.fromkeys(names)) or "it has none"
            raise ModelError(f"no table of the model is called {pattern!r}: {known}")
    done = [one for one in others if dtypes.of(one.name, one.stored_bytes) != FLOAT32]
    for one in done:
        if dtypes.names(one.name):
            dtype_name = dtypes.of(one.name, one.stored_bytes)
            raise ModelError(f"table {one.name!r} cannot be {dtype_name}: {one.refusal}")
    wanted = {
        table.key: dtype
        for table in tables
        if (dtype := dtypes.of(table.name, _size(bundle, table))) != FLOAT32
    }
    packer = _packer(meta, bundle)
    packings: dict[Place, Packing] = {}
    files, paths = dict[str, Path](), (scratch / f"packed-{number}" for number in count())
    for place, alike in _by_place(packer, meta, tables).items():
        requested = [table for table in alike if table.key in wanted]
        if not requested:
            continue
        row_format = wanted[requested[0].key]
        is_one = all(wanted.get(table.key) == row_format for table in alike)
        why = _refusal(packer, place, alike, meta, row_format, is_one=is_one)
        results = [] if why else list(_packed(bundle, alike, row_format, paths))
        why = why or next((one.refusal for one, _ in results if one.refusal), "")
        if why:
            named = next((table for table in requested if dtypes.names(table.name)), None)
            if named is not None:
                raise ModelError(f"table {named.name!r} cannot be {wanted[named.key]}: {why}")
            for _, file in results:
                file.unlink(missing_ok=True)
            done += [_refused(bundle, table, why) for table in requested]
            continue
        done += [one for one, _ in results]
        files.update({table.key: file for table, (_, file) in zip(alike, results, strict=True)})
        packings[place] = Packing(row_format, alike[0].rows, alike[0].width)
    if not packings:
        return bundle, done
    packer.pack(packings)
    numbers = variable_numbers(meta, bundle)
    _set_object_shapes(meta, numbers, tables, files)
    forget_slots(meta, {numbers[key] for key in files if key in numbers})
    return _with_packed(bundle, tables, files, scratch), done


def _size(bundle: Bundle, table: FileTable) -> int:
    return int(bundle.entries[table.key.encode()].size)


def _packer(meta: meta_graph_pb2.MetaGraphDef, bundle: Bundle) -> TablePacker:
    numbers, names = variable_numbers(meta, bundle), shared_names(meta.graph_def)
    tables = find_tables(meta, bundle, 1, in_memory=False)
    of_number = {numbers[t.key]: names[t.handle] for t in tables if t.key in numbers}
    bound = {
        (function, argument): of_number.get(number, f"object {number}")
        for function, argument, number in bound_arguments(meta)
    }
    outputs = {
        node_name(info.name)
        for signature in meta.signature_def.values()
        for info in signature.outputs.values()
    }
    return TablePacker(meta.graph_def, bound, {*outputs, init_op(meta)})


def _by_place(
    packer: TablePacker, meta: meta_graph_pb2.MetaGraphDef, tables: Sequence[FileTable]
) -> dict[Place, list[FileTable]]:
    """Groups tables that one function reads in turn, by what they have in common."""
    names, result = shared_names(meta.graph_def), dict[Place, list[FileTable]]()
    for table in tables:
        result.setdefault(packer.place(names[table.handle]), []).append(table)
    return result


def _refusal(
    packer: TablePacker,
    place: Place,
    tables: Sequence[FileTable],
    meta: meta_graph_pb2.MetaGraphDef,
    row_format: str,
    *,
    is_one: bool,
) -> str:
    """Why tables of one place cannot be packed; "" if they can."""
    names = shared_names(meta.graph_def)
    others = packer.variables(place) - {names[table.handle] for table in tables}
    if others:
        return f"a function reads it and in its place {min(others)!r}, which is none"
    if not is_one or len({(table.rows, table.width) for table in tables}) > 1:
        return "a function reads it, and other tables in its place in other calls"
    if any(table.dtype != types_pb2.DT_FLOAT for table in tables):
        return "its elements are no float32"
    if packed_words(row_format, tables[0].width) >= tables[0].width:
        return "its rows would be no smaller"
    return packer.refusal(place) or ""


def _refused(bundle: Bundle, table: FileTable, why: str) -> PackedTable:
    size, dtype = _size(bundle, table), as_dtype(table.dtype).name
    return PackedTable(table.name, dtype, table.rows, table.width, size, refusal=why)


def _packed(
    bundle: Bundle, tables: Sequence[FileTable], row_format: str, files: Iterator[Path]
) -> Iterator[tuple[PackedTable, Path]]:
    """Yields the results of packing tables, and the files with their rows, none where refused."""
    for table, file in zip(tables, files, strict=False):
        deviation = largest = 0.0
        refusal, row = "", 0
        with open(file, "xb") as out:
            for rows in _blocks(bundle, table):
                try:
                    packed = pack_rows(rows, row_format)
                except ValueError as error:
                    refusal = _with_row(str(error), row)
                    break
                back = unpack_rows(packed, row_format, table.width)
                deviation = max(deviation, _largest(back, rows))
                largest = max(largest, _largest(rows))
                out.write(packed.tobytes())
                row += len(rows)
            size = out.tell()
        if refusal:
            file.unlink()
        shape = table.rows, table.width
        yield PackedTable(table.name, row_format, *shape, size, deviation, largest, refusal), file


def _largest(rows: NDArray[np.float32], *subtracted: NDArray[np.float32]) -> float:
    """The largest absolute value, or difference, of what is finite; 0 if nothing is."""
    with np.errstate(invalid="ignore"):
        values = np.abs(np.subtract(rows, *subtracted)) if subtracted else np.abs(rows)
    return float(np.max(values, initial=0, where=np.isfinite(values)))


def _with_row(message: str, first: int) -> str:
    """A message of `pack_rows`, which counts rows from the first of a block, with the table's."""
    number, colon, rest = message.removeprefix("row ").partition(":")
    return f"row {int(number) + first}{colon}{rest}" if number.isdecimal() else message


def _blocks(bundle: Bundle, table: FileTable) -> Iterator[NDArray[np.float32]]:
    """Yields the rows of a table, some at a time."""
    file, offset, size = bundle.data(table.key.encode())
    row_bytes = 4 * table.width
    block = max(1, _BLOCK_BYTES // row_bytes) * row_bytes
    try:
        with open(file, "rb") as source:
            source.seek(offset)
            while size:
                content = source.read(min(size, block))
                if len(content) < min(size, block):
                    raise ModelError(f"{file}: truncated or damaged")
                size -= len(content)
                yield np.frombuffer(content, np.float32).reshape(-1, table.width)
    except OSError as error:
        raise ModelError(f"{file}: cannot be read: {reason_of(error)}") from error


def _set_object_shapes(
    meta: meta_graph_pb2.MetaGraphDef,
    numbers: Mapping[str, int],
    tables: Sequence[FileTable],
    files: Mapping[str, Path],
) -> None:
    """Notes the shapes of packed tables among the objects of a model."""
    for table in tables:
        if table.key in files and table.key in numbers:
            shape = meta.object_graph_def.nodes[numbers[table.key]].variable.shape
            shape.Clear()
            for size in (table.rows, _width(files[table.key], table)):
                shape.dim.add(size=size)


def _width(file: Path, table: FileTable) -> int:
    return os.path.getsize(file) // (4 * table.rows) if table.rows else 0


def _with_packed(
    bundle: Bundle, tables: Sequence[FileTable], files: Mapping[str, Path], scratch: Path
) -> Bundle:
    """Returns a bundle with packed tables in the places of plain ones; their files are removed."""
    import tensorflow as tf

    from fusion import ops
    from fusion.runtime.tensorflow.private import context

    # TensorFlow writes them, with its checksums, from memory that is the files.
    prefix = scratch / "packed"
    packed = [table for table in tables if table.key in files]
    names = [table.key for table in packed]
    with context.eager_mode(), tf.device("CPU"):  # whatever the caller is building
        tf.raw_ops.SaveV2(
            prefix=str(prefix),
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[
                ops.read_table_file(
                    file=str(files[table.key]),
                    T=tf.float32,
                    rows=table.rows,
                    width=_width(files[table.key], table),
                )
                for table in packed
            ],
        )
    for file in files.values():
        file.unlink()
    written = read_bundle(prefix)
    moved = dict.fromkeys(written.entries, written)
    return replace(
        bundle,
        entries={**bundle.entries, **written.entries},
        elsewhere={**bundle.elsewhere, **moved},
    )
