"""Python functions of ops: static checks, then the wrapper that TensorFlow generates."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorflow.core.framework import op_def_pb2

from fusion.runtime.tensorflow.private import _pywrap_python_op_gen, context, dtypes, errors, ops
from fusion.runtime.tensorflow.spec import Arg, Attr, OpSpec, as_dtype, is_per_position

#: The minimum and the maximum of an int attr.
_INT64 = (-(2**63), 2**63 - 1)


def make_wrappers(
    specs: Sequence[OpSpec], before: Callable[[], None]
) -> dict[str, Callable[..., Any]]:
    """The Python function of each op, by its name in snake case; each calls `before` first."""
    op_list = op_def_pb2.OpList(op=[spec.op_def for spec in specs])
    source = _pywrap_python_op_gen.GetPythonWrappers(op_list.SerializeToString())
    generated: dict[str, Any] = {}
    exec(source, generated)
    return {spec.python_name: _checked(spec, generated[spec.python_name], before) for spec in specs}


def _checked(
    spec: OpSpec, generated: Callable[..., Any], before: Callable[[], None]
) -> Callable[..., Any]:
    """A function of the op's inputs and attrs that checks them before it calls `generated`."""
    inputs = [arg.name for arg in spec.inputs]
    attrs = [attr for attr in spec.attrs if attr.name not in spec.inferred_attrs]
    required = [attr.name for attr in attrs if attr.default is None]
    defaulted = [attr for attr in attrs if attr.default is not None]
    parameters = [
        *(name for name in inputs if name not in spec.optional_lists),
        *required,
        *(f"{attr.name}={attr.default!r}" for attr in defaulted),
        *(f"{name}=()" for name in inputs if name in spec.optional_lists),
        *(f"{name}=None" for name in spec.inferred_attrs),
        "name=None",
    ]
    names = [*inputs, *required, *(attr.name for attr in defaulted)]
    is_joined = any(arg.name in spec.optional_lists for arg in spec.outputs)
    source = (
        f"def {spec.python_name}({', '.join(parameters)}):\n"
        "    before()\n"
        f"    {', '.join(inputs)}, = check(spec, ({', '.join(inputs)},),\n"
        f"        {{{', '.join(f'{attr.name!r}: {attr.name}' for attr in spec.attrs)}}})\n"
        f"    result = generated({', '.join(f'{n}={n}' for n in names)}, name=name)\n"
        f"    return {'joined(*result)' if is_joined else 'result'}\n"
    )
    namespace: dict[str, Any] = {"check": check_static, "spec": spec, "generated": generated}
    namespace |= {"before": before, "joined": _joined}
    exec(source, namespace)
    wrapper: Callable[..., Any] = namespace[spec.python_name]
    wrapper.__doc__ = _docstring(spec)
    wrapper.__module__ = "fusion.ops"
    return wrapper


def _joined(first: Any, rest: list[Any]) -> Any:
    """The result of an op with one output and an optional list of further ones."""
    return [first, *rest] if rest else first


def check_static(spec: OpSpec, values: Sequence[Any], attrs: Mapping[str, Any]) -> Sequence[Any]:
    """Checks dtypes, ranks, sizes and attrs as far as they are known statically.

    Returns:
      The inputs as tensors.
    """
    _check_attrs(spec, attrs)
    lengths: dict[str, tuple[int, str]] = {}
    sizes: dict[str, tuple[int, str]] = {}
    types: dict[str, tuple[Any, str]] = {}
    result: list[Any] = []
    for arg, value in zip(spec.inputs, values, strict=True):
        items = [
            _as_tensor(spec, arg, item, attrs) for item in _items(spec, arg, value, attrs, lengths)
        ]
        for index, item in enumerate(items):
            _check_dtype(spec, arg, item, types, attrs)
            if arg.when is None or attrs[arg.when]:
                _check_shape(spec, arg, item, index, sizes)
            else:
                _check_rank(spec, arg, item)
        result.append(items if arg.length else items[0])
    if spec.attr_error is not None and not context.executing_eagerly():
        # Eager ops have their kernels created now, which says the same.
        names = [arg.name for arg in spec.inputs]
        text = spec.attr_error(dict(zip(names, result, strict=True)), attrs)
        if text:
            raise errors.InvalidArgumentError(None, None, f"{spec.python_name}: {text}")
    return result


def _check_attrs(spec: OpSpec, attrs: Mapping[str, Any]) -> None:
    for attr in spec.value_attrs:
        value = attrs[attr.name]
        if value is None:
            continue
        if attr.is_list:
            _check_list(spec, attr, value, attrs)
            continue
        if attr.allowed and isinstance(value, bytes):
            value = value.decode()  # as `Operation.get_attr` gives strings
        if attr.allowed and value not in attr.allowed:
            raise ValueError(
                f"{spec.python_name}: {attr.name} must be one of {attr.allowed}, not {value!r}"
            )
        if attr.kind == "int":
            _check_integer(spec, attr, value, attr.minimum)


def _check_list(spec: OpSpec, attr: Attr, value: Any, attrs: Mapping[str, Any]) -> None:
    """Checks a list attr's elements."""
    if not isinstance(value, list | tuple):
        raise TypeError(f"{spec.python_name}: {attr.name} must be a list, not {value!r}")
    if attr.minimum is not None and len(value) < attr.minimum:
        raise ValueError(
            f"{spec.python_name}: {attr.name} must have at least {attr.minimum}, not {len(value)}"
        )
    for index, element in enumerate(value):
        is_bytes = attr.allowed and isinstance(element, bytes)
        text = element.decode(errors="replace") if is_bytes else element
        if attr.allowed and text not in attr.allowed:
            raise ValueError(
                f"{spec.python_name}: {attr.name}[{index}] must be one of {attr.allowed}, "
                f"not {text!r}"
            )
        if attr.element == "int":
            _check_integer(spec, attr, element, None)


def _check_integer(spec: OpSpec, attr: Attr, value: Any, minimum: int | None) -> None:
    try:
        number = operator.index(value)
    except TypeError:
        text = f"{spec.python_name}: {attr.name} must be an integer, not {value!r}"
        raise TypeError(text) from None
    lower = _INT64[0] if minimum is None else minimum
    upper = _INT64[1] if attr.maximum is None else attr.maximum
    if not lower <= number <= upper:
        raise ValueError(f"{spec.python_name}: {attr.name} must not be {value!r}")


def _items(
    spec: OpSpec,
    arg: Arg,
    value: Any,
    attrs: Mapping[str, Any],
    lengths: dict[str, tuple[int, str]],
) -> Sequence[Any]:
    if arg.length is None:
        return (value,)
    if not isinstance(value, list | tuple):
        raise TypeError(f"{spec.python_name}: {arg.name} must be a list, not {value!r}")
    length = attrs[arg.length]
    if isinstance(length, list | tuple):
        length = len(length)
    if length is not None and length != len(value):
        raise ValueError(
            f"{spec.python_name}: {arg.length} is {length}, but {arg.name} has {len(value)}"
        )
    minimum = next(attr.minimum for attr in spec.attrs if attr.name == arg.length)
    if minimum is not None and len(value) < minimum:
        raise ValueError(
            f"{spec.python_name}: {arg.name} must have at least {minimum}, not {len(value)}"
        )
    first, first_name = lengths.setdefault(arg.length, (len(value), arg.name))
    if first != len(value):
        raise ValueError(
            f"{spec.python_name}: {arg.name} has {len(value)} tensors, but {first_name} {first}"
        )
    return value


def _as_tensor(spec: OpSpec, arg: Arg, item: Any, attrs: Mapping[str, Any]) -> Any:
    """`item`, or if it has no dtype (a list, a number) a tensor of the requested dtype."""
    if hasattr(item, "dtype"):
        return item
    dtype = attrs[arg.dtype] if arg.dtype in spec.type_attrs else arg.dtype
    dtype = None if isinstance(dtype, list | tuple) else dtype
    try:
        return ops.convert_to_tensor(item, None if dtype is None else _as_dtype(dtype))
    except (TypeError, ValueError) as error:
        error_type = TypeError if isinstance(error, TypeError) else ValueError
        raise error_type(f"{spec.python_name}: {arg.name}: {error}") from None


def _check_dtype(
    spec: OpSpec,
    arg: Arg,
    item: Any,
    types: dict[str, tuple[Any, str]],
    attrs: Mapping[str, Any],
) -> None:
    dtype = _as_dtype(item.dtype).base_dtype
    if arg.dtype not in spec.type_attrs:
        allowed: tuple[str, ...] = (arg.dtype,)
    else:
        allowed = spec.types[arg.dtype].allowed
        value = attrs[arg.dtype]
        if spec.types[arg.dtype].is_list:
            types, value = {}, None  # each has a dtype of its own
        if value is not None and _as_dtype(value) != dtype:
            raise ValueError(f"{spec.python_name}: {arg.dtype} is {value}, but {arg.name} {dtype}")
        first, first_name = types.setdefault(arg.dtype, (dtype, arg.name))
        if first != dtype:
            raise TypeError(
                f"{spec.python_name}: {arg.name} is {dtype.name}, but {first_name} {first.name}"
            )
    if dtype.name not in allowed:
        raise TypeError(
            f"{spec.python_name}: {arg.name} must be {' or '.join(allowed)}, not {dtype.name}"
        )


def _as_dtype(value: Any) -> dtypes.DType:
    """The dtype that a TensorFlow or NumPy dtype, or a name, stands for."""
    return as_dtype(value) if isinstance(value, str) else dtypes.as_dtype(value)


def _static_shape(item: Any) -> list[int | None] | None:
    shape = getattr(item, "shape", None)
    if shape is None:
        return None
    if hasattr(shape, "rank"):
        return None if shape.rank is None else list(shape.as_list())
    return list(shape)


def _check_rank(spec: OpSpec, arg: Arg, item: Any) -> list[int | None] | None:
    shape = None if arg.has_any_shape else _static_shape(item)
    if shape is not None and len(shape) != len(arg.dims):
        raise ValueError(f"{spec.python_name}: {arg.name} must have shape {arg.shape}, not {shape}")
    return shape


def _check_shape(
    spec: OpSpec, arg: Arg, item: Any, index: int, sizes: dict[str, tuple[int, str]]
) -> None:
    for dim, size in zip(arg.dims, _check_rank(spec, arg, item) or (), strict=False):
        if size is None or dim == "?":
            continue
        at = f"[{index}]" if is_per_position(dim) else ""
        expected, source = (int(dim), "") if dim.isdigit() else sizes.get(dim + at, (size, ""))
        if expected != size:
            because = f" as in {source}" if source else ""
            raise ValueError(
                f"{spec.python_name}: {arg.name}{at} has shape {_static_shape(item)}, but its size "
                f"{dim} in {arg.shape} must be {expected}{because}"
            )
        sizes.setdefault(dim + at, (size, arg.name + at))


def _docstring(spec: OpSpec) -> str:
    """The docstring of an op's function."""

    def line(arg: Arg) -> str:
        head = f"{arg.length} x " if arg.length else ""
        text = f"    {arg.name}: {head}{arg.dtype}{arg.shape}."
        return f"{text} {arg.doc}".rstrip()

    lines = [spec.doc, "", "Args:", *(line(arg) for arg in spec.inputs)]
    for attr in spec.attrs:
        values = f" in {{{', '.join(attr.allowed)}}}" if attr.allowed else ""
        default = f" = {attr.default}" if attr.default is not None else ""
        lines.append(f"    {attr.name}: {attr.kind}{values}{default}. {attr.doc}".rstrip())
    lines += ["    name: A name for the operation.", "", "Returns:"]
    lines += [line(arg) for arg in spec.outputs]
    if any(arg.name in spec.optional_lists for arg in spec.outputs):
        lines.append("    Where there are others, all are in one list.")
    lines += [
        "",
        "Raises:",
        "    ValueError: a rank, a size or a given inferred attr that cannot be, seen statically.",
        "    TypeError: a dtype that the op does not take.",
        "    tf.errors.InvalidArgumentError: the same, or a bad value, seen at run time.",
    ]
    return "\n".join(lines)
