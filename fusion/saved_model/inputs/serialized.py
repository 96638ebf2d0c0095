"""Makes records: Examples, SequenceExamples, protocol buffers, lines of CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from fusion.saved_model.inputs.constraints import Constraints, Extent, Key, divided_rows
from fusion.saved_model.inputs.records import Feature, Format, RecordSpec

Values = Callable[[Key, int, int], Sequence[Any]]
"""Makes up so many values of a field: its key, their dtype and their number."""

Length = Callable[[Feature, Key], int]
"""Makes up the number of values of a field of any length, or of the steps of a list."""


class Field(NamedTuple):
    """A field of a record with its values.

    Attributes:
        feature: the field.
        values: its values; of a feature list those of each step.
        are_records: whether they are records that were made up.
    """

    feature: Feature
    values: list[Any]
    are_records: bool


Fields = Sequence[Field]

_NUMBERS = frozenset([FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE])
_UNKNOWN_DIM = 2


class RecordMaker:
    """Makes records of an input, one after the other.

    Fields that are linked have as many values as each other in each record, and miss the same ones.
    """

    def __init__(
        self,
        records: Mapping[Key, RecordSpec],
        constraints: Constraints,
        values: Values,
        length: Length,
        is_missing: Callable[[], bool],
        is_equal: bool,
    ) -> None:
        """Takes the specs of records, and the functions that make their values.

        Args:
            records: what they consist of.
            constraints: what their fields have to do with each other.
            values: see `Values`.
            length: see `Length`.
            is_missing: says of one element after the other whether it is missing.
            is_equal: whether all fields of a record have equally many values.
        """
        self._records = records
        self._constraints = constraints
        self._values = values
        self._length = length
        self._is_missing = is_missing
        self._is_equal = is_equal

    def __call__(self, key: Key) -> bytes:
        """Returns a serialized record of the input or field `key`."""
        spec = self._records[key]
        lengths: dict[Extent, int] = {}
        masks: dict[Key, list[bool]] = {}
        children = {f: Key(key.input, (*key.path, f.key)) for f in spec.features}
        divided = {f: self._divided(f, child, lengths) for f, child in children.items()}
        fields: list[Field] = []
        for feature, child in children.items():
            values: list[Any] | None = divided[feature]
            if values is None:
                count = self._count(feature, child, lengths)
                if feature.is_list:
                    values = [self._step(feature, child) for _ in range(count)]
                else:
                    values = self._masked(child, self._field(feature, child, count), masks)
            fields.append(Field(feature, values, child in self._records))
        return _WRITERS[spec.format](spec, fields)

    def _divided(self, feature: Feature, key: Key, lengths: dict[Extent, int]) -> list[int] | None:
        """Returns the row splits, lengths or ids that a field has to hold, else None.

        The number of entries in these rows becomes that of the fields with the entries.
        """
        role = self._constraints.divider(key)
        if role is None or feature.shape is not None or feature.is_list:
            return None
        rows = self._length(feature, key)
        bags = np.array([self._length(feature, key) for _ in range(rows)], np.int64)
        lengths[self._group(Extent(key, is_inside=True))] = int(bags.sum())
        values: list[int] = divided_rows(role, bags).tolist()
        return values

    def _group(self, extent: Extent) -> Extent:
        return min(self._constraints.linked(extent), key=repr)

    def _count(self, feature: Feature, key: Key, lengths: dict[Extent, int]) -> int:
        if feature.shape is not None and not feature.is_list:
            return _size(feature.shape)
        group = self._group(Extent(key))
        if group not in lengths and self._is_equal and key not in self._records:
            group = Extent(Key(key.input))
        if group not in lengths:
            lengths[group] = self._length(feature, key)
        return lengths[group]

    def _step(self, feature: Feature, key: Key) -> list[Any]:
        """Returns the values of one step of a feature list."""
        is_dense = feature.shape is not None
        count = _size(feature.shape or ()) if is_dense else self._length(feature, key)
        return self._field(feature, key, count)

    def _field(self, feature: Feature, key: Key, count: int) -> list[Any]:
        if key in self._records:
            return [self(key) for _ in range(count)]
        return list(self._values(key, feature.dtype, count))

    def _masked(self, key: Key, values: list[Any], masks: dict[Key, list[bool]]) -> list[Any]:
        """Returns the values with some missing, the same ones as in its sibling fields."""
        same = self._constraints.same_missing(key)
        if not same:
            return values
        group = min(same)
        if group not in masks:
            masks[group] = [self._is_missing() for _ in values]
        if len(masks[group]) != len(values):
            return values
        return [
            same[key] if missing else value
            for value, missing in zip(values, masks[group], strict=True)
        ]


def _size(shape: Sequence[int]) -> int:
    return int(np.prod([dim if dim >= 0 else _UNKNOWN_DIM for dim in shape]))


def _set(target: tf.train.Feature, dtype: int, values: Sequence[Any]) -> None:
    tf_dtype = tf.dtypes.as_dtype(dtype)
    if tf_dtype == tf.string:
        target.bytes_list.value.extend(values)
    elif tf_dtype.is_floating:
        target.float_list.value.extend(values)
    else:
        target.int64_list.value.extend(values)


def _example(spec: RecordSpec, fields: Fields) -> bytes:
    example = tf.train.Example()
    for feature, values, _ in fields:
        _set(example.features.feature[feature.key], feature.dtype, values)
    return _bytes(example)


def _sequence(spec: RecordSpec, fields: Fields) -> bytes:
    example = tf.train.SequenceExample()
    for feature, values, _ in fields:
        if not feature.is_list:
            _set(example.context.feature[feature.key], feature.dtype, values)
            continue
        steps = example.feature_lists.feature_list[feature.key]
        for step in values:
            _set(steps.feature.add(), feature.dtype, step)
    return _bytes(example)


def _proto(spec: RecordSpec, fields: Fields) -> bytes:
    name, descriptors = spec.message
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
        pool.Add(file)
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))()
    for feature, values, are_records in fields:
        field = message.DESCRIPTOR.fields_by_name.get(feature.key)
        if field is None:
            continue
        is_repeated = hasattr(getattr(message, field.name), "extend")
        field_values = values if is_repeated else values[:1]
        if field.message_type is not None:
            _nest(message, field, field_values if are_records else [b""] * len(field_values))
        elif is_repeated:
            getattr(message, field.name).extend(_plain(field, value) for value in field_values)
        else:
            for value in field_values:
                setattr(message, field.name, _plain(field, value))
    return _bytes(message)


def _nest(message: Message, field: FieldDescriptor, records: list[bytes]) -> None:
    """Adds serialized messages to a field; no entries to a map, whose keys are unknown."""
    if field.message_type.GetOptions().map_entry:
        return
    target = getattr(message, field.name)
    for record in records:
        nested = target.add() if hasattr(target, "add") else target
        nested.SetInParent()
        nested.MergeFromString(record)


def _plain(field: FieldDescriptor, value: Any) -> Any:
    """Returns a value as a field of its type takes it."""
    if field.enum_type is not None:
        numbers = [value.number for value in field.enum_type.values]
        return numbers[int(value) % len(numbers)]
    if field.type == FieldDescriptor.TYPE_BYTES:
        return value
    if field.type == FieldDescriptor.TYPE_STRING:
        return value.decode(errors="replace")
    if field.cpp_type in _NUMBERS:
        return float(value)
    return bool(value) if field.type == FieldDescriptor.TYPE_BOOL else int(value)


def _csv(spec: RecordSpec, fields: Fields) -> bytes:
    columns = {int(feature.key): _cell(spec, values[0]) for feature, values, _ in fields}
    row = [columns.get(index, "") for index in range(max(columns, default=-1) + 1)]
    line = io.StringIO()
    csv.writer(line, delimiter=spec.delimiter, lineterminator="").writerow(row)
    return line.getvalue().encode()


def _cell(spec: RecordSpec, value: Any) -> str:
    """Returns the text of a value, with a blank added to a word that would be a missing value.

    Nothing is one, quoted or not, and an error in a column without a default.
    """
    text = value.decode(errors="replace") if isinstance(value, bytes) else f"{value}"
    return f"{spec.missing} " if isinstance(value, bytes) and text in ("", spec.missing) else text


def _bytes(message: Message) -> bytes:
    # Of required fields those that the model does not read are missing.
    serialized: bytes = message.SerializePartialToString(deterministic=True)
    return serialized


_WRITERS: dict[Format, Callable[[RecordSpec, Fields], bytes]] = {
    Format.EXAMPLE: _example,
    Format.SEQUENCE: _sequence,
    Format.PROTO: _proto,
    Format.CSV: _csv,
}
