"""The attrs of a node and their declarations in an op, as records in memory.

A kernel's state is made from them in native code (`fusion.runtime.registration`), which reads them
from TensorFlow; Python writes the same records of a NodeDef, to find out what its kernel will need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fusion.runtime.layout import Address, Flag, Int64, Layout
from fusion.runtime.records import LiveMemory, Memory, Word
from fusion.runtime.tensorflow.dtypes import DTYPES
from fusion.runtime.tensorflow.layout import double_word
from fusion.runtime.tensorflow.spec import Attr, OpSpec, as_dtype

if TYPE_CHECKING:
    from tensorflow.core.framework import node_def_pb2

#: Kinds of attrs, and of the elements of those that are lists.
INT, FLOAT, BOOL, STRING, TYPE = range(5)

_KINDS = {"int": INT, "float": FLOAT, "bool": BOOL, "string": STRING, "type": TYPE}

_MAX_INT64 = 2**63 - 1


class AttrEntry(Layout):
    """The declaration of an attr of an op."""

    name: Address  # a C string
    kind: Int64
    is_list: Flag
    allowed: Text  # [allowed_count] of the strings that it may be; 0 for any
    allowed_count: Int64
    has_default: Flag  # that of a list is the empty one
    default: Int64
    maximum: Int64  # of an int


class ArgEntry(Layout):
    """The tensors that an input or an output of an op stands for; attrs are their indices."""

    dtype: Int64  # a number of `TF_DataType`, unless `dtype_attr` has it
    dtype_attr: Int64  # -1 for none
    is_mixed: Flag  # whether that is a list, of the dtype of each tensor
    length_attr: Int64  # of the number of tensors of one dtype, -1 for none


class Text(Layout):
    """Bytes of a text."""

    address: Address
    length: Int64


class AttrValue(Layout):
    """The value of an attr of a node.

    Ints and bools are words, floats the bits of doubles, types numbers of `TF_DataType`, strings of
    those allowed their index. A list is the address of words; any other string, as a list of one,
    that of `Text`.
    """

    value: Int64
    count: Int64  # elements of a list
    memory: Address  # from malloc, 0 for none


def entries(attrs: Sequence[Attr], memory: Memory) -> Word:
    """The address of an `AttrEntry` for each attr."""
    words: list[Word] = []
    for attr in attrs:
        is_text = attr.element == "string"
        allowed = [value.encode() for value in attr.allowed] if is_text else []
        texts = [word for text in allowed for word in (memory.bytes(text), len(text))]
        # Of lists, and of strings that may be any, the default is the empty one.
        has_word = attr.default is not None and not attr.is_list and not _is_free(attr)
        default = _word(attr, attr.default) if has_word else 0
        words += [
            memory.text(attr.name),
            _KINDS[attr.element],
            int(attr.is_list),
            memory.words(texts) if texts else 0,
            len(allowed),
            int(attr.default is not None),
            default,
            _MAX_INT64 if attr.maximum is None else attr.maximum,
        ]
    return memory.words(words)


def arg_entries(spec: OpSpec, memory: Memory) -> Word:
    """The address of an `ArgEntry` for each input and each output of an op."""
    names, words = [attr.name for attr in spec.attrs], list[Word]()
    for arg in (*spec.inputs, *spec.outputs):
        of_attr = arg.dtype in spec.types
        is_mixed = of_attr and spec.types[arg.dtype].is_list
        words += [
            0 if of_attr else as_dtype(arg.dtype).as_datatype_enum,
            names.index(arg.dtype) if of_attr else -1,
            int(is_mixed),
            names.index(arg.length) if arg.length and not is_mixed else -1,
        ]
    return memory.words(words)


def values(attrs: Sequence[Attr], node: node_def_pb2.NodeDef, memory: LiveMemory) -> int:
    """The address of an `AttrValue` for each attr, as a node has them.

    Raises:
      ValueError: the node does not have an attr, or its value is none that the attr may have; or it
        has an attr that is none of these.
    """
    names = {attr.name for attr in attrs}
    for name in sorted(node.attr):
        if name not in names and not name.startswith("_"):  # those are TensorFlow's
            raise ValueError(
                f"{node.op}: attr {name} is not known: a later version of fusion has written this "
                "node"
            )
    try:
        return memory.words([word for attr in attrs for word in _value(attr, node, memory)])
    except ValueError as error:
        raise ValueError(f"{node.op}: {error}") from error


def _value(attr: Attr, node: node_def_pb2.NodeDef, memory: LiveMemory) -> list[int]:
    """The words of the `AttrValue` of a node's attr."""
    if attr.name not in node.attr:
        if attr.default is None:
            raise ValueError(f"there is no attr {attr.name}")
        return [_default_value(attr, memory), 0 if attr.is_list else 1, 0]
    value, field = node.attr[attr.name], _FIELDS[attr.element]
    items = list(getattr(value.list, field)) if attr.is_list else [getattr(value, field)]
    if attr.is_list or _is_free(attr):
        return [_list_of(attr, items, memory), len(items), 0]
    return [_word(attr, items[0]), 1, 0]


#: The fields of an AttrValue of a NodeDef.
_FIELDS = {"type": "type", "int": "i", "float": "f", "bool": "b", "string": "s"}


def _is_free(attr: Attr) -> bool:
    return attr.element == "string" and not attr.allowed


def _default_value(attr: Attr, memory: LiveMemory) -> int:
    if attr.is_list:
        return memory.words([])
    if _is_free(attr):
        return _list_of(attr, [str(attr.default).encode()], memory)
    return _word(attr, attr.default)


def _list_of(attr: Attr, items: Sequence[Any], memory: LiveMemory) -> int:
    if _is_free(attr):
        return memory.words([word for item in items for word in (memory.bytes(item), len(item))])
    return memory.words([_word(attr, item) for item in items])


def _word(attr: Attr, value: Any) -> int:
    """The word of a value of an attr, or of an element of a list.

    Raises:
      ValueError: a string that the attr may not be.
    """
    if attr.element == "string":
        text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
        if text not in attr.allowed:
            raise ValueError(f"{attr.name} must be one of {', '.join(attr.allowed)}, not {text!r}")
        return attr.allowed.index(text)
    if attr.element == "type" and isinstance(value, str):
        return DTYPES[value].enum
    return double_word(value) if attr.element == "float" else int(value)
