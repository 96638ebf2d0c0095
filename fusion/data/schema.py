"""Which tensors come of the columns of a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pyarrow as pa
import tensorflow as tf

from fusion.data.files import DataError


class Role(Enum):
    """What a column is of a model."""

    LABEL = "label_names"
    CATEGORICAL = "cat_names"
    CONTINUOUS = "cont_names"


class Form(Enum):
    """What the tensors of a column of lists are."""

    OFFSETS = "offsets"
    """`<name>__values`, [values], and `<name>__offsets`, int64 [rows + 1]."""
    RAGGED = "ragged"
    SPARSE = "sparse"
    DENSE = "dense"
    """Padded with zeros, or empty strings."""


@dataclass(frozen=True)
class Column:
    """A column of files and the tensors that it becomes.

    Attributes:
        name: in the files.
        dtype: of the tensor.
        width: values of a row: 1, or the size of lists that all have the same.
        form: of lists of any length; None if it holds none.
        longest: the most values that such a list may have; None for any number.
        fill_value: what stands for nulls and NaNs; None to refuse nulls.
    """

    name: str
    dtype: tf.DType
    width: int = 1
    form: Form | None = None
    longest: int | None = None
    fill_value: Any = None

    @property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of its values."""
        if self.dtype == tf.string:
            return pa.large_binary()
        return pa.from_numpy_dtype(self.dtype.as_numpy_dtype)

    @property
    def row_type(self) -> pa.DataType:
        """The Arrow type of its rows."""
        if self.form is not None:
            return pa.large_list(self.arrow_type)
        return self.arrow_type if self.width == 1 else pa.list_(self.arrow_type, self.width)


@dataclass(frozen=True)
class Nulls:
    """A column that has nulls alone in a file, so that its type is that of other files.

    Attributes:
        name: in the files.
        is_list: whether it is one of lists of any length, in which nulls may be.
        width: the size of its lists that all have the same; None if it holds none.
    """

    name: str
    is_list: bool = False
    width: int | None = None

    def may_be(self, other: Column | Nulls) -> bool:
        """Whether it may be a column that other files have."""
        if not self.is_list and self.width is None:
            return True
        if isinstance(other, Nulls):
            return self == other
        if self.is_list:
            return other.form is not None
        return other.form is None and other.width == self.width


def merged(one: Column | Nulls, other: Column | Nulls) -> Column | Nulls | None:
    """What a column is that is this in one file and that in another; None if it is not the same."""
    if isinstance(one, Nulls) and one.may_be(other):
        return other
    if isinstance(other, Nulls) and other.may_be(one):
        return one
    return one if one == other else None


@dataclass(frozen=True)
class Request:
    """What is asked of the columns of files, see `ParquetLoader`."""

    roles: Mapping[str, Role]
    forms: Mapping[str, Form]
    sparse_max: Mapping[str, int]
    dtypes: Mapping[str, tf.DType]
    fill_values: Mapping[str, Any]

    def __post_init__(self) -> None:
        for argument in ("forms", "sparse_max", "dtypes", "fill_values"):
            if others := sorted({*getattr(self, argument)} - {*self.roles}):
                shown = "sparse_names or ragged_names" if argument == "forms" else argument
                raise ValueError(
                    f"{shown}: {', '.join(others)} is among none of label_names, cat_names and "
                    "cont_names"
                )

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns that are to be strings."""
        return tuple(name for name, dtype in self.dtypes.items() if dtype == tf.string)

    def columns_of(self, path: str, schema: pa.Schema) -> tuple[Column | Nulls, ...]:
        """The columns of a file.

        Raises:
            DataError: one is missing, or has a type that cannot be the tensor.
        """
        if missing := [name for name in self.roles if name not in schema.names]:
            raise DataError(f"{path}: no column {', '.join(missing)}")
        return tuple(self._column(path, schema.field(name)) for name in self.roles)

    def of_nulls(self, path: str, nulls: Nulls) -> Column:
        """A column that has nulls alone in all files.

        Raises:
            DataError: it may be of integers or of strings.
        """
        dtype = self.dtypes.get(nulls.name)
        if dtype is None and self.roles[nulls.name] is Role.CATEGORICAL:
            raise DataError(
                f"{path}: column {nulls.name} has null in all files: "
                f"dtypes={{{nulls.name!r}: ...}} says what its ids are"
            )
        form = self.forms.get(nulls.name, Form.OFFSETS if nulls.is_list else None)
        return self._of(nulls.name, dtype or tf.float32, nulls.width or 1, form)

    def _column(self, path: str, field: pa.Field) -> Column | Nulls:
        name, kind = field.name, field.type
        width, form = None, None
        if pa.types.is_fixed_size_list(kind):
            width, kind = kind.list_size, kind.value_type
        elif is_list(kind):
            form, kind = self.forms.get(name, Form.OFFSETS), kind.value_type
        is_null = has_nulls_alone(field.type)
        if is_null and width is None and form is None:
            return Nulls(name)
        if form is None and name in self.forms:
            raise DataError(f"{path}: column {name} has {field.type}, no lists of any length")
        if is_null:
            return Nulls(name, form is not None, width)
        dtype = _dtype(plain(kind), self.roles[name], self.dtypes.get(name))
        if isinstance(dtype, str):
            raise DataError(f"{path}: column {name} has {field.type}, {dtype}")
        return self._of(name, dtype, width or 1, form)

    def _of(self, name: str, dtype: tf.DType, width: int, form: Form | None) -> Column:
        return Column(
            name, dtype, width, form, self.sparse_max.get(name), self.fill_values.get(name)
        )


def is_list(kind: pa.DataType) -> bool:
    """Whether it is of lists of any length."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def has_nulls_alone(kind: pa.DataType) -> bool:
    """Whether values of a type, or of lists of it, can be nulls and nothing else."""
    is_any_list = is_list(kind) or pa.types.is_fixed_size_list(kind)
    return pa.types.is_null(plain(kind.value_type if is_any_list else kind))


def plain(kind: pa.DataType) -> pa.DataType:
    """The type of values that may be encoded by a dictionary."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def is_text(kind: pa.DataType) -> bool:
    """Whether it is of strings or bytes."""
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    bytes_tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    return any(test(kind) for test in (*tests, *bytes_tests, pa.types.is_fixed_size_binary))


def _dtype(kind: pa.DataType, role: Role, dtype: tf.DType | None) -> tf.DType | str:
    """The dtype of a tensor of values, or why there is none."""
    is_integer = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    is_number = is_integer or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if is_text(kind):
        if dtype is not None and dtype != tf.string:
            return f"which is no {dtype.name}"
        return tf.string if role is Role.CATEGORICAL or dtype else "not numbers that it can have"
    if pa.types.is_temporal(kind):
        if dtype is None:
            return f"no numbers: dtypes={{...: tf.int64}} has it counted in its unit ({kind})"
    elif not is_number:
        return "which no tensor holds"
    if dtype is not None:
        numeric = dtype.is_integer or dtype.is_floating
        return dtype if numeric else f"which is no {dtype.name}"
    if role is not Role.CATEGORICAL:
        return tf.float32
    if not is_integer:
        return "not numbers that it can have: ids are integers or strings, or dtypes= says which"
    return tf.int64 if kind.bit_width > 32 or kind == pa.uint32() else tf.int32
