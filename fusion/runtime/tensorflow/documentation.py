"""What people read about an op, from its description."""

from __future__ import annotations

from fusion.runtime.tensorflow.spec import Arg, OpSpec


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
