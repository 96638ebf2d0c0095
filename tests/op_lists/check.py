"""Whether a release of TensorFlow can load a GraphDef, going by the list of its ops alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from tensorflow.core.framework import function_pb2, graph_pb2, node_def_pb2, op_def_pb2, types_pb2
from tensorflow.python.framework import op_def_registry

from tests.op_lists import OpLists, op_lists

#: The DataType of a reference to another one.
_REF = 100


def problems(graph_def: graph_pb2.GraphDef, release: str) -> list[str]:
    """Returns what a release refuses, of all nodes of the main graph and of the functions.

    That is ops and attrs that it does not know, values that attrs may not have there, attrs that
    are missing, inputs that are too many, too few or of another dtype, and dtypes without a kernel.
    """
    checker = _Checker(op_lists(release), graph_def)
    return [*checker.main_graph(), *checker.functions()]


def as_saved_by(graph_def: graph_pb2.GraphDef, release: str) -> graph_pb2.GraphDef:
    """Returns a graph without the attrs that a release does not have, if they have defaults.

    Nor has it the names of variables for people, which today's TensorFlow records.
    """
    ops, saved = op_lists(release).ops, graph_pb2.GraphDef()
    saved.CopyFrom(graph_def)
    for node in chain(saved.node, *(f.node_def for f in saved.library.function)):
        if node.op in ops:
            known = {attr.name for attr in ops[node.op].attr}
            for attr in op_def_registry.get(node.op).attr:
                if attr.name in known or attr.name not in node.attr:
                    continue
                if attr.name == "debug_name" or attr.default_value == node.attr[attr.name]:
                    del node.attr[attr.name]
    return saved


class _Checker:
    def __init__(self, lists: OpLists, graph_def: graph_pb2.GraphDef) -> None:
        self._lists, self._graph = lists, graph_def
        self._functions = {f.signature.name: f.signature for f in graph_def.library.function}

    def main_graph(self) -> Iterator[str]:
        """Yields the problems of the main graph."""
        dtypes = {}
        for node in self._graph.node:
            for index, dtype in enumerate(self._dtypes(node, "output_arg")):
                dtypes[f"{node.name}:{index}" if index else node.name] = dtype
        dtypes |= {f"{name}:0": dtype for name, dtype in dtypes.items() if ":" not in name}
        for node in self._graph.node:
            yield from self._problems(node, dtypes)

    def functions(self) -> Iterator[str]:
        """Yields the problems of the functions."""
        for function in self._graph.library.function:
            dtypes = {arg.name: arg.type for arg in function.signature.input_arg}
            for node in function.node_def:
                dtypes |= self._outputs(node)
            for problem in self._returned(function, dtypes):
                yield f"{function.signature.name}: {problem}"
            for node in function.node_def:
                for problem in self._problems(node, dtypes):
                    yield f"{function.signature.name}: {problem}"

    def _returned(
        self, function: function_pb2.FunctionDef, dtypes: Mapping[str, int]
    ) -> Iterator[str]:
        for arg in function.signature.output_arg:
            text = function.ret[arg.name]
            if arg.type and dtypes.get(text, arg.type) != arg.type:
                yield f"{arg.name}: {text} is {_name(dtypes[text])}, not {_name(arg.type)}"

    def _outputs(self, node: node_def_pb2.NodeDef) -> dict[str, int]:
        """The dtypes of a node's outputs, as functions name them."""
        definition, found = self._definition(node), {}
        for arg in () if definition is None else definition.output_arg:
            for index, dtype in enumerate(_arg_dtypes(arg, self._attrs(node))):
                found[f"{node.name}:{arg.name}:{index}"] = dtype
        return found

    def _definition(self, node: node_def_pb2.NodeDef) -> op_def_pb2.OpDef | None:
        return self._functions.get(node.op) or self._lists.ops.get(node.op)

    def _dtypes(self, node: node_def_pb2.NodeDef, field: str) -> list[int]:
        definition, attrs = self._definition(node), self._attrs(node)
        args = () if definition is None else getattr(definition, field)
        return [dtype for arg in args for dtype in _arg_dtypes(arg, attrs)]

    def _attrs(self, node: node_def_pb2.NodeDef) -> dict[str, Any]:
        """The attrs of a node, with those that have their default."""
        definition = self._definition(node)
        attrs = () if definition is None else definition.attr
        defaults = {a.name: a.default_value for a in attrs if a.HasField("default_value")}
        return defaults | dict(node.attr)

    def _problems(self, node: node_def_pb2.NodeDef, dtypes: Mapping[str, int]) -> Iterator[str]:
        definition = self._definition(node)
        if definition is None:
            yield f"{node.name}: no op {node.op}"
            return
        for problem in (
            *self._attr_problems(node, definition),
            *self._input_problems(node, dtypes),
            *self._kernel_problems(node),
        ):
            yield f"{node.name} ({node.op}): {problem}"

    def _attr_problems(
        self, node: node_def_pb2.NodeDef, definition: op_def_pb2.OpDef
    ) -> Iterator[str]:
        known = {attr.name for attr in definition.attr}
        attrs = self._attrs(node)
        if node.op not in self._functions:
            yield from (
                f"no attr {key}"
                for key in sorted(node.attr)
                if key not in known and not key.startswith("_")
            )
        for attr in definition.attr:
            if attr.name not in attrs:
                yield f"attr {attr.name} is missing"
                continue
            value, allowed = attrs[attr.name], attr.allowed_values.list
            types = [*value.list.type, *([value.type] if value.type else [])]
            strings = [*value.list.s, *([value.s] if value.s else [])]
            if allowed.type and not {*types} <= {*allowed.type}:
                yield f"{attr.name} is {', '.join(map(_name, types))}"
            if allowed.s and not {*strings} <= {*allowed.s}:
                yield f"{attr.name} is {strings}"

    def _input_problems(
        self, node: node_def_pb2.NodeDef, dtypes: Mapping[str, int]
    ) -> Iterator[str]:
        expected = self._dtypes(node, "input_arg")
        given = [text for text in node.input if not text.startswith("^")]
        if len(given) != len(expected):
            yield f"{len(given)} inputs, not {len(expected)}"
            return
        for text, dtype in zip(given, expected, strict=True):
            found = dtypes.get(text)
            if found is not None and found % _REF != dtype % _REF:
                yield f"{text} is {_name(found)}, not {_name(dtype)}"

    def _kernel_problems(self, node: node_def_pb2.NodeDef) -> Iterator[str]:
        attrs = self._attrs(node)
        kernels = self._lists.kernels.get(node.op)
        fits = any(
            all(attrs[key].type in dtypes for key, dtypes in kernel.items() if key in attrs)
            for kernel in kernels or ()
        )
        if kernels is not None and not fits:
            types = {key: _name(value.type) for key, value in attrs.items() if value.type}
            yield f"no kernel for {types}"


def _arg_dtypes(arg: op_def_pb2.OpDef.ArgDef, attrs: Mapping[str, Any]) -> list[int]:
    """The dtypes of the tensors that an argument stands for."""
    if arg.type_list_attr:
        return list(attrs[arg.type_list_attr].list.type) if arg.type_list_attr in attrs else []
    dtype = arg.type or (attrs[arg.type_attr].type if arg.type_attr in attrs else 0)
    count = attrs[arg.number_attr].i if arg.number_attr in attrs else 1
    return [dtype] * (count if arg.number_attr else 1)


def _name(dtype: int) -> str:
    ref = "ref of " if dtype > _REF else ""
    return f"{ref}{types_pb2.DataType.Name(dtype % _REF).removeprefix('DT_').lower()}"
