"""Refuses nodes with attrs that the op does not have: a later version of fusion wrote them.

TensorFlow ignores such attrs, so results would be wrong.
"""

from __future__ import annotations

from fusion.runtime.layout import Words
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import c_memcmp
from fusion.runtime.native.pointers import as_record, stack_record, stack_words
from fusion.runtime.native.text import Message, append_text, begin, byte
from fusion.runtime.registration.creation import Creation
from fusion.runtime.registration.refusal import INVALID_ARGUMENT, refuse
from fusion.runtime.tensorflow.c_api import tf_delete_buffer, tf_get_code, tf_get_node_def
from fusion.runtime.tensorflow.layout import Buffer

#: The tags of `NodeDef.attr` in TensorFlow's node_def.proto, and of the key in an entry of a map.
_ATTR, _KEY = 0x2A, 0x0A

#: Attrs with names that begin so are TensorFlow's own.
_UNDERSCORE = ord("_")

_NAME_BYTES = 256

#: The bit of a byte of a varint that says that another one follows.
_MORE = 0x80


@jit
def varint(content: int, at: Words) -> int:
    """Reads the varint at offset `at[0]`, and advances the offset."""
    number, shift = int64(0), int64(0)
    while shift < 64:
        value = byte(content + at[0])
        at[0] = at[0] + 1
        number |= (value & (_MORE - 1)) << shift
        shift += 7
        if value < _MORE:
            return number
    return number


@jit
def refuse_unknown_attrs(creation: Creation, construction: int, status: int) -> None:
    """Refuses a node with an attr that its op does not have."""
    node = as_record(Buffer, tf_get_node_def(construction, status))
    if node == 0:
        return
    if tf_get_code(status) == 0:
        content, at = node.data, stack_words(1)
        at[0] = 0
        while at[0] < node.length:
            tag = varint(content, at)
            size = varint(content, at)  # all fields of a NodeDef have one
            start = at[0]
            if tag == _ATTR:
                _check_entry(creation, content + start)
            at[0] = start + size
    tf_delete_buffer(node)


@jit
def _check_entry(creation: Creation, entry: int) -> None:
    """Refuses an entry of a node's attr map that the op does not have."""
    at = stack_words(1)
    at[0] = 0
    if varint(entry, at) != _KEY:
        return
    length = varint(entry, at)
    name = entry + at[0]
    if byte(name) == _UNDERSCORE:
        return
    record = creation.record
    for k in range(record.attr_count):
        attr_name = record.attrs[k].name
        if _is_text(attr_name, name, length):
            return
    message, text = stack_record(Message), stack_words(_NAME_BYTES // 8)
    begin(message, text, int64(_NAME_BYTES))
    append_text(message, name, length)
    refuse(
        creation,
        INVALID_ARGUMENT,
        "attr %s is not known: a later version of fusion has written this node",
        text,
    )


@jit
def _is_text(expected: int, name: int, length: int) -> bool:
    """Whether the C string `expected` is the text `name` of `length` bytes."""
    for k in range(length):
        if byte(expected + k) == 0:
            return False
    return c_memcmp(expected, name, length) == 0 and byte(expected + length) == 0
