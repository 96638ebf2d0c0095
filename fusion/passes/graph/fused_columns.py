"""The inputs and attrs of columns of ops for whole lookups, alone or grouped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from tensorflow.core.framework import attr_value_pb2

from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.schema.columns import COLUMN_ATTRS, Column, list_items


@dataclass(frozen=True)
class FusedColumn:
    """What a column is given, its attrs, and its name."""

    inputs: tuple[Tensor, ...]
    dtypes: tuple[int, int]
    column: Column
    boundaries: tuple[float, ...]
    name: str

    @property
    def is_copy(self) -> bool:
        """Whether it is a matrix that is taken over as it is."""
        return self.column.form == "copy"


def grouped_columns(view: GraphView, name: str) -> Iterator[FusedColumn]:
    """Yields the columns of a GroupedEmbeddingLookup."""
    count, inputs = view.int_attr(name, "num_columns"), view.inputs(name)
    lists = {
        attr.name: list_items(key, attr, [*_items(view, name, key, attr.kind)], count)
        for key, attr in COLUMN_ATTRS.items()
    }
    tids, trows = list_attr(view, name, "Tids").type, list_attr(view, name, "Trows").type
    boundaries = [*list_attr(view, name, "boundaries").f]
    counts = [*list_attr(view, name, "boundary_counts").i]
    names = _names(view, name) or [""] * count
    for index in range(count):
        start = sum(counts[:index])
        yield FusedColumn(
            inputs=inputs[index::count],
            dtypes=(tids[index], trows[index]),
            column=Column.of({key: values[index] for key, values in lists.items()}),
            boundaries=tuple(boundaries[start : start + counts[index]]),
            name=names[index],
        )


def output_columns(view: GraphView, name: str) -> list[range]:
    """Returns which columns are side by side in each output of an op for many."""
    counts = list_attr(view, name, "output_columns").i or [view.int_attr(name, "num_columns")]
    ends = [*accumulate(counts)]
    return [range(end - count, end) for count, end in zip(counts, ends, strict=True)]


def only_column(view: GraphView, name: str) -> FusedColumn:
    """Returns the column of a FusedEmbeddingLookup."""
    attrs = {}
    for attr in COLUMN_ATTRS.values():
        value = view.attr(name, attr.name)
        assert value is not None, "attrs have a default or are there"
        attrs[attr.name] = _plain(value)
    dtypes = view.type_attr(name, "Tids"), view.type_attr(name, "Trows")
    boundaries = tuple(list_attr(view, name, "boundaries").f)
    called = view.text_attr(name, "column_name")
    return FusedColumn(view.inputs(name), dtypes, Column(**attrs), boundaries, called)


def _names(view: GraphView, name: str) -> list[str]:
    """Returns what messages call the columns, if the op says."""
    return [text.decode(errors="replace") for text in list_attr(view, name, "column_names").s]


def list_attr(view: GraphView, name: str, key: str) -> attr_value_pb2.AttrValue.ListValue:
    """Returns an attr that is a list, an empty one where it is absent."""
    attr = view.attr(name, key)
    return attr_value_pb2.AttrValue.ListValue() if attr is None else attr.list


def _items(view: GraphView, name: str, key: str, kind: str) -> Iterator[Any]:
    values = list_attr(view, name, key)
    if kind == "string":
        return (text.decode() for text in values.s)
    return iter({"bool": values.b, "int": values.i, "float": values.f}[kind])


def _plain(value: attr_value_pb2.AttrValue) -> Any:
    kind = value.WhichOneof("value")
    return value.s.decode() if kind == "s" else getattr(value, kind or "i")
