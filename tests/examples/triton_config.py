"""Reads Triton's `config.pbtxt`: a strict parser of the text format for the fields that we write.

The fields are those of `ModelConfig` in triton-inference-server/common, model_config.proto.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]


@dataclass(frozen=True)
class Many:
    """A field that may be there several times."""

    of: Any


@dataclass(frozen=True)
class Enum:
    """A field that is one of some names."""

    names: frozenset[str]


def _enum(prefix: str, names: str) -> Enum:
    return Enum(frozenset(f"{prefix}_{name}" for name in names.split()))


TENSOR: Schema = {
    "name": str,
    "data_type": _enum(
        "TYPE",
        "BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 STRING BF16",
    ),
    "dims": Many(int),
}
PAIR: Schema = {"key": str, "value": str}
STEP: Schema = {
    "model_name": str,
    "model_version": int,
    "input_map": Many(PAIR),
    "output_map": Many(PAIR),
}
MODEL_CONFIG: Schema = {
    "name": str,
    "platform": str,
    "backend": str,
    "max_batch_size": int,
    "input": Many(TENSOR),
    "output": Many(TENSOR),
    "version_policy": {"specific": {"versions": Many(int)}},
    "instance_group": Many({"count": int, "kind": _enum("KIND", "AUTO GPU CPU MODEL")}),
    "parameters": Many({"key": str, "value": {"string_value": str}}),
    "ensemble_scheduling": {"step": Many(STEP)},
}

_TOKEN = re.compile(r'\s*(?:(?P<token>"(?:[^"\\\n]|\\.)*"|-?\d+|[A-Za-z_]\w*|[{}\[\]:,])|$)')


def parse(text: str, schema: Schema) -> dict[str, Any]:
    """Returns the fields of a message; those that may be there several times are lists.

    Raises:
        ValueError: it is no text of such a message.
    """
    tokens, end = [], 0
    while end < len(text.rstrip()):
        match = _TOKEN.match(text, end)
        if match is None or match["token"] is None:
            raise ValueError(f"no token at {text[end : end + 20]!r}")
        tokens.append(match["token"])
        end = match.end()
    return _Reader([*tokens, ""]).message(schema, "")


class _Reader:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens, self._next = tokens, 0

    def take(self, wanted: str | None = None) -> str:
        token = self._tokens[self._next]
        if wanted is not None and token != wanted:
            raise ValueError(f"{token!r} in place of {wanted!r}")
        self._next += 1
        return token

    def message(self, schema: Schema, end: str) -> dict[str, Any]:
        """The fields up to a token."""
        found: dict[str, Any] = {}
        while (name := self.take()) != end:
            if name not in schema:
                raise ValueError(f"no field {name!r} in {', '.join(schema)}")
            kind = schema[name]
            many = isinstance(kind, Many)
            if not many and name in found:
                raise ValueError(f"{name!r} is there twice")
            values = self._values(kind.of if many else kind, many)
            if many:
                found.setdefault(name, []).extend(values)
            else:
                (found[name],) = values
        return found

    def _values(self, kind: Any, many: bool) -> list[Any]:
        if isinstance(kind, Mapping):
            self.take("{")
            return [self.message(kind, "}")]
        self.take(":")
        if not many:
            return [self._scalar(kind)]
        self.take("[")
        values = [self._scalar(kind)]
        while self._tokens[self._next] == ",":
            self.take(",")
            values.append(self._scalar(kind))
        self.take("]")
        return values

    def _scalar(self, kind: Any) -> Any:
        token = self.take()
        if isinstance(kind, Enum):
            if token not in kind.names:
                raise ValueError(f"{token!r} is none of {sorted(kind.names)}")
            return token
        is_text = token.startswith('"')
        if is_text != (kind is str) or not (is_text or token.lstrip("-").isdecimal()):
            raise ValueError(f"{token!r} is no {kind.__name__}")
        return json.loads(token) if is_text else int(token)
