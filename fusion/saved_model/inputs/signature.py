"""The callable signatures of a meta graph, their inputs and outputs as plain tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import meta_graph_pb2, struct_pb2

from fusion.saved_model.inputs.composite_inputs import CompositeFinder, CompositeInputs

_INIT_SIGNATURES = frozenset(["__saved_model_init_op", "__saved_model_train_op"])
_SPARSE_PARTS = ("indices", "values", "dense_shape")


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a signature.

    Attributes:
        key: its name in the signature; a part of a sparse tensor is `name/values` and so on.
        tensor: its name in the graph, `node:0`.
        dtype: a DataType enum value; 0 where the signature does not say.
        shape: -1 for an unknown dimension; None for an unknown rank.
    """

    key: str
    tensor: str
    dtype: int
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class Signature:
    """One callable signature.

    Attributes:
        tags: the tags of its meta graph.
        name: its key.
        inputs: sorted by key.
        outputs: sorted by key.
        sparse: the (indices, values, dense_shape) keys of sparse tensors, which are inputs declared
            as such, or those that TensorFlow has put in the place of one.
        ragged: likewise the keys of the flat values and the row splits of ragged ones.
    """

    tags: tuple[str, ...]
    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    sparse: tuple[tuple[str, str, str], ...]
    ragged: tuple[tuple[str, ...], ...] = ()

    def input_of(self, key: str) -> str:
        """Returns the name of the input that a tensor is a part of.

        Of a sparse or ragged one whose parts are inputs, that is the name of the first of them,
        which is its name in Python.
        """
        for parts in (*self.sparse, *self.ragged):
            if key in parts and "/" not in parts[0]:
                return parts[0]
        return key.partition("/")[0]

    @property
    def input_names(self) -> list[str]:
        """The names of all inputs, sorted."""
        return sorted({self.input_of(spec.key) for spec in self.inputs})

    @property
    def title(self) -> str:
        """The signature for messages; the tags only when they are not the usual ones."""
        return self.name if self.tags == ("serve",) else f"{self.name} [{','.join(self.tags)}]"


def signatures(meta: meta_graph_pb2.MetaGraphDef) -> tuple[Signature, ...]:
    """Returns the signatures of `meta` that compute something, sorted by name."""
    tags, composites = tuple(meta.meta_info_def.tags), CompositeFinder(meta)
    return tuple(
        _signature(tags, name, meta.signature_def[name], composites(meta.signature_def[name]))
        for name in sorted(meta.signature_def)
        if name not in _INIT_SIGNATURES and meta.signature_def[name].outputs
    )


def _signature(
    tags: tuple[str, ...],
    name: str,
    signature: meta_graph_pb2.SignatureDef,
    composites: CompositeInputs,
) -> Signature:
    inputs = _tensors(signature.inputs)
    keys = {spec.key for spec in inputs}
    triples = ((f"{k}/indices", f"{k}/values", f"{k}/dense_shape") for k in signature.inputs)
    return Signature(
        tags,
        name,
        inputs,
        _tensors(signature.outputs),
        (*(triple for triple in triples if keys.issuperset(triple)), *composites.sparse),
        (*_ragged(signature.inputs), *composites.ragged),
    )


def _ragged(infos: Mapping[str, meta_graph_pb2.TensorInfo]) -> Iterator[tuple[str, ...]]:
    for key, info in sorted(infos.items()):
        composite = info.composite_tensor
        if composite.type_spec.type_spec_class == struct_pb2.TypeSpecProto.RAGGED_TENSOR_SPEC:
            yield tuple(f"{key}/{index}" for index in range(len(composite.components)))


def _tensors(infos: Mapping[str, meta_graph_pb2.TensorInfo]) -> tuple[TensorSpec, ...]:
    return tuple(spec for key in sorted(infos) for spec in _parts(key, infos[key]))


def _parts(key: str, info: meta_graph_pb2.TensorInfo) -> Iterator[TensorSpec]:
    """Yields the plain tensors that `info` consists of."""
    kind = info.WhichOneof("encoding")
    if kind == "coo_sparse":
        coo = info.coo_sparse
        names = (coo.indices_tensor_name, coo.values_tensor_name, coo.dense_shape_tensor_name)
        rank = -1 if info.tensor_shape.unknown_rank else len(info.tensor_shape.dim)
        shapes = ((-1, rank), (-1,), (rank,))
        for part, name, dtype, shape in zip(
            _SPARSE_PARTS,
            names,
            (types_pb2.DT_INT64, info.dtype, types_pb2.DT_INT64),
            shapes,
            strict=True,
        ):
            yield TensorSpec(f"{key}/{part}", name, dtype, shape)
    elif kind == "composite_tensor":
        components = info.composite_tensor.components
        is_sparse = (
            info.composite_tensor.type_spec.type_spec_class
            == struct_pb2.TypeSpecProto.SPARSE_TENSOR_SPEC
        )
        for index, component in enumerate(components):
            part = _SPARSE_PARTS[index] if is_sparse else str(index)
            yield from _parts(f"{key}/{part}", component)
    else:
        dims = tuple(dim.size for dim in info.tensor_shape.dim)
        yield TensorSpec(
            key, info.name, info.dtype, None if info.tensor_shape.unknown_rank else dims
        )
