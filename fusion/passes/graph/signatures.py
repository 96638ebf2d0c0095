"""Names and counts of an op's outputs, from op definitions and node attributes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache

from tensorflow.core.framework import attr_value_pb2, function_pb2, node_def_pb2, op_def_pb2

from fusion.runtime.tensorflow.private import op_def_registry

_MAX_OUTPUTS = 1 << 20
"""A node that says that it has more is damaged, and its outputs are better not counted."""


class OpSignatures:
    """Looks up op definitions: library functions first, then TensorFlow's registry."""

    def __init__(self, functions: Iterable[function_pb2.FunctionDef] = ()) -> None:
        self._functions = {f.signature.name: f.signature for f in functions}
        self._stateful: dict[str, bool] = {}

    def op_def(self, op: str) -> op_def_pb2.OpDef | None:
        """Returns the definition of `op`, or None for an op unknown to this process."""
        return self._functions.get(op) or _registered(op)

    @property
    def functions(self) -> Collection[str]:
        """The names of the library functions."""
        return self._functions.keys()

    def is_function(self, op: str) -> bool:
        """Whether `op` is a library function."""
        return op in self._functions

    def is_stateful(self, op: str) -> bool:
        """Whether running `op` may have an effect; an unknown op counts as stateful."""
        if op not in self._stateful:
            self._stateful[op] = self._is_stateful(op)
        return self._stateful[op]

    def _is_stateful(self, op: str) -> bool:
        definition = self.op_def(op)
        if definition is None or definition.is_stateful:
            return True
        # Those that change a reference variable are not called stateful.
        return any(arg.is_ref for arg in definition.input_arg)

    def outputs(self, node: node_def_pb2.NodeDef) -> tuple[str, ...] | None:
        """Returns the function-syntax suffix of each output, e.g. ("output:0", "idx:0").

        Returns None when the op is unknown, whose outputs then have no known order.

        Raises:
            ValueError: the node says that it has more outputs than any node can have.
        """
        definition = self.op_def(node.op)
        if definition is None:
            return None
        count = sum(max(arg_length(arg, node.attr), 0) for arg in definition.output_arg)
        if count > _MAX_OUTPUTS:
            raise ValueError(f"node {node.name!r} has {count} outputs")
        return tuple(
            f"{arg.name}:{i}"
            for arg in definition.output_arg
            for i in range(arg_length(arg, node.attr))
        )

    def output_types(self, node: node_def_pb2.NodeDef) -> tuple[int, ...]:
        """Returns the DataType of each output, 0 where it is unknown; () when the op is unknown."""
        definition = self.op_def(node.op)
        if definition is None:
            return ()
        attrs = {attr.name: attr.default_value for attr in definition.attr} | dict(node.attr)
        dtypes: list[int] = []
        for arg in definition.output_arg:
            if arg.type_list_attr:
                dtypes += attrs[arg.type_list_attr].list.type
            else:
                dtype = arg.type or attrs[arg.type_attr].type
                dtypes += [dtype] * max(arg_length(arg, attrs), 0)
        return tuple(dtypes)


def arg_length(arg: op_def_pb2.OpDef.ArgDef, attrs: Mapping[str, attr_value_pb2.AttrValue]) -> int:
    """Returns how many tensors the (possibly list-valued) argument stands for."""
    if arg.number_attr:
        return int(attrs[arg.number_attr].i) if arg.number_attr in attrs else 0
    if arg.type_list_attr:
        return len(attrs[arg.type_list_attr].list.type) if arg.type_list_attr in attrs else 0
    return 1


@cache
def _registered(op: str) -> op_def_pb2.OpDef | None:
    op_def: op_def_pb2.OpDef | None = op_def_registry.get(op)
    return op_def
