"""The tensors that the columns of a file become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pyarrow as pa
import tensorflow as tf

from fusion.data.files import DataError


class Role(Enum):
    """The role of a column in a model."""

    LABEL = "label_names"
    CATEGORICAL = "cat_names"
    CONTINUOUS = "cont_names"


class Form(Enum):
    """The form of the tensors of a column of lists."""

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
        longest: the maximum length of such a list; None for any length.
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
    """The column that is this in one file and that in another; None if they differ."""
    if isinstance(one, Nulls) and one.may_be(other):
        return other
    if isinstance(other, Nulls) and other.may_be(one):
        return one
    return one if one == other else None


@dataclass(frozen=True)
class Request:
    """The requested columns, see `ParquetLoader`."""

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
        name, data_type = field.name, field.type
        width, form = None, None
        if pa.types.is_fixed_size_list(data_type):
            width, data_type = data_type.list_size, data_type.value_type
        elif is_list(data_type):
            form, data_type = self.forms.get(name, Form.OFFSETS), data_type.value_type
        is_null = has_nulls_alone(field.type)
        if is_null and width is None and form is None:
            return Nulls(name)
        if form is None and name in self.forms:
            raise DataError(f"{path}: column {name} has {field.type}, no lists of any length")
        if is_null:
            return Nulls(name, form is not None, width)
        dtype = _dtype(plain(data_type), self.roles[name], self.dtypes.get(name))
        if isinstance(dtype, str):
            raise DataError(f"{path}: column {name} has {field.type}, {dtype}")
        return self._of(name, dtype, width or 1, form)

    def _of(self, name: str, dtype: tf.DType, width: int, form: Form | None) -> Column:
        return Column(
            name, dtype, width, form, self.sparse_max.get(name), self.fill_values.get(name)
        )


def is_list(data_type: pa.DataType) -> bool:
    """Whether a type is of lists of any length."""
    return pa.types.is_list(data_type) or pa.types.is_large_list(data_type)


def has_nulls_alone(data_type: pa.DataType) -> bool:
    """Whether values of a type, or of lists of it, can be nulls and nothing else."""
    is_any_list = is_list(data_type) or pa.types.is_fixed_size_list(data_type)
    return pa.types.is_null(plain(data_type.value_type if is_any_list else data_type))


def plain(data_type: pa.DataType) -> pa.DataType:
    """The type of values that may be encoded by a dictionary."""
    return data_type.value_type if pa.types.is_dictionary(data_type) else data_type


def is_text(data_type: pa.DataType) -> bool:
    """Whether a type is of strings or bytes."""
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    bytes_tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    return any(test(data_type) for test in (*tests, *bytes_tests, pa.types.is_fixed_size_binary))


def _dtype(data_type: pa.DataType, role: Role, dtype: tf.DType | None) -> tf.DType | str:
    """The dtype of a tensor of values, or why there is none."""
    is_integer = pa.types.is_integer(data_type) or pa.types.is_boolean(data_type)
    is_number = is_integer or pa.types.is_floating(data_type) or pa.types.is_decimal(data_type)
    if is_text(data_type):
        if dtype is not None and dtype != tf.string:
            return f"which is no {dtype.name}"
        return tf.string if role is Role.CATEGORICAL or dtype else "not numbers that it can have"
    if pa.types.is_temporal(data_type):
        if dtype is None:
            return f"no numbers: dtypes={{...: tf.int64}} has it counted in its unit ({data_type})"
    elif not is_number:
        return "which no tensor holds"
    if dtype is not None:
        numeric = dtype.is_integer or dtype.is_floating
        return dtype if numeric else f"which is no {dtype.name}"
    if role is not Role.CATEGORICAL:
        return tf.float32
    if not is_integer:
        return "not numbers that it can have: ids are integers or strings, or dtypes= says which"
    return tf.int64 if data_type.bit_width > 32 or data_type == pa.uint32() else tf.int32
