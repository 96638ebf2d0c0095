"""Which values the tables of a model know: words, and integers that stand for them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2, types_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from fusion.runtime.tensorflow.private import tensor_util
from fusion.saved_model.inputs.constraints import Array, Key
from fusion.saved_model.inputs.conversions import Conversion, separator_of, undone
from fusion.saved_model.inputs.key_tables import Filling, fillings

_MAX_WORDS = 1000
_LONGEST_WORD = 256
_HEAD = 1 << 16
"""So many bytes of a file are read."""

_MAX_KEYS = 10_000_000
"""A table of a checkpoint that has more is not read, which would take memory."""

_WHOLE_LINE, _LINE_NUMBER = -2, -1
_INTEGER = re.compile(rb"\s*-?[0-9]+\s*")
_SAVERS = frozenset(["SaveV2", "RestoreV2", "Save", "Restore"])


class Lookup(NamedTuple):
    """A table that values of an input are looked up in.

    Attributes:
        table: its name, see `table_of_keys`.
        conversions: what the values went through before.
    """

    table: str
    conversions: tuple[Conversion, ...]


@dataclass(frozen=True)
class Known:
    """Values of an input that its tables have as keys.

    Attributes:
        values: bytes or integers.
        separator: what stands between several of them; None if each input is one.
    """

    values: Sequence[Any]
    separator: bytes | None = None


class Vocabularies:
    """The keys of the tables of one meta graph."""

    def __init__(self, model: Path, meta: meta_graph_pb2.MetaGraphDef) -> None:
        """Takes the folder of a SavedModel, which has its files, and the meta graph."""
        self._model = model
        self._meta = meta
        self._fillings = fillings(meta)
        self._files = {
            asset.tensor_info.name.partition(":")[0]: model / "assets" / asset.filename
            for asset in meta.asset_file_def
        }
        self._keys: dict[str, list[Any]] = {}

    def known(self, lookups: Mapping[Key, Iterable[Lookup]]) -> dict[Key, Known]:
        """Returns the known values of inputs, without inputs whose tables are not known.

        Of an input that is looked up in several tables these are the values that all of them have,
        if there is any, and else what one of them has.
        """
        result: dict[Key, Known] = {}
        for key, own in lookups.items():
            ordered = sorted(own)
            of_each = [undone(lookup.conversions, self.keys(lookup.table)) for lookup in ordered]
            of_each = [values for values in of_each if values]
            if of_each:
                common = set(of_each[0]).intersection(*of_each[1:])
                union = dict.fromkeys(value for values in of_each for value in values)
                values = [value for value in union if value in common] or list(union)
                result[key] = Known(values, separator_of(ordered[0].conversions))
        return result

    def keys(self, table: str) -> list[Any]:
        """Returns keys of a table, bytes or integers: at most 1,000, and none if it is unknown."""
        if table not in self._keys:
            filling = self._fillings.get(table)
            self._keys[table] = [] if filling is None else self._keys_of(filling)
        return self._keys[table]

    def words(self) -> list[bytes]:
        """Returns words that the model may know: lines of its assets and its string constants.

        Random strings alone would miss what a model compares its inputs with.
        """
        words: dict[bytes, None] = {}
        for file in sorted((self._model / "assets").glob("*")):
            if file.is_file():
                words.update(dict.fromkeys(_lines(file)[:_MAX_WORDS]))
        graph = self._meta.graph_def
        for body in (graph.node, *(function.node_def for function in graph.library.function)):
            # The names of saved tensors are no words of the model.
            of_savers = {i.partition(":")[0] for n in body if n.op in _SAVERS for i in n.input}
            for node in body:
                if node.op == "Const" and node.name not in of_savers:
                    strings = node.attr["value"].tensor.string_val
                    if len(strings) > 1:
                        words.update(dict.fromkeys(strings[:_MAX_WORDS]))
        return list(words)[: 4 * _MAX_WORDS]

    def _keys_of(self, filling: Filling) -> list[Any]:
        source = filling.source
        if filling.file is not None:
            return self._keys_in_file(filling, filling.file)
        if source.node.op == "Const":
            return _spread(_constant(source.node))
        if source.names is None or source.names.op != "Const":
            return []
        names = _constant(source.names).ravel().tolist()
        if source.output >= len(names) or not isinstance(names[source.output], bytes):
            return []
        keys = self._saved(names[source.output].decode(errors="replace"))
        if filling.reserved:  # a dense table is saved with what is free in it
            keys = np.unique(keys)
            for reserved in filling.reserved:
                if reserved.node.op == "Const":
                    keys = keys[keys != _constant(reserved.node)]
        return _spread(keys)

    def _keys_in_file(self, filling: Filling, file: node_def_pb2.NodeDef) -> list[Any]:
        path = self._files.get(filling.source.node.name)
        if path is None and filling.source.node.op == "Const":
            texts = [t for t in _constant(filling.source.node).ravel().tolist()[:1] if t]
            path = Path(os.fsdecode(texts[0])) if texts and isinstance(texts[0], bytes) else None
        if path is None or not path.is_file():
            return []
        lines, column = _lines(path), _number(file, "key_index", _WHOLE_LINE)
        limit = _number(file, "vocab_size", -1)
        lines = lines[: min(_MAX_WORDS, limit if limit > 0 else _MAX_WORDS)]
        if column == _LINE_NUMBER:
            first = _number(file, "offset", 0)
            return list(range(first, first + len(lines)))
        if column != _WHOLE_LINE:
            delimiter = (file.attr["delimiter"].s if "delimiter" in file.attr else b"") or b"\t"
            cells = (line.split(delimiter) for line in lines)
            lines = [row[column] for row in cells if 0 <= column < len(row)]
        table = filling.table
        dtype = table.attr["key_dtype"].type if "key_dtype" in table.attr else types_pb2.DT_STRING
        if dtype in (types_pb2.DT_INT64, types_pb2.DT_INT32):
            return [int(line) for line in lines if _INTEGER.fullmatch(line)]
        return list(dict.fromkeys(lines))

    def _saved(self, name: str) -> Array:
        """Keys that are in the checkpoint."""
        prefix, none = self._model / "variables" / "variables", np.zeros([0])
        if not Path(f"{prefix}.index").is_file():
            return none
        reader = tf.train.load_checkpoint(str(prefix))
        shape = reader.get_variable_to_shape_map().get(name)
        if shape is None or shape[1:] not in ([], [1]) or shape[0] > _MAX_KEYS:
            return none
        keys: Array = reader.get_tensor(name)
        return keys


def _number(node: node_def_pb2.NodeDef, key: str, default: int) -> int:
    return int(node.attr[key].i) if key in node.attr else default


def _constant(node: node_def_pb2.NodeDef) -> Array:
    value: Array = tensor_util.MakeNdarray(node.attr["value"].tensor)
    return value


def _spread(keys: Array) -> list[Any]:
    """Returns at most 1,000 keys, spread over an array."""
    flat = keys.ravel()
    sample: list[Any] = flat[:: max(1, -(-flat.size // _MAX_WORDS))].tolist()
    return [key for key in sample if isinstance(key, bytes | int)]


def _lines(file: Path) -> list[bytes]:
    """Returns the first lines of a file, but for one that is cut off, and overlong ones."""
    with open(file, "rb") as opened:
        head = opened.read(_HEAD + 1)
    lines = head.replace(b"\r", b"").split(b"\n")
    if len(head) > _HEAD or not lines[-1]:
        lines = lines[:-1]
    return [line for line in lines if len(line) < _LONGEST_WORD]
