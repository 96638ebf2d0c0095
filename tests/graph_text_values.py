r"""Attribute values as text, and back.

    True  7  0.5  'text'  b'\xff'  int64  [100, -1] (a shape)  ? (a shape of unknown rank)
    @function{attr=value}  [value, value]  tensor(int32[2]:[0, 1])  raw'base64 of the AttrValue'

What a value means can depend on the attribute: `[1, 2]` is a shape where the op says so and a list
of integers elsewhere. Whatever this notation cannot express exactly is written as `raw`.
"""

from __future__ import annotations

import ast
import base64
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tensorflow.core.framework import attr_value_pb2, tensor_pb2, tensor_shape_pb2, types_pb2
from tensorflow.python.framework import dtypes, op_def_registry, tensor_util

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<string>b?'(?:[^'\\]|\\.)*'|b?"(?:[^"\\]|\\.)*")
      | (?P<number>-?(?:inf\b|nan\b|\d+(?:\.\d*)?(?:e[+-]?\d+)?))
      | (?P<raw>raw'[A-Za-z0-9+/=]*')
      | (?P<word>[A-Za-z_@][\w./@-]*)
      | (?P<mark>[\[\]{}(),:=?])
    )""",
    re.VERBOSE,
)
_SHAPE_LISTS = frozenset({"_output_shapes", "_input_shapes", "_handle_shapes"})
_LARGEST = 64


def format_attr(op: str, key: str, value: attr_value_pb2.AttrValue) -> str:
    """Returns the text of an attribute, exact: parsing it gives an equal value."""
    text = _format(value)
    if text is not None and _parses_to(op, key, text, value):
        return text
    return f"raw'{base64.b64encode(value.SerializeToString(deterministic=True)).decode()}'"


def parse_attr(op: str, key: str, text: str) -> attr_value_pb2.AttrValue:
    """Reads one attribute value; ValueError when it is malformed."""
    scanner = Scanner(text)
    value = scanner.attr(_attr_kind(op, key))
    scanner.end()
    return value


def format_constant(proto: tensor_pb2.TensorProto) -> str | None:
    """Returns e.g. `int32[2]:[0, 1]`, or None when that would not give the same proto."""
    shape = [dim.size for dim in proto.tensor_shape.dim]
    if int(np.prod(shape)) > _LARGEST:
        text = f"{dtypes.as_dtype(proto.dtype).name}{shape}"
        return text if make_constant(text) == proto else None
    try:
        array = tensor_util.MakeNdarray(proto)
    except (TypeError, ValueError):
        return None
    text = f"{_numpy_name(array.dtype)}{shape}:{array.tolist()!r}"
    return text if make_constant(text) == proto else None


def make_constant(text: str) -> tensor_pb2.TensorProto:
    """Reads `dtype[shape]:values`; without values (elided in a dump), k/64 counts up."""
    match = re.fullmatch(r"(\w+)\[([\d, ]*)\](?::(.*))?", text, re.DOTALL)
    if match is None:
        raise ValueError(f"malformed constant: {text}")
    dtype = object if match[1] == "object" else dtypes.as_dtype(match[1]).as_numpy_dtype
    shape = [int(size) for size in match[2].split(",") if size.strip()]
    array: npt.NDArray[Any]
    if match[3] is None:
        array = (np.arange(int(np.prod(shape))) / 64).reshape(shape).astype(dtype)
    else:
        values = np.array(_literal(match[3]), dtype=object)
        # Kind V: bfloat16 and its relatives, which are made of numbers alone, not of "nan".
        wide = np.float64 if np.dtype(dtype).kind == "V" else dtype
        array = values.astype(wide).astype(dtype).reshape(shape)
    proto: tensor_pb2.TensorProto = tensor_util.make_tensor_proto(array, shape=shape)
    return proto


@dataclass
class Scanner:
    """A cursor over the text of attribute values."""

    text: str
    position: int = 0

    def peek(self) -> tuple[str, str]:
        """Returns the kind and text of the next token; ("end", "") at the end."""
        match = _TOKEN.match(self.text, self.position)
        if match is None or match.lastgroup is None:
            if self.text[self.position :].strip():
                raise ValueError(f"unexpected text: {self.text[self.position :]!r}")
            return "end", ""
        return match.lastgroup, match[match.lastgroup]

    def take(self, expected: str | None = None) -> tuple[str, str]:
        """Consumes the next token; ValueError when it is not `expected`."""
        kind, token = self.peek()
        if expected is not None and token != expected:
            raise ValueError(f"expected {expected!r}, found {token!r} in {self.text!r}")
        match = _TOKEN.match(self.text, self.position)
        self.position = match.end() if match is not None else len(self.text)
        return kind, token

    def end(self) -> None:
        """Checks that nothing is left."""
        if self.peek()[0] != "end":
            raise ValueError(f"unexpected text: {self.text[self.position :]!r}")

    def attrs(self, op: str) -> dict[str, attr_value_pb2.AttrValue]:
        """Reads `{key=value key=value}`."""
        found = {}
        self.take("{")
        while self.peek()[1] != "}":
            key = self.take()[1]
            self.take("=")
            found[key] = self.attr(_attr_kind(op, key))
        self.take("}")
        return found

    def attr(self, kind: str) -> attr_value_pb2.AttrValue:
        """Reads one value of an attribute of the given OpDef type ("" if unknown)."""
        token_kind, token = self.peek()
        value = attr_value_pb2.AttrValue()
        if token_kind == "raw":
            self.take()
            value.ParseFromString(base64.b64decode(token[4:-1]))
        elif token == "?" or (token == "[" and kind == "shape"):
            self._shape(value.shape)
        elif token == "[":
            self._list(value.list, kind.removeprefix("list(").removesuffix(")"))
        elif token_kind == "string":
            self.take()
            value.s = _bytes(ast.literal_eval(token))
        elif token_kind == "number":
            self.take()
            _set_number(value, token)
        elif token in ("True", "False"):
            self.take()
            value.b = token == "True"
        elif token == "tensor":
            self._tensor(value.tensor)
        elif token.startswith("@"):
            self._function(value.func)
        elif token_kind == "word":
            self.take()
            value.type = types_pb2.DataType.Value(f"DT_{token.upper()}")
        else:
            raise ValueError(f"unexpected {token!r} in {self.text!r}")
        return value

    def _shape(self, shape: tensor_shape_pb2.TensorShapeProto) -> None:
        shape.SetInParent()
        if self.take()[1] == "?":
            shape.unknown_rank = True
            return
        while self.peek()[1] != "]":
            shape.dim.add().size = int(self.take()[1])
            if self.peek()[1] == ",":
                self.take()
        self.take("]")

    def _list(self, values: attr_value_pb2.AttrValue.ListValue, kind: str) -> None:
        values.SetInParent()
        self.take("[")
        while self.peek()[1] != "]":
            item = self.attr(kind)
            field = item.WhichOneof("value")
            target = getattr(values, str(field), None)
            if target is None:
                raise ValueError(f"a list cannot hold {field!r}: {self.text!r}")
            target.append(getattr(item, field))
            if self.peek()[1] == ",":
                self.take()
        self.take("]")

    def _function(self, function: attr_value_pb2.NameAttrList) -> None:
        function.name = self.take()[1][1:]
        if self.peek()[1] == "{":
            for key, value in self.attrs("").items():
                function.attr[key].CopyFrom(value)

    def _tensor(self, tensor: tensor_pb2.TensorProto) -> None:
        self.take("tensor")
        start, depth = self.position + 1, 0
        while True:
            token = self.take()[1]
            depth += (token == "(") - (token == ")")
            if depth == 0:
                break
        tensor.CopyFrom(make_constant(self.text[start : self.position - 1]))


def _format(value: attr_value_pb2.AttrValue) -> str | None:
    field = value.WhichOneof("value")
    if field is None:
        return None
    if field == "list":
        used = value.list.ListFields()
        if len(used) > 1:
            return None
        items = [_format_one(described.name, v) for described, vs in used for v in vs]
        found = [item for item in items if item is not None]
        return f"[{', '.join(found)}]" if len(found) == len(items) else None
    return _format_one(field, getattr(value, field))


def _format_one(field: str, value: Any) -> str | None:
    if field == "s":
        try:
            return repr(value.decode())
        except UnicodeDecodeError:
            return repr(value)
    if field in ("b", "i", "f"):
        return repr(value)
    if field == "type":
        return types_pb2.DataType.Name(value).removeprefix("DT_").lower()
    if field == "shape":
        return "?" if value.unknown_rank else str([dim.size for dim in value.dim])
    if field == "tensor":
        text = format_constant(value)
        return f"tensor({text})" if text is not None else None
    if field == "func":
        attrs = " ".join(f"{k}={format_attr('', k, value.attr[k])}" for k in sorted(value.attr))
        return f"@{value.name}{{{attrs}}}"
    return None


def _parses_to(op: str, key: str, text: str, value: attr_value_pb2.AttrValue) -> bool:
    try:
        return parse_attr(op, key, text) == value
    except ValueError:
        return False


def _attr_kind(op: str, key: str) -> str:
    """Returns an attribute's type as the op's definition names it, "" if unknown."""
    if key in _SHAPE_LISTS:
        return "list(shape)"
    definition = op_def_registry.get(op) if op else None
    for attr in definition.attr if definition is not None else ():
        if attr.name == key:
            return str(attr.type)
    return ""


def _set_number(value: attr_value_pb2.AttrValue, token: str) -> None:
    if re.fullmatch(r"-?\d+", token):
        value.i = int(token)
    else:
        value.f = float(token)


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _numpy_name(dtype: np.dtype[Any]) -> str:
    return str(dtype.name)


def _literal(text: str) -> Any:
    """Reads nested lists of numbers, booleans and strings; inf and nan become strings."""
    try:
        return ast.literal_eval(re.sub(r"(?<![\w'])(-?)(inf|nan)\b", r"'\1\2'", text))
    except SyntaxError as error:
        raise ValueError(f"malformed constant value: {text}") from error
