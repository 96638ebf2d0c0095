"""Which arguments of a model's functions are the parts of one ragged or sparse tensor.

The signatures of a SavedModel have plain tensors alone, but the functions that they call were
traced with composite ones, and the object graph has the specs of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tensorflow.core.protobuf import meta_graph_pb2, struct_pb2

_SPARSE = struct_pb2.TypeSpecProto.SPARSE_TENSOR_SPEC
_RAGGED = struct_pb2.TypeSpecProto.RAGGED_TENSOR_SPEC
_LEAVES = frozenset(["tensor_spec_value", "bounded_tensor_spec_value"])


class Composite(NamedTuple):
    """The arguments that one composite tensor is passed as.

    Attributes:
        is_sparse: whether they are indices, values and dense shape; else flat values and the row
            splits from the outermost on.
        arguments: their indices.
        has_any_rows: whether it may have any number of rows.
    """

    is_sparse: bool
    arguments: tuple[int, ...]
    has_any_rows: bool = True


def composite_arguments(
    meta: meta_graph_pb2.MetaGraphDef,
) -> dict[str, tuple[Composite, ...]]:
    """Returns the composite tensors of each function that the object graph describes."""
    functions = meta.object_graph_def.concrete_functions
    composites_of = {
        name: tuple(_composites(function.canonicalized_input_signature))
        for name, function in functions.items()
    }
    return {name: composites for name, composites in composites_of.items() if composites}


def _composites(structure: struct_pb2.StructuredValue) -> Iterator[Composite]:
    index = 0
    for leaf in _leaves(structure):
        kind = leaf.WhichOneof("kind")
        if kind in _LEAVES:
            index += 1
        elif kind == "type_spec_value":
            spec = leaf.type_spec_value
            count = spec.num_flat_components or _usual_parts(spec)
            if count == 0:
                return  # a spec of the user's own: what follows it has no known index
            if spec.type_spec_class in (_SPARSE, _RAGGED) and count > 1:
                arguments = tuple(range(index, index + count))
                is_sparse = spec.type_spec_class == _SPARSE
                yield Composite(is_sparse, arguments, _has_any_rows(spec))
            index += count


def _leaves(value: struct_pb2.StructuredValue) -> Iterator[struct_pb2.StructuredValue]:
    """Yields what a structure consists of, in the order of `tf.nest.flatten`."""
    kind = value.WhichOneof("kind")
    if kind in ("list_value", "tuple_value"):
        for part in getattr(value, kind).values:
            yield from _leaves(part)
    elif kind == "dict_value":
        for key in sorted(value.dict_value.fields):
            yield from _leaves(value.dict_value.fields[key])
    elif kind == "named_tuple_value":
        for pair in value.named_tuple_value.values:
            yield from _leaves(pair.value)
    else:
        yield value


def _has_any_rows(spec: struct_pb2.TypeSpecProto) -> bool:
    """Whether the first dimension of a sparse or ragged tensor is not known."""
    state = spec.type_state.tuple_value.values
    dims = state[0].tensor_shape_value.dim if state else ()
    return not dims or dims[0].size < 0


def _usual_parts(spec: struct_pb2.TypeSpecProto) -> int:
    """Returns the number of tensors of a spec whose file does not say so, 0 if it is unknown."""
    if spec.type_spec_class == _SPARSE:
        return 3
    if spec.type_spec_class == _RAGGED:
        return 1 + int(spec.type_state.tuple_value.values[2].int64_value)
    return 0


def flattened_arguments(names: Iterable[str]) -> Iterator[list[str]]:
    """Yields inputs that are called as TensorFlow calls the parts of one argument: a, a_1, a_2."""
    known = set(names)
    for name in sorted(known):
        parts = [name]
        while (part := f"{name}_{len(parts)}") in known:
            parts.append(part)
        if len(parts) > 1:
            yield parts
