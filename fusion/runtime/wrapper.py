"""Python functions for ops: TensorFlow's own generated wrapper behind checks of what is static."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorflow.core.framework import op_def_pb2
from tensorflow.python.framework import _pywrap_python_op_gen

from fusion.runtime.spec import Arg, OpSpec, as_dtype


def make_wrappers(specs: Sequence[OpSpec]) -> dict[str, Callable[..., Any]]:
    """The Python function of each op, by its name in snake case."""
    op_list = op_def_pb2.OpList(op=[spec.op_def for spec in specs])
    source = _pywrap_python_op_gen.GetPythonWrappers(op_list.SerializeToString())
    generated: dict[str, Any] = {}
    exec(source, generated)
    return {spec.python_name: _checked(spec, generated[spec.python_name]) for spec in specs}


def _checked(spec: OpSpec, generated: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the op's inputs and attrs that checks them before it calls `generated`."""
    inputs = [arg.name for arg in spec.inputs]
    attrs = [attr for attr in spec.attrs if attr.name not in spec.inferred_attrs]
    required = [attr.name for attr in attrs if attr.default is None]
    defaulted = [attr for attr in attrs if attr.default is not None]
    parameters = [
        *inputs,
        *required,
        *(f"{attr.name}={attr.default!r}" for attr in defaulted),
        *(f"{name}=None" for name in spec.inferred_attrs),
        "name=None",
    ]
    names = [*inputs, *required, *(attr.name for attr in defaulted)]
    source = (
        f"def {spec.python_name}({', '.join(parameters)}):\n"
        f"    check(spec, ({', '.join(inputs)},),\n"
        f"          {{{', '.join(f'{n!r}: {n}' for n in spec.inferred_attrs)}}},\n"
        f"          {{{', '.join(f'{a.when!r}: {a.when}' for a in spec.inputs if a.when)}}})\n"
        f"    return generated({', '.join(f'{n}={n}' for n in names)}, name=name)\n"
    )
    namespace: dict[str, Any] = {"check": check_static, "spec": spec, "generated": generated}
    exec(source, namespace)
    wrapper: Callable[..., Any] = namespace[spec.python_name]
    wrapper.__doc__ = documentation(spec)
    wrapper.__module__ = "fusion.ops"
    return wrapper


def documentation(spec: OpSpec) -> str:
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
    lines += [
        "",
        "Raises:",
        "    ValueError: a rank, a size or a given inferred attr that cannot be, seen statically.",
        "    TypeError: a dtype that the op does not take.",
        "    tf.errors.InvalidArgumentError: the same, or a bad value, seen at run time.",
    ]
    return "\n".join(lines)


def check_static(
    spec: OpSpec,
    values: Sequence[Any],
    inferred: Mapping[str, Any],
    conditions: Mapping[str, Any],
) -> None:
    """Checks dtypes, ranks and sizes as far as they are known without running anything."""
    sizes: dict[str, tuple[int, str]] = {}
    types: dict[str, tuple[Any, str]] = {}
    for arg, value in zip(spec.inputs, values, strict=True):
        for item in _items(spec, arg, value, inferred):
            _check_dtype(spec, arg, item, types, inferred)
            if arg.when is None or conditions[arg.when]:
                _check_shape(spec, arg, item, sizes)
            else:
                _check_rank(spec, arg, item)


def _items(spec: OpSpec, arg: Arg, value: Any, inferred: Mapping[str, Any]) -> Sequence[Any]:
    if arg.length is None:
        return (value,)
    if not isinstance(value, list | tuple):
        raise TypeError(f"{spec.python_name}: {arg.name} must be a list, not {value!r}")
    length = inferred.get(arg.length)
    if length is not None and length != len(value):
        raise ValueError(
            f"{spec.python_name}: {arg.length} is {length}, but {arg.name} has {len(value)}"
        )
    return value


def _check_dtype(
    spec: OpSpec,
    arg: Arg,
    item: Any,
    types: dict[str, tuple[Any, str]],
    inferred: Mapping[str, Any],
) -> None:
    if not hasattr(item, "dtype"):
        return
    dtype = as_dtype(getattr(item.dtype, "name", str(item.dtype))).base_dtype
    if arg.dtype not in spec.type_attrs:
        allowed: tuple[str, ...] = (arg.dtype,)
    else:
        allowed = next(attr.allowed for attr in spec.attrs if attr.name == arg.dtype)
        given = inferred.get(arg.dtype)
        if given is not None and as_dtype(getattr(given, "name", str(given))) != dtype:
            raise ValueError(f"{spec.python_name}: {arg.dtype} is {given}, but {arg.name} {dtype}")
        first, first_name = types.setdefault(arg.dtype, (dtype, arg.name))
        if first != dtype:
            raise TypeError(
                f"{spec.python_name}: {arg.name} is {dtype.name}, but {first_name} {first.name}"
            )
    if dtype.name not in allowed:
        raise TypeError(
            f"{spec.python_name}: {arg.name} must be {' or '.join(allowed)}, not {dtype.name}"
        )


def _static_shape(item: Any) -> list[int | None] | None:
    shape = getattr(item, "shape", None)
    if shape is None:
        return None
    if hasattr(shape, "rank"):
        return None if shape.rank is None else list(shape.as_list())
    return list(shape)


def _check_rank(spec: OpSpec, arg: Arg, item: Any) -> list[int | None] | None:
    shape = _static_shape(item)
    if shape is not None and len(shape) != len(arg.dims):
        raise ValueError(f"{spec.python_name}: {arg.name} must have shape {arg.shape}, not {shape}")
    return shape


def _check_shape(spec: OpSpec, arg: Arg, item: Any, sizes: dict[str, tuple[int, str]]) -> None:
    for dim, size in zip(arg.dims, _check_rank(spec, arg, item) or (), strict=False):
        if size is None or dim == "?":
            continue
        expected, source = (int(dim), "") if dim.isdigit() else sizes.get(dim, (size, ""))
        if expected != size:
            because = f" as in {source}" if source else ""
            raise ValueError(
                f"{spec.python_name}: {arg.name} has shape {_static_shape(item)}, but its size "
                f"{dim} in {arg.shape} must be {expected}{because}"
            )
        sizes.setdefault(dim, (size, arg.name))
