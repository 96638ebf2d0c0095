"""The declarative description of an op, from which everything else about it follows.

An argument's shape is a text such as `"[nnz, 2]"`: numbers are required sizes, `?` is any size, and
a name stands for one size throughout the op, but a name in `_p` (as in `"[n_p, D_p]"`) for one size
per position in the lists, with `sum(D_p)` their sum (of several outputs, over the positions of each
one); `[...]` is any shape, of an output that of the first input of any shape (of a list, at the
same position) if there is one, and `[..., ?]` of an output is that and one dimension more. From
these texts come the shape function, the checks before a kernel touches memory, the checks of the
Python wrapper and the documentation.
"""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from fusion.printable import snake_case
from fusion.runtime.records import Word
from fusion.runtime.tensorflow.dtypes import DTYPES

if TYPE_CHECKING:
    from tensorflow.core.framework import attr_value_pb2, op_def_pb2

    from fusion.runtime.tensorflow.private import dtypes

Default = int | float | bool | str | tuple[()] | None

_FROM_C_NAMES = {dtype.c_name: name for name, dtype in DTYPES.items()}


def _c_name(name: str) -> str:
    """The C API's name of a dtype, numpy's; that of an attr stays."""
    return DTYPES[name].c_name if name in DTYPES else name


def as_dtype(name: str) -> dtypes.DType:
    """The TensorFlow dtype of `name`, numpy's or the C API's."""
    from fusion.runtime.tensorflow.private import dtypes

    return dtypes.as_dtype(_FROM_C_NAMES.get(name, name))


def is_per_position(dim: str) -> bool:
    """Whether the name of a size stands for one size per position in the lists."""
    return dim.endswith("_p")


@dataclass(frozen=True)
class Attr:
    """An attribute: `kind` is type, int, float, bool or string, or a list of them as in list(int).

    `allowed` lists dtypes (numpy names) or strings; `minimum` and `maximum` bound an int, the
    latter only in the Python function, since TensorFlow's definitions know no such bound; without
    a `default` (of a list, the empty one) the attribute is required, unless TensorFlow infers it
    from the inputs.
    """

    name: str
    kind: str
    default: Default = None
    allowed: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    doc: str = ""

    @property
    def is_list(self) -> bool:
        """Whether the value is a list."""
        return self.kind.startswith("list(")

    @property
    def element(self) -> str:
        """The kind of the value, or of the elements of a list."""
        return self.kind.removeprefix("list(").removesuffix(")")

    @property
    def definition(self) -> str:
        """The text that the C API's op definition builder takes."""
        kind = self.element
        if kind == "type":
            kind = "{" + ", ".join(map(_c_name, self.allowed)) + "}"
        elif self.allowed:
            kind = "{" + ", ".join(f"'{value}'" for value in self.allowed) + "}"
        text = f"{self.name}: {f'list({kind})' if self.is_list else kind}"
        if self.minimum is not None:
            text += f" >= {self.minimum}"
        if isinstance(self.default, bool):
            text += f" = {str(self.default).lower()}"
        elif isinstance(self.default, str) and self.element == "type":
            from tensorflow.core.framework import types_pb2

            text += f" = {types_pb2.DataType.Name(as_dtype(self.default).as_datatype_enum)}"
        elif isinstance(self.default, str):
            text += f" = '{self.default}'"
        elif self.default == ():
            text += " = []"
        elif self.default is not None:
            text += f" = {self.default}"
        return text

    def add_to(self, op_def: op_def_pb2.OpDef) -> None:
        """Appends what TensorFlow's registry holds for this attribute."""
        attr = op_def.attr.add(name=self.name, type=self.kind)
        if self.default is not None:
            attr.default_value.CopyFrom(_attr_value(self.kind, self.default))
        if self.element == "type":
            types = [as_dtype(name).as_datatype_enum for name in self.allowed]
            attr.allowed_values.list.type.extend(types)
        elif self.allowed:
            attr.allowed_values.list.s.extend(value.encode() for value in self.allowed)
        if self.minimum is not None:
            attr.has_minimum = True
            attr.minimum = self.minimum


def _attr_value(kind: str, value: Any) -> attr_value_pb2.AttrValue:
    from tensorflow.core.framework import attr_value_pb2

    if value == ():
        return attr_value_pb2.AttrValue(list=attr_value_pb2.AttrValue.ListValue())
    if kind == "string":
        return attr_value_pb2.AttrValue(s=str(value).encode())
    if kind == "type":
        return attr_value_pb2.AttrValue(type=as_dtype(value).as_datatype_enum)
    return attr_value_pb2.AttrValue(**{{"int": "i", "float": "f", "bool": "b"}[kind]: value})


@dataclass(frozen=True)
class Arg:
    """An input or output: `dtype` is a dtype or a type attr, `shape` a text as above.

    `length` names the int attr that counts a list of tensors, which may be of several dtypes if
    `dtype` is an attr of kind list(type), which may be named in place of one that counts.
    `when` names a bool attr without which an input is a dummy whose sizes mean nothing. `on_host`:
    kernels for a GPU have it, too, in the memory of the host.
    """

    name: str
    dtype: str
    shape: str
    length: str | None = None
    when: str | None = None
    doc: str = ""
    on_host: bool = False

    def definition(self, attrs: Mapping[str, Attr]) -> str:
        """The text that the C API's op definition builder takes, in an op with these type attrs."""
        dtype = _c_name(self.dtype)
        is_mixed = self.dtype in attrs and attrs[self.dtype].is_list
        count = f"{self.length} * " if self.length and not is_mixed else ""
        return f"{self.name}: {count}{dtype}"

    @cached_property
    def has_any_shape(self) -> bool:
        """Whether the shape is of any rank."""
        return self.shape == "[...]"

    @cached_property
    def dims(self) -> tuple[str, ...]:
        """The sizes of `shape`, as texts."""
        return tuple(re.findall(r"[\w?()]+", self.shape))

    @cached_property
    def extends_input(self) -> bool:
        """Whether the shape is that of an input, and one dimension more."""
        return self.shape == "[..., ?]"

    def add_to(self, args: Any, attrs: Mapping[str, Attr]) -> None:
        """Appends what TensorFlow's registry holds for this argument of an op with type attrs."""
        arg = args.add(name=self.name)
        if self.dtype not in attrs:
            arg.type = as_dtype(self.dtype).as_datatype_enum
        elif attrs[self.dtype].is_list:
            arg.type_list_attr = self.dtype
            return
        else:
            arg.type_attr = self.dtype
        if self.length:
            arg.number_attr = self.length


#: Makes a kernel body for one choice of type attrs: a Numba function of a call's frame
#: (see fusion.runtime.native.op). Called when a node of the op is first created.
KernelFactory = Callable[["OpSpec", Mapping[str, str]], Any]


class RowKernel(NamedTuple):
    """A kernel that those of an op call, for rows of some dtype and dimension."""

    name: str
    compile_it: Callable[[], bytes]


@dataclass(frozen=True)
class RowKernels:
    """The row kernels that states may have addresses of.

    Attributes:
      name: what they are called together.
      count: how many there may be.
      at: index -> the kernel; some depend on the processor that is compiled for.
    """

    name: str
    count: int
    at: Callable[[int], RowKernel]


#: (op, type of device, what gives the address of the functions by which variables are shared, asked
#: with an `AccessRequest`) -> words.
Constants = Callable[["OpSpec", str, Callable[..., Word]], list[Word]]


@dataclass(frozen=True)
class Builder:
    """What makes the states of an op's kernels, where attrs as words do not do.

    Attributes:
      name: of the native function `void name(Creation*)`.
      module: that the function is in; it is imported to compile it.
      constants: gives words that it needs to know.
      row_kernels: those of the op, if it has any.
      is_per_dtype: whether bodies are those of ops without a builder: one for each combination of
        the node's dtypes, whose inputs are in its frame.
    """

    name: str
    module: str
    constants: Constants
    row_kernels: RowKernels | None = None
    is_per_dtype: bool = False


#: The gradient of an op whose outputs do not depend smoothly on its inputs.
NOT_DIFFERENTIABLE: Final = "not differentiable"


@dataclass(frozen=True)
class OpSpec:
    """One op: its signature, its kernels and its gradient.

    `kernels` maps a device type to a factory of kernel bodies; `kernel_types` lists, per type
    attr that they depend on, the dtypes that have kernels. `gradient` is a TensorFlow gradient
    function; without one TensorFlow raises when it is asked for.

    The kernel of an op with a `builder` of states is the same for all dtypes and takes its inputs
    itself, unless that says otherwise; a factory that gives three values gives a body, what threads
    that help with it do, and the layout of its jobs (`entry.make_shared_entry`). The results of a
    stateful op depend on more than its inputs, so that equal nodes are not the same.

    `names` is the string attr, or list of one for each column, by which its messages call columns.
    `resized` is a type attr with a default: with another value the sizes of outputs do not follow
    from those of inputs. The shape functions of TensorFlow's C API see no attrs of other kinds.
    `rows` is the input whose elements a call is counted by, dimensions of fixed size left out; a
    kernel that takes its inputs itself counts them itself. `attr_error` says what is wrong with
    inputs and attrs, both by name, as far as kernels refuse to be created for it; "" for nothing.
    """

    name: str
    doc: str
    inputs: tuple[Arg, ...]
    outputs: tuple[Arg, ...]
    attrs: tuple[Attr, ...]
    kernels: Mapping[str, KernelFactory] = field(default_factory=dict)
    kernel_types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gradient: Callable[..., Any] | Literal["not differentiable"] | None = None
    builder: Builder | None = None
    is_stateful: bool = False
    names: str | None = None
    resized: str | None = None
    rows: str | None = None
    attr_error: Callable[[Mapping[str, Any], Mapping[str, Any]], str] | None = None

    @cached_property
    def python_name(self) -> str:
        """The op's name in snake case, as TensorFlow's own generator makes it."""
        return snake_case(self.name)

    @cached_property
    def is_per_dtype(self) -> bool:
        """Whether there is a body for each combination of dtypes, which finds inputs in a frame."""
        return self.builder is None or self.builder.is_per_dtype

    @cached_property
    def type_attrs(self) -> tuple[str, ...]:
        """The names of the type attrs, in order."""
        return tuple(attr.name for attr in self.attrs if attr.element == "type")

    @cached_property
    def types(self) -> Mapping[str, Attr]:
        """The type attrs by name."""
        return {attr.name: attr for attr in self.attrs if attr.element == "type"}

    @cached_property
    def value_attrs(self) -> tuple[Attr, ...]:
        """The attrs that a kernel reads at run time, in the order of its state."""
        return tuple(attr for attr in self.attrs if attr.element != "type")

    @cached_property
    def inferred_attrs(self) -> tuple[str, ...]:
        """The attrs that TensorFlow infers from the inputs."""
        types = self.types
        counted = (
            arg for arg in self.inputs if arg.dtype not in types or not types[arg.dtype].is_list
        )
        names = {arg.dtype for arg in self.inputs} | {arg.length for arg in counted}
        return tuple(attr.name for attr in self.attrs if attr.name in names)

    @cached_property
    def optional_lists(self) -> frozenset[str]:
        """The names of lists of tensors that are empty by default.

        Such ones may be added to an op that is used already.
        """
        lengths = {attr.name for attr in self.attrs if attr.element == "int" and attr.default == 0}
        return frozenset(arg.name for arg in (*self.inputs, *self.outputs) if arg.length in lengths)

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The names of sizes in the inputs' shapes, in order of appearance."""
        dims = (dim for arg in self.inputs if not arg.has_any_shape for dim in arg.dims)
        names = (dim for dim in dims if not dim.isdigit() and dim != "?")
        return tuple(dict.fromkeys(name for name in names if not is_per_position(name)))

    @cached_property
    def per_position(self) -> Mapping[str, tuple[int, int]]:
        """Of each size that lists have per position the first input with it, and its dimension."""
        result: dict[str, tuple[int, int]] = {}
        for index, arg in enumerate(self.inputs):
            for axis, dim in enumerate(arg.dims):
                if is_per_position(dim):
                    result.setdefault(dim, (index, axis))
        return result

    @cached_property
    def slots(self) -> Any:
        """A named tuple with the index of each value attr in a kernel's state."""
        names = [attr.name for attr in self.value_attrs]
        return namedtuple("Slots", names)(*range(len(names)))

    @cached_property
    def input_indices(self) -> Any:
        """A named tuple with the index of each input among the inputs; a list counts once."""
        names = [arg.name for arg in self.inputs]
        return namedtuple("InputIndices", names)(*range(len(names)))

    @cached_property
    def op_def(self) -> op_def_pb2.OpDef:
        """The definition as TensorFlow's registry holds it, without descriptions."""
        from tensorflow.core.framework import op_def_pb2

        op_def = op_def_pb2.OpDef(name=self.name, is_stateful=self.is_stateful)
        types = self.types
        for arg in self.inputs:
            arg.add_to(op_def.input_arg, types)
        for arg in self.outputs:
            arg.add_to(op_def.output_arg, types)
        for attr in self.attrs:
            attr.add_to(op_def)
        return op_def
