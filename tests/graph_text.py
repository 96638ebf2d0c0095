"""Graphs as text that reads like the graph and parses back to an equal one.

    versions producer=1882
    %ids = Placeholder() {dtype=int64 shape=[-1]}
    %zero = const(int64[]:0)
    %valid = GreaterEqual(ids, zero) {T=int64} class=loc:@ids device='/cpu:0'
    function f(x: float) -> (y: float)
      %neg = Neg(x, ^x) {T=float}
      return y=neg:y:0
    end
    gradient f -> f_grad

Fields that this notation has no words for go into `extra='...'`, in base64, so nothing is lost.
The reader also takes the shared text dumps, whose large constants have no values (see
`make_constant`).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator

from tensorflow.core.framework import function_pb2, graph_pb2, node_def_pb2, op_def_pb2, types_pb2
from tensorflow.python.framework import op_def_registry

from tests.graph_text_values import Scanner, format_attr, format_constant, make_constant

_LINE = re.compile(r"%(?P<name>\S+) = (?P<op>[\w>.]+)\((?P<rest>.*)")
_CONTROLS = re.compile(r"\s*\((?P<inputs>\^[^)]*)\)")
_CLASS = re.compile(r"\s*class=(?P<groups>\S+)")
_DEVICE = re.compile(r"\s*device='(?P<device>[^']*)'")
_EXTRA = re.compile(r"\s*extra='(?P<extra>[^']*)'")
_FUNCTION = re.compile(r"function (?P<name>\S+)\((?P<args>.*?)\) -> \((?P<rets>.*?)\)(?P<rest>.*)")


def print_graph(graph_def: graph_pb2.GraphDef) -> str:
    """Returns the text of a graph and its library."""
    lines = list(_version_lines(graph_def))
    lines += [print_node(node) for node in graph_def.node]
    for function in graph_def.library.function:
        lines += print_function(function).splitlines()
    for gradient in graph_def.library.gradient:
        lines.append(f"gradient {gradient.function_name} -> {gradient.gradient_func}")
    if rest := _extra(_graph_rest(graph_def)):
        lines.append(f"extra{rest}")
    return "\n".join(lines) + "\n"


def without_defaults(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    """Returns a copy whose nodes have no attribute with the value that their op defaults to.

    Such attributes may be left out of any GraphDef: TensorFlow adds them when it reads one.
    """
    copy = graph_pb2.GraphDef()
    copy.CopyFrom(graph_def)
    for nodes in (copy.node, *(function.node_def for function in copy.library.function)):
        for node in nodes:
            op_def = op_def_registry.get(node.op)
            for attr in op_def.attr if op_def is not None else ():
                default = attr.default_value if attr.HasField("default_value") else None
                if attr.name in node.attr and node.attr[attr.name] == default:
                    del node.attr[attr.name]
    return copy


def print_node(node: node_def_pb2.NodeDef) -> str:
    """Returns the one-line text of a node."""
    inputs = ", ".join(node.input)
    attrs = {key: node.attr[key] for key in sorted(node.attr)}
    constant = None
    if node.op == "Const" and {"dtype", "value"} <= attrs.keys():
        value = attrs["value"].tensor
        constant = format_constant(value) if attrs["dtype"].type == value.dtype else None
    if constant is not None:
        attrs = {key: value for key, value in attrs.items() if key not in ("dtype", "value")}
        head = f"const({constant})" + (f" ({inputs})" if inputs else "")
    else:
        head = f"{node.op}({inputs})"
    groups = [s.decode() for s in attrs["_class"].list.s] if "_class" in attrs else []
    if groups and not any(re.search(r"[\s,]", group) for group in groups):
        del attrs["_class"]
    else:
        groups = []
    text = f"%{node.name} = {head}"
    if attrs or constant is None:
        body = " ".join(f"{key}={format_attr(node.op, key, v)}" for key, v in attrs.items())
        text += f" {{{body}}}"
    text += f" class={','.join(groups)}" if groups else ""
    text += f" device='{node.device}'" if node.device else ""
    return text + _extra(_node_rest(node))


def print_function(function: function_pb2.FunctionDef) -> str:
    """Returns the text of a library function."""
    signature = function.signature
    args = ", ".join(f"{arg.name}: {_type_name(arg.type)}" for arg in signature.input_arg)
    rets = ", ".join(f"{arg.name}: {_type_name(arg.type)}" for arg in signature.output_arg)
    header = f"function {signature.name}({args}) -> ({rets})"
    rest = function_pb2.FunctionDef()
    rest.CopyFrom(function)
    for field in ("node_def", "ret", "control_ret"):
        rest.ClearField(field)
    simple = _parse_header(header) == rest
    lines = [header + ("" if simple else _extra(rest.SerializeToString(deterministic=True)))]
    lines += [f"  {print_node(node)}" for node in function.node_def]
    lines += [f"  return {key}={value}" for key, value in sorted(function.ret.items())]
    lines += [
        f"  control_return {key}={value}" for key, value in sorted(function.control_ret.items())
    ]
    return "\n".join([*lines, "end"])


def parse_graph(text: str) -> graph_pb2.GraphDef:
    """Reads what `print_graph` wrote, or a section of a text dump.

    Raises:
        ValueError: at a line that is neither.
    """
    graph_def = graph_pb2.GraphDef()
    lines = _content_lines(text)
    for line in lines:
        if line.startswith("%"):
            graph_def.node.append(parse_node(line))
        elif line.startswith("function "):
            graph_def.library.function.append(_parse_function(line, lines))
        elif line.startswith("gradient "):
            name, _, gradient = line.removeprefix("gradient ").partition(" -> ")
            graph_def.library.gradient.add(function_name=name, gradient_func=gradient)
        elif line.startswith("versions"):
            _parse_versions(line, graph_def)
        elif (extra := _EXTRA.fullmatch(line.removeprefix("extra "))) is not None:
            graph_def.MergeFromString(base64.b64decode(extra["extra"]))
        else:
            raise ValueError(f"not a line of a graph: {line!r}")
    return graph_def


def parse_node(line: str) -> node_def_pb2.NodeDef:
    """Reads one `%name = Op(...) ...` line."""
    match = _LINE.fullmatch(line.strip())
    if match is None:
        raise ValueError(f"not a node: {line!r}")
    node = node_def_pb2.NodeDef(name=match["name"], op=match["op"])
    rest = match["rest"]
    if node.op == "const":
        node.op = "Const"
        value, rest = _until_closed(rest)
        proto = make_constant(value)
        node.attr["dtype"].type = proto.dtype
        node.attr["value"].tensor.CopyFrom(proto)
        if (controls := _CONTROLS.match(rest)) is not None:
            node.input.extend(_names(controls["inputs"]))
            rest = rest[controls.end() :]
    else:
        inputs, _, rest = rest.partition(")")
        node.input.extend(_names(inputs))
    _parse_trailer(node, rest)
    return node


def sections(dump: str) -> dict[str, str]:
    """Returns the graphs of a dump by the title of their section."""
    found: dict[str, list[str]] = {}
    title = ""
    for line in dump.splitlines():
        if line.startswith("## "):
            title = line[3:].strip()
        elif line.startswith("%"):
            found.setdefault(title, []).append(line)
    return {key: "\n".join(lines) for key, lines in found.items()}


def _content_lines(text: str) -> Iterator[str]:
    return (line.strip() for line in text.splitlines() if line.strip() and line[0] != "#")


def _parse_trailer(node: node_def_pb2.NodeDef, rest: str) -> None:
    rest = rest.strip()
    if rest.startswith("{"):
        scanner = Scanner(rest)
        for key, value in scanner.attrs(node.op).items():
            node.attr[key].CopyFrom(value)
        rest = rest[scanner.position :]
    if (match := _CLASS.match(rest)) is not None:
        node.attr["_class"].list.s.extend(g.encode() for g in match["groups"].split(","))
        rest = rest[match.end() :]
    if (match := _DEVICE.match(rest)) is not None:
        node.device = match["device"]
        rest = rest[match.end() :]
    if (match := _EXTRA.match(rest)) is not None:
        node.MergeFromString(base64.b64decode(match["extra"]))
        rest = rest[match.end() :]
    if rest.strip():
        raise ValueError(f"unexpected text behind node {node.name}: {rest!r}")


def _parse_function(header: str, lines: Iterator[str]) -> function_pb2.FunctionDef:
    function = _parse_header(header)
    for line in lines:
        if line == "end":
            return function
        if line.startswith("return "):
            key, _, value = line.removeprefix("return ").partition("=")
            function.ret[key] = value
        elif line.startswith("control_return "):
            key, _, value = line.removeprefix("control_return ").partition("=")
            function.control_ret[key] = value
        else:
            function.node_def.append(parse_node(line))
    raise ValueError(f"function {function.signature.name} has no end")


def _parse_header(header: str) -> function_pb2.FunctionDef:
    match = _FUNCTION.fullmatch(header)
    if match is None:
        raise ValueError(f"not a function: {header!r}")
    function = function_pb2.FunctionDef()
    if (extra := _EXTRA.fullmatch(match["rest"])) is not None:
        function.ParseFromString(base64.b64decode(extra["extra"]))
        return function
    function.signature.name = match["name"]
    function.signature.input_arg.extend(_parse_args(match["args"]))
    function.signature.output_arg.extend(_parse_args(match["rets"]))
    return function


def _parse_args(text: str) -> Iterator[op_def_pb2.OpDef.ArgDef]:
    for item in _names(text):
        name, _, dtype = item.partition(": ")
        number = types_pb2.DataType.Value(f"DT_{dtype.upper()}")
        yield op_def_pb2.OpDef.ArgDef(name=name, type=number)


def _until_closed(text: str) -> tuple[str, str]:
    """Splits `text` at the bracket that closes an already opened one, quotes respected."""
    depth, quote, skip = 1, "", False
    for i, char in enumerate(text):
        if skip:
            skip = False
        elif quote:
            skip = char == "\\"
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "()":
            depth += 1 if char == "(" else -1
            if depth == 0:
                return text[:i], text[i + 1 :]
    raise ValueError(f"unclosed bracket: {text!r}")


def _names(text: str) -> Iterable[str]:
    return (item for item in text.split(", ") if item)


def _type_name(number: int) -> str:
    return types_pb2.DataType.Name(number).removeprefix("DT_").lower()


def _node_rest(node: node_def_pb2.NodeDef) -> bytes:
    rest = node_def_pb2.NodeDef()
    rest.CopyFrom(node)
    for field in ("name", "op", "input", "attr", "device"):
        rest.ClearField(field)
    return rest.SerializeToString(deterministic=True)


def _graph_rest(graph_def: graph_pb2.GraphDef) -> bytes:
    rest = graph_pb2.GraphDef()
    for described, value in graph_def.ListFields():
        if described.name == "library":
            if not value.function and not value.gradient:
                rest.library.SetInParent()
            rest.library.registered_gradients.extend(value.registered_gradients)
        elif described.message_type is None:
            setattr(rest, described.name, value)
        elif described.name not in ("node", "versions"):
            getattr(rest, described.name).CopyFrom(value)
    if graph_def.library.ListFields() and not rest.library.ListFields():
        rest.ClearField("library")
    return rest.SerializeToString(deterministic=True)


def _extra(data: bytes) -> str:
    return f" extra='{base64.b64encode(data).decode()}'" if data else ""


def _version_lines(graph_def: graph_pb2.GraphDef) -> Iterator[str]:
    if graph_def.HasField("versions"):
        versions = graph_def.versions
        bad = "".join(f" bad_consumer={number}" for number in versions.bad_consumers)
        yield f"versions producer={versions.producer} min_consumer={versions.min_consumer}{bad}"


def _parse_versions(line: str, graph_def: graph_pb2.GraphDef) -> None:
    graph_def.versions.SetInParent()
    for item in line.split()[1:]:
        key, _, number = item.partition("=")
        if key == "bad_consumer":
            graph_def.versions.bad_consumers.append(int(number))
        else:
            setattr(graph_def.versions, key, int(number))
