"""Protocol buffers' text format, of which Triton's `config.pbtxt` is one message."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Symbol:
    """A name of an enumeration, which is written without quotes."""

    name: str


Scalar = str | int | Symbol
Message = Mapping[str, "Scalar | Message | Sequence[int] | Sequence[Message]"]


def text_of(message: Message) -> str:
    """The text of a message.

    Args:
        message: its fields by name: numbers, strings, names of enumerations, messages, and lists
            of numbers or of messages; a field of an empty list is not there.
    """
    return "".join(f"{line}\n" for line in _lines(message))


def _lines(message: Message) -> Iterator[str]:
    for name, value in message.items():
        if isinstance(value, Symbol):
            yield f"{name}: {value.name}"
        elif isinstance(value, str | int):
            # JSON's escapes are among those of the text format.
            yield f"{name}: {json.dumps(value, ensure_ascii=False)}"
        elif isinstance(value, Mapping):
            yield from _block(name, value)
        elif value and all(isinstance(item, int) for item in value):
            yield f"{name}: [{', '.join(map(str, value))}]"
        else:
            for item in value:
                assert isinstance(item, Mapping)
                yield from _block(name, item)


def _block(name: str, message: Message) -> Iterator[str]:
    yield f"{name} {{"
    yield from (f"  {line}" for line in _lines(message))
    yield "}"
