"""What people read about an op, from its description."""

from __future__ import annotations

from fusion.runtime.tensorflow.spec import Arg, Attr, OpSpec


def docstring(spec: OpSpec) -> str:
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


def markdown(spec: OpSpec) -> str:
    """A section about an op: its text, and a table of inputs, attrs and outputs."""
    rows = [
        *(("in", arg.name, _type(arg), arg.doc) for arg in spec.inputs),
        *(("attr", attr.name, _kind(attr), attr.doc) for attr in spec.attrs),
        *(("out", arg.name, _type(arg), arg.doc) for arg in spec.outputs),
    ]
    lines = [f"## {spec.name}", "", f"`fusion.ops.{spec.python_name}`", "", spec.doc, ""]
    lines += ["| | name | type | |", "|---|---|---|---|"]
    lines += [f"| {kind} | `{name}` | {text} | {doc} |" for kind, name, text, doc in rows]
    kernels = " x ".join("/".join(types) for types in spec.kernel_types.values())
    of_types = f" ({kernels})" if kernels else ""
    lines += ["", f"Kernels: {', '.join(spec.kernels)}{of_types}."]
    return "\n".join(lines) + "\n"


def _type(arg: Arg) -> str:
    return f"{f'{arg.length} x ' if arg.length else ''}{arg.dtype} {arg.shape}"


def _kind(attr: Attr) -> str:
    text = "/".join(attr.allowed) if attr.allowed else attr.kind
    if attr.minimum is not None:
        text += f" >= {attr.minimum}"
    return text if attr.default is None else f"{text} = {attr.default}"
