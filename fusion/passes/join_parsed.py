"""Dense features of Examples that are joined are written side by side by the parser.

    ParseExampleV2 -> ConcatV2 on axis 1, or Pack       becomes     an output of FusedParseExample

Before lookups are recognised, features that stand side by side in a longer concat are joined there:

    ConcatV2(a, b, more)        becomes     ConcatV2(ConcatV2(a, b), more)

Ids of lookups that no program joins stay vectors: lookups of large batches would read columns of a
matrix slower than these.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import groupby
from math import prod
from typing import NamedTuple

import numpy as np
from tensorflow.core.framework import types_pb2

from fusion.passes.emit.node_builder import NodeBuilder, set_attrs, set_types
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node, Value
from fusion.passes.graph.view import GraphView
from fusion.passes.plan.safety import refuse_device
from fusion.passes.recognise.parsing import DenseFeature, ParseSpec, match_parsers


class Join(NamedTuple):
    """What joins dense features, and their numbers in the order of a row."""

    node: str
    features: tuple[int, ...]


def joins_of(view: GraphView, name: str, spec: ParseSpec, hashed: Collection[str]) -> list[Join]:
    """Returns which features of a parser one op joins, which nothing else reads.

    Args:
        view: the graph.
        name: the parser.
        spec: what it is asked for.
        hashed: hashes that the parser does: they stand for its outputs.
    """
    if name in view.preserved or spec.serialized.shape is None or len(spec.serialized.shape) != 1:
        return []
    numbers = {
        tensor: k
        for k, number in _dense_numbers(spec).items()
        if len(view.tensor_uses(tensor := Tensor(name, number))) == 1
    }
    numbers |= {
        Tensor(node): numbers[one]
        for node in hashed
        if (one := view.resolve(view.inputs(node)[0])) in numbers
    }
    users = dict.fromkeys(use.node for tensor in numbers for use in view.tensor_uses(tensor))
    devices = "", view.nodes[name].device
    nodes = (Node(view, user) for user in users if user in view.nodes)
    found = (
        _join(node, numbers, spec) for node in nodes if view.nodes[node.name].device in devices
    )
    return [join for join in found if join is not None]


def _dense_numbers(spec: ParseSpec) -> dict[int, int]:
    """Returns the outputs of dense features."""
    return {k: 3 * len(spec.sparse) + k for k in range(len(spec.dense))}


def _join(node: Node, numbers: dict[Tensor, int], spec: ParseSpec) -> Join | None:
    """Returns what a node joins, if that is nothing but features."""
    rows = _joined_rows(node)
    if rows is None or len(rows) < 2 or node.is_preserved or node.controls:
        return None
    features = [numbers.get(one.tensor) for one in rows]
    if None in features or len({*features}) < len(features):
        return None
    rank = 0 if node.op == "Pack" else 1
    for value, number in zip(rows, features, strict=True):
        feature = spec.dense[number or 0]
        uses = [*node.view.tensor_uses(value.tensor)]
        is_row = len(feature.shape) == rank and None not in feature.shape and 0 not in feature.shape
        if len(uses) > 1 or not is_row or value.dtype != rows[0].dtype:
            return None
    return Join(node.name, tuple(number or 0 for number in features))


def _joined_rows(node: Node) -> tuple[Value, ...] | None:
    """Returns what a node puts side by side in rows: matrices, or vectors of a number each."""
    if node.op == "Pack" and node.int_attr("axis") in (1, -1):
        return node.inputs
    if node.op != "ConcatV2":
        return None
    *rows, axis = node.inputs
    # Constants wait for others as well.
    return tuple(rows) if axis.item in (1, -1) and not axis.producer.controls else None


def side_by_side(spec: ParseSpec, joins: list[Join]) -> tuple[tuple[int, int], ...]:
    """Returns the `outputs` of a spec."""
    joined = {number: join for join in joins for number in join.features}
    outputs, ends = dict[object, int](), list[tuple[int, int]]()
    for number in range(len(spec.dense)):
        join = joined.get(number)
        output = outputs.setdefault(number if join is None else join, len(outputs))
        before = () if join is None else join.features[: join.features.index(number)]
        ends.append((output, sum(prod(map(_size, spec.dense[k].shape)) for k in before)))
    return tuple(ends)


def _size(size: int | None) -> int:
    return size or 0


def read_joined(edit: GraphEdit, name: str, spec: ParseSpec, joins: list[Join], first: int) -> None:
    """Lets all who read what was joined read the parser.

    Args:
        edit: that has the parser already.
        name: of the parser.
        spec: with its `outputs`.
        joins: what it writes side by side.
        first: the number of its first dense output.
    """
    for join in joins:
        output, _ = spec.outputs[join.features[0]]
        edit.replace(Tensor(join.node), Tensor(name, first + output))
        edit.remove([join.node], name)


def with_joined(view: GraphView, tasks: frozenset[str] | None) -> GraphEdit | None:
    """Returns a graph in which features that stand side by side are joined; None if there are none.

    Args:
        view: the graph.
        tasks: the processes that know the fused op; None: all.
    """
    edit, rows = GraphEdit(view), dict[Tensor, DenseFeature]()
    for node, spec in match_parsers(view):
        if not isinstance(spec, ParseSpec) or node.is_preserved:
            continue
        is_batch = spec.serialized.shape is not None and len(spec.serialized.shape) == 1
        if is_batch and refuse_device(view, node.name, tasks) is None:
            rows |= {
                Tensor(node.name, 3 * len(spec.sparse) + number): feature
                for number, feature in enumerate(spec.dense)
                if len(feature.shape) == 1 and feature.shape[0]
            }
    _join_runs(edit, rows)
    return edit if edit.added else None


def _join_runs(edit: GraphEdit, rows: Collection[Tensor]) -> None:
    """Joins features of a parser that stand side by side in a longer concat."""
    users = dict.fromkeys(use.node for row in rows for use in edit.view.tensor_uses(row))
    for name in users:
        node = Node(edit.view, name)
        if node.op != "ConcatV2" or _joined_rows(node) is None:
            continue
        values = [value.tensor for value in node.inputs]
        runs = [*_runs(edit.view, values, rows)]
        if not runs or len(runs[0]) == len(values) - 1:
            continue
        outer = edit.changed(name)
        for run in reversed(runs):
            parser = values[run.start].node
            build = NodeBuilder(edit, name, edit.view.nodes[parser].device, parser)
            inner = build.node("numbers", "ConcatV2")
            axis = build.constant("axis", np.array(1, np.int32))
            build.inputs(inner, *(values[k] for k in run), axis)
            set_types(inner, T=node.type_attr("T"), Tidx=types_pb2.DT_INT32)
            set_attrs(inner, N=len(run))
            build.add(inner)
            outer.input[run.start] = edit.text(Tensor(inner.name))
            del outer.input[run.start + 1 : run.stop]
        set_attrs(outer, N=len(values) - 1 - sum(len(run) - 1 for run in runs))


def _runs(view: GraphView, values: list[Tensor], rows: Collection[Tensor]) -> Iterator[range]:
    """Yields where features of a parser, which nothing else reads, stand side by side."""
    parsers = [
        value.node if value in rows and len(view.tensor_uses(value)) == 1 else None
        for value in values
    ]
    start = 0
    for parser, group in groupby(parsers):
        end = start + len([*group])
        if parser is not None and end - start > 1:
            yield range(start, end)
        start = end
