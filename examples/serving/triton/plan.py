"""What Triton has to know of a split model: its lookups, and the tensors of its dense model."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorflow.core.framework import types_pb2

from fusion.saved_model.model.source import read_saved_model
from fusion.saved_model.split.folder import DENSE, is_split

SIGNATURE, FLAT, EMBEDDINGS = "serving_default", "flat", "embeddings"

TYPES = {
    types_pb2.DT_BOOL: "TYPE_BOOL",
    types_pb2.DT_UINT8: "TYPE_UINT8",
    types_pb2.DT_INT8: "TYPE_INT8",
    types_pb2.DT_INT16: "TYPE_INT16",
    types_pb2.DT_INT32: "TYPE_INT32",
    types_pb2.DT_INT64: "TYPE_INT64",
    types_pb2.DT_HALF: "TYPE_FP16",
    types_pb2.DT_FLOAT: "TYPE_FP32",
    types_pb2.DT_DOUBLE: "TYPE_FP64",
    types_pb2.DT_STRING: "TYPE_STRING",
}
"""Triton's names of dtypes."""


@dataclass(frozen=True)
class Lookup:
    """A lookup: each key gives a row of a table.

    Attributes:
        name: of the dense model's input.
        table: the name of the table.
        dimension: elements of a row.
        shape: of what one example of a batch gets.
    """

    name: str
    table: str
    dimension: int
    shape: tuple[int, ...]

    @property
    def key_count(self) -> int:
        """How many keys an example has."""
        return math.prod(self.shape) // self.dimension


@dataclass(frozen=True)
class TensorOf:
    """An input or output of the dense model.

    Attributes:
        name: of it.
        kind: its dtype, as Triton calls it.
        dims: its sizes, -1 where they may be any.
    """

    name: str
    kind: str
    dims: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """A split model.

    Attributes:
        folder: where it is.
        lookups: in the order of their keys.
        inputs: of the dense model, besides embeddings.
        outputs: of the dense model.
        has_flat: whether it takes all embeddings in one vector.
    """

    folder: Path
    lookups: tuple[Lookup, ...]
    inputs: tuple[TensorOf, ...]
    outputs: tuple[TensorOf, ...]
    has_flat: bool


def read_split(folder: Path) -> Plan:
    """Returns what Triton has to know of a split model.

    Raises:
        ValueError: it is none, or has something that Triton or its keys cannot express.
        ModelError: its dense model cannot be read.
    """
    if not is_split(folder):
        raise ValueError(f"{folder}: not what `fusion split` has made")
    facts = json.loads((folder / "fusion.json").read_text())
    signatures = read_saved_model(folder / DENSE).meta_graphs[0].signature_def
    if SIGNATURE not in signatures:
        raise ValueError(f"{folder}: has no signature {SIGNATURE!r}")
    dense = signatures[SIGNATURE]
    tables = {table["name"]: table for table in facts["tables"]}
    found = [one for one in facts["lookups"] if one["name"] in dense.inputs]
    names = {one["name"] for one in found}
    return Plan(
        folder,
        tuple(_lookup(one, tables) for one in found),
        tuple(_tensor(name, dense.inputs[name]) for name in sorted(dense.inputs.keys() - names)),
        tuple(_tensor(name, info) for name, info in sorted(dense.outputs.items())),
        FLAT in signatures and [*signatures[FLAT].inputs] == [EMBEDDINGS],
    )


def _lookup(facts: Mapping[str, Any], tables: Mapping[str, Any]) -> Lookup:
    name, (_, *shape) = facts["name"], facts["shape"]
    reason = ""
    if facts["combiner"] is not None:
        reason = f"it combines the rows of bags ({facts['combiner']}), whose ends keys do not tell"
    elif len(facts["tables"]) > 1:
        reason = "its table is in several parts"
    elif None in shape:
        reason = f"not all sizes of its result are known: {facts['shape']}"
    if reason:
        raise ValueError(f"lookup {name!r} cannot be told by KEYS and NUMKEYS: {reason}")
    (table,) = facts["tables"]
    return Lookup(name, table, tables[table]["dimension"], tuple(shape))


def _tensor(name: str, info: Any) -> TensorOf:
    if info.WhichOneof("encoding") != "name":
        raise ValueError(f"{name!r} is a sparse tensor, which Triton does not have")
    if info.tensor_shape.unknown_rank or not info.tensor_shape.dim:
        raise ValueError(f"{name!r} has no known rank from 1, which Triton needs")
    if info.dtype not in TYPES:
        raise ValueError(f"{name!r} is {types_pb2.DataType.Name(info.dtype)}, not known to Triton")
    return TensorOf(name, TYPES[info.dtype], tuple(d.size for d in info.tensor_shape.dim))
