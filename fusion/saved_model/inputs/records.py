"""What the records in a string tensor consist of, read from the op that parses them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice

from tensorflow.core.framework import node_def_pb2, tensor_shape_pb2, types_pb2

from fusion.schema.names import PARSE_EXAMPLE, PARSE_SEQUENCE

Texts = Sequence[tuple[bytes, ...]]
"""For each input of a parse op the strings it holds where those are constant, else ()."""


class Format(Enum):
    """A kind of record."""

    EXAMPLE = "tf.train.Example"
    SEQUENCE = "tf.train.SequenceExample"
    PROTO = "protocol buffer"
    CSV = "line of comma-separated values"


@dataclass(frozen=True)
class Feature:
    """One field of a record.

    Attributes:
        key: its name in the record; of a column of CSV its number.
        dtype: a DataType enum value.
        shape: of a dense feature, -1 for an unknown dimension; None for one of any length.
        is_list: whether it is a feature list of a SequenceExample: `shape` is that of a step.
    """

    key: str
    dtype: int
    shape: tuple[int, ...] | None
    is_list: bool = False


@dataclass(frozen=True)
class RecordSpec:
    """The fields that a parse op reads out of a record.

    Attributes:
        features: the fields.
        format: the kind of record.
        message: of a protocol buffer, its type and the serialized FileDescriptorSet.
        delimiter: of CSV, what separates the fields.
        missing: of CSV, what stands for a missing value, as nothing does.
    """

    features: tuple[Feature, ...]
    format: Format = Format.EXAMPLE
    message: tuple[str, bytes] = ("", b"")
    delimiter: str = ","
    missing: str = ""

    def merged(self, other: RecordSpec) -> RecordSpec:
        """Returns a spec with the features of both; the first definition of a key wins."""
        known = {(feature.key, feature.is_list) for feature in self.features}
        more = (f for f in other.features if (f.key, f.is_list) not in known)
        return replace(other, features=(*self.features, *more))


Parsed = tuple[RecordSpec, dict[int, str]]
"""The records, and for each flat output of the op that carries a feature's values, its key."""


class _Outputs:
    """Collects features in the order of a parse op's outputs, which come in groups."""

    def __init__(self) -> None:
        self.features: list[Feature] = []
        self.keys: dict[int, str] = {}
        self._next = 0

    def sparse(
        self, names: Sequence[bytes], types: Sequence[int], is_list: bool = False, parts: int = 3
    ) -> bool:
        """Adds features with `parts` outputs; returns whether there is a name for each.

        The values are the second of three parts, and the first of two.
        """
        values = self._next + (len(types) if parts == 3 else 0)
        self._next += parts * len(types)
        numbers = range(values, values + len(types))
        return self._add(names, types, [None] * len(types), numbers, is_list)

    def dense(
        self,
        names: Sequence[bytes],
        types: Sequence[int],
        shapes: Sequence[tensor_shape_pb2.TensorShapeProto],
        is_list: bool = False,
        outputs: Sequence[int] = (),
    ) -> bool:
        """Adds features of one output each, or of these: several may be side by side in one."""
        outputs = outputs or range(len(types))
        numbers = [self._next + number if outputs.count(number) == 1 else -1 for number in outputs]
        self._next += len({*outputs})
        dims = [tuple(dim.size for dim in shape.dim) for shape in shapes]
        return self._add(names, types, dims, numbers, is_list)

    def skip(self, count: int) -> bool:
        """Leaves out outputs."""
        self._next += count
        return True

    def _add(
        self,
        names: Sequence[bytes],
        types: Sequence[int],
        shapes: Sequence[tuple[int, ...] | None],
        numbers: Sequence[int],
        is_list: bool,
    ) -> bool:
        """Adds features, whose values are outputs of these numbers; -1 is no output."""
        if not len(names) == len(types) == len(shapes) == len(numbers):
            return False
        for name, dtype, shape, number in zip(names, types, shapes, numbers, strict=True):
            key = name.decode(errors="replace")
            self.features.append(Feature(key, dtype, shape, is_list))
            if number >= 0:
                self.keys[number] = key
        return True


def _types(node: node_def_pb2.NodeDef, name: str) -> list[int]:
    return list(node.attr[name].list.type)


def _flat(texts: Texts) -> list[bytes]:
    return [text for strings in texts for text in strings]


def _dense_shapes(
    node: node_def_pb2.NodeDef, part: str = "", first: int = 0
) -> Sequence[tensor_shape_pb2.TensorShapeProto]:
    """The shapes of dense features of a fused op, each from a dimension on."""
    sizes, shapes = iter(node.attr[f"{part}dense_dims"].list.i), []
    for rank in node.attr[f"{part}dense_ranks"].list.i:
        shapes.append(tensor_shape_pb2.TensorShapeProto())
        for size in [*islice(sizes, rank)][first:]:
            shapes[-1].dim.add(size=size)
    return shapes


def _value_types(node: node_def_pb2.NodeDef, kind: str, name: str) -> list[int]:
    """The dtypes of features of a kind in Examples, of the fused op too, which may hash strings."""
    types, buckets = _types(node, name), node.attr[f"{kind}_buckets"].list.i
    hashed = buckets or [0] * len(types)
    return [types_pb2.DT_STRING if n else one for one, n in zip(types, hashed, strict=True)]


def _example(node: node_def_pb2.NodeDef, texts: Texts, outputs: _Outputs) -> bool:
    sparse, dense = (
        _value_types(node, "sparse", "sparse_types"),
        _value_types(node, "dense", "Tdense"),
    )
    shapes, numbers = node.attr["dense_shapes"].list.shape, ()
    if node.op == PARSE_EXAMPLE:
        names = [list(node.attr[f"{kind}_keys"].list.s) for kind in ("sparse", "dense", "ragged")]
        shapes, numbers = _dense_shapes(node), tuple(node.attr["dense_outputs"].list.i)
    elif node.op == "ParseExampleV2":
        names = [list(strings) for strings in texts[2:5]]
    elif node.op == "ParseSingleExample":
        names = [list(node.attr[name].list.s) for name in ("sparse_keys", "dense_keys")]
    else:
        ends = 2 + len(sparse), 2 + len(sparse) + len(dense)
        names = [_flat(texts[2 : ends[0]]), _flat(texts[ends[0] : ends[1]])]
    ragged = _value_types(node, "ragged", "ragged_value_types")
    return (
        outputs.sparse(names[0], sparse)
        and outputs.dense(names[1], dense, shapes, outputs=numbers)
        and (not ragged or outputs.sparse(names[2], ragged, parts=2))
    )


def _sequence(node: node_def_pb2.NodeDef, texts: Texts, outputs: _Outputs) -> bool:
    """Reads both ops for batches, that for one SequenceExample, and the fused one.

    Of these the second has ragged features as well and keys as inputs, the third no lengths.
    """
    context, steps = "context", "feature_list"
    kinds = ("context_sparse", "context_dense", "feature_list_sparse", "feature_list_dense")
    if node.op == "ParseSequenceExampleV2":
        c_sparse, c_dense, c_ragged, l_sparse, l_dense, l_ragged = texts[2:8]
    elif node.op == "ParseSequenceExample":
        c_sparse, c_dense, l_sparse, l_dense = (
            tuple(node.attr[f"{kind}_keys"].list.s) for kind in kinds
        )
        c_ragged = l_ragged = ()
    elif node.op == PARSE_SEQUENCE:
        c_sparse, c_dense, c_ragged, l_sparse, l_dense, l_ragged = (
            tuple(node.attr[f"{part}_{kind}_keys"].list.s)
            for part in (context, steps)
            for kind in ("sparse", "dense", "ragged")
        )
    else:
        keys: list[tuple[bytes, ...]] = []
        start = 2
        for kind in kinds:
            count = node.attr[f"N{kind}"].i
            keys.append(tuple(_flat(texts[start : start + count])))
            start += count
        c_sparse, c_dense, l_sparse, l_dense = keys
        c_ragged = l_ragged = ()
    single = node.op == "ParseSingleSequenceExample"
    dense = _types(node, f"{steps}_dense_types")
    shapes = node.attr["context_dense_shapes"].list.shape
    step_shapes = node.attr["feature_list_dense_shapes"].list.shape
    if node.op == PARSE_SEQUENCE:
        dense = _types(node, "Tfeature_list_dense")
        shapes, step_shapes = (
            _dense_shapes(node, "context_"),
            _dense_shapes(node, "feature_list_", 1),
        )
    return (
        outputs.sparse(c_sparse, _types(node, f"{context}_sparse_types"))
        and outputs.dense(c_dense, _types(node, "Tcontext_dense"), shapes)
        and outputs.sparse(c_ragged, _types(node, f"{context}_ragged_value_types"), parts=2)
        and outputs.sparse(l_sparse, _types(node, f"{steps}_sparse_types"), is_list=True)
        and outputs.dense(l_dense, dense, step_shapes, is_list=True)
        and outputs.skip(0 if single else len(dense))
        and outputs.sparse(
            l_ragged, _types(node, f"{steps}_ragged_value_types"), is_list=True, parts=2
        )
    )


_READERS: dict[str, tuple[Format, Callable[[node_def_pb2.NodeDef, Texts, _Outputs], bool]]] = {
    "ParseExample": (Format.EXAMPLE, _example),
    "ParseExampleV2": (Format.EXAMPLE, _example),
    PARSE_EXAMPLE: (Format.EXAMPLE, _example),
    "ParseSingleExample": (Format.EXAMPLE, _example),
    "ParseSequenceExample": (Format.SEQUENCE, _sequence),
    "ParseSequenceExampleV2": (Format.SEQUENCE, _sequence),
    PARSE_SEQUENCE: (Format.SEQUENCE, _sequence),
    "ParseSingleSequenceExample": (Format.SEQUENCE, _sequence),
}
_DESCRIPTOR = b"bytes://"

PARSERS = frozenset([*_READERS, "DecodeProtoV2", "DecodeCSV"])
"""The ops whose input 0 holds records that can be made up."""

OPAQUE = frozenset(
    [
        "DecodeBase64", "DecodeBmp", "DecodeCompressed", "DecodeGif", "DecodeImage",
        "DecodeJSONExample", "DecodeJpeg", "DecodePaddedRaw", "DecodePng", "DecodeRaw",
        "DecodeWav", "ParseTensor", "ReadFile",
    ]
)  # fmt: skip
"""Those whose input 0 holds what cannot."""


def parsed_records(node: node_def_pb2.NodeDef, texts: Texts) -> Parsed | None:
    """Returns what a parse op reads, None if that is not constant."""
    if node.op == "DecodeCSV":
        return _csv(node)
    if node.op == "DecodeProtoV2":
        return _proto(node)
    record_format, read = _READERS[node.op]
    outputs = _Outputs()
    if not read(node, texts, outputs):
        return None
    return RecordSpec(tuple(outputs.features), record_format), outputs.keys


def _csv(node: node_def_pb2.NodeDef) -> Parsed:
    types = _types(node, "OUT_TYPE")
    chosen = list(node.attr["select_cols"].list.i) or list(range(len(types)))
    features = tuple(Feature(f"{c}", t, ()) for c, t in zip(chosen, types, strict=True))
    delimiter = node.attr["field_delim"].s.decode() or ","
    missing = node.attr["na_value"].s.decode()
    spec = RecordSpec(features, Format.CSV, delimiter=delimiter, missing=missing)
    return spec, {i: feature.key for i, feature in enumerate(features)}


def _proto(node: node_def_pb2.NodeDef) -> Parsed | None:
    source, name = node.attr["descriptor_source"].s, node.attr["message_type"].s.decode()
    if not source.startswith(_DESCRIPTOR) or node.attr["message_format"].s not in (b"", b"binary"):
        return None
    names = [text.decode() for text in node.attr["field_names"].list.s]
    types = _types(node, "output_types")
    features = tuple(Feature(key, t, None) for key, t in zip(names, types, strict=True))
    spec = RecordSpec(features, Format.PROTO, (name, source[len(_DESCRIPTOR) :]))
    return spec, {1 + i: feature.key for i, feature in enumerate(features)}
